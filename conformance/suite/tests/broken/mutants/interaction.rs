//! Mutants with faults together with others: chains, delegation, capabilities, concurrency, callers.

use std::process::{Command, Stdio};
use std::time::Duration;

use ferrule_kernel::conntrack;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;

use super::super::plugin::Answer;
use super::{Mutant, afterwards, beforehand, changed, forget, in_chain, mutant, refused};

pub(super) const MUTANTS: &[Mutant] = &[
    // Chains
    mutant("portmap", "drops-dns", "PREV-02/with-nothing-to-do-the-result-stays", |call| {
        changed(&call, |result| {
            forget(result, "dns");
        })
    }),
    mutant(
        "bandwidth",
        "renames-what-is-not-its-own",
        "CHN-02/only-its-own-part-of-the-result-changes",
        |call| {
            changed(&call, |result| {
                if let Some(interface) = result["interfaces"].get_mut(0) {
                    interface["mac"] = "02:00:00:00:00:99".into();
                }
            })
        },
    ),
    mutant(
        "portmap",
        "works-without-an-interface",
        "CHN-01/an-add-without-an-earlier-result-is-refused",
        |call| {
            if call.verb() == "ADD" && call.json()["prevResult"].is_null() {
                return Answer::printed(r#"{"cniVersion":"1.0.0"}"#);
            }
            call.original()
        },
    ),
    // Delegation and IPAM
    mutant("bridge", "keeps-arguments-from-the-delegate", "DLG-02/the-environment-is-the-same", |call| {
        call.with("CNI_ARGS", "").original()
    }),
    mutant("bridge", "sends-the-delegate-less", "DLG-03/the-configuration-is-complete", |call| {
        let mut config = call.json();
        if let Some(keys) = config.as_object_mut() {
            let kept = ["name", "cniVersion", "type", "ipam", "bridge", "isGateway", "prevResult"];
            keys.retain(|key, _| kept.contains(&key.as_str()));
            return call.with_json(&config).original();
        }
        call.original()
    }),
    mutant(
        "host-local",
        "gives-one-address-twice",
        "IPAM-04/at-the-same-time-all-addresses-differ",
        |call| {
            changed(&call, |result| {
                if let Some(ip) = result["ips"].get_mut(0) {
                    ip["address"] = "10.77.0.2/24".into();
                }
            })
        },
    ),
    mutant(
        "host-local",
        "keeps-its-state-in-a-form-of-its-own",
        "IPAM-07/state-has-the-form-of-the-reference",
        |call| {
            afterwards(&call, "ADD", "for f in /var/lib/cni/networks/*/10.*; do printf '{}' > \"$f\"; done")
        },
    ),
    // Capabilities and arguments
    mutant("portmap", "ignores-the-host-s-address", "CAP-01/one-address-of-the-host", |call| {
        let mut config = call.json();
        for mapping in config["runtimeConfig"]["portMappings"].as_array_mut().into_iter().flatten() {
            if let Some(keys) = mapping.as_object_mut() {
                keys.retain(|key, _| !key.eq_ignore_ascii_case("hostIP"));
            }
        }
        call.with_json(&config).original()
    }),
    mutant("bandwidth", "swaps-the-directions", "CAP-03/rates-of-each-direction", |call| {
        let text = String::from_utf8_lossy(&call.stdin).replace("ingress", "@").replace("egress", "ingress");
        let mut call = call;
        call.stdin = text.replace('@', "egress").into_bytes();
        call.original()
    }),
    mutant("host-local", "ignores-an-address-asked-for", "ARG-03/an-address", |call| {
        call.with("CNI_ARGS", "").original()
    }),
    // Concurrency and isolation on the node
    mutant("bridge", "leaves-a-process", "PROC-01/no-process-is-left", |call| {
        let answer = call.original();
        if call.verb() == "ADD" {
            let _ = Command::new("sleep")
                .arg("5")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
        }
        answer
    }),
    mutant("host-local", "hangs-at-check", "PROC-02/every-call-ends", |call| {
        if call.verb() == "CHECK" {
            std::thread::sleep(Duration::from_secs(60));
        }
        call.original()
    }),
    mutant("bridge", "flushes-what-is-not-its-own", "SYS-01/what-is-foreign-stays", |call| {
        beforehand(&call, "DEL", "nft flush ruleset")
    }),
    mutant("portmap", "forgets-everybody-s-flows", "SYS-01/what-is-foreign-stays", |call| {
        if let ("ADD", Ok(mut socket)) = (call.verb(), Socket::netfilter()) {
            let udp = conntrack::Filter { family: IpFamily::V4, proto: conntrack::UDP, dst_port: None };
            let all = conntrack::flows(&mut socket, udp).unwrap_or_default();
            let _ = conntrack::delete(&mut socket, &all);
        }
        call.original()
    }),
    // Callers
    in_chain("portmap", "fails-the-second-del-of-containerd", "CALL-01/a-pod-under-containerd", |call| {
        let is_second = call.verb() == "DEL" && call.var("CNI_NETNS").is_empty();
        if is_second { refused(999, "no namespace") } else { call.original() }
    }),
    in_chain("bridge", "fails-the-check-of-cri-o", "CALL-04/a-pod-under-crio", |call| {
        if call.verb() == "CHECK" { refused(999, "too early") } else { call.original() }
    }),
];
