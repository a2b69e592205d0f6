//! Plugins with one thing wrong, and the trial that has to say so.

use std::process::{Command, Stdio};
use std::time::Duration;

use cni_common::conntrack;
use cni_common::netlink::Socket;
use serde_json::{Value, json};

use super::plugin::{Answer, Call};

/// One thing wrong.
pub(super) struct Fault {
    /// What is wrong.
    pub name: &'static str,
    /// With which plugin.
    pub plugin: &'static str,
    /// The trial that notices.
    pub trial: &'static str,
    /// How the plugin answers.
    pub answer: fn(Call) -> Answer,
    /// What is judged, if it is not the plugin by itself.
    pub judged: &'static str,
}

const fn fault(
    plugin: &'static str,
    name: &'static str,
    trial: &'static str,
    answer: fn(Call) -> Answer,
) -> Fault {
    Fault { name, plugin, trial, answer, judged: plugin }
}

/// The same plugin, judged as a part of the whole chain.
const fn in_chain(
    plugin: &'static str,
    name: &'static str,
    trial: &'static str,
    answer: fn(Call) -> Answer,
) -> Fault {
    Fault { name, plugin, trial, answer, judged: "chain" }
}

/// In the order of the sections of the requirements.
pub(super) const FAULTS: &[Fault] = &[
    // Environment
    fault("bridge", "needs-arguments", "ENV-01/an-attachment-without-arguments", |call| {
        if call.verb() == "ADD" { refused(4, "usage: bridge ADD") } else { call.sound() }
    }),
    fault("bridge", "takes-lower-case", "ENV-02/no-other-spelling-at-an-attachment", |call| {
        let verb = call.verb().to_uppercase();
        call.with("CNI_COMMAND", verb).sound()
    }),
    fault("bandwidth", "dies-of-an-unknown-verb", "ENV-03/an-unknown-operation", |call| match call.verb() {
        "ADD" | "DEL" | "CHECK" | "VERSION" | "GC" | "STATUS" => call.sound(),
        _ => Answer { stderr: b"panicked".to_vec(), status: 101, ..Answer::silence() },
    }),
    fault(
        "host-local",
        "asks-for-netns-at-del",
        "ENV-06/neither-namespace-nor-arguments-are-needed",
        |call| {
            let is_bad = call.verb() == "DEL" && call.var("CNI_NETNS").is_empty();
            if is_bad { refused(4, "CNI_NETNS is missing") } else { call.sound() }
        },
    ),
    fault("portmap", "asks-for-a-container-at-gc", "ENV-08/no-attachment-is-named", |call| {
        let is_bad = call.verb() == "GC" && call.var("CNI_CONTAINERID").is_empty();
        if is_bad { refused(4, "CNI_CONTAINERID is missing") } else { call.sound() }
    }),
    fault("loopback", "does-not-say-which-variable", "ENV-12/every-missing-variable", |call| {
        spoiled(&call, |object| {
            object["msg"] = "bad input".into();
            object["details"] = "".into();
        })
    }),
    fault("bridge", "judges-variables-at-version", "ENV-14/junk-at-version", |call| {
        let is_bad = call.verb() == "VERSION" && call.var("CNI_NETNS") == "dummy";
        if is_bad { refused(4, "no namespace") } else { call.sound() }
    }),
    fault("bridge", "is-confused-by-tracing", "ENV-18/many-other-variables", |call| {
        let known = ["CNI_", "PATH", "PWD", "SHLVL", "_"];
        let is_bad = call.env.iter().any(|(key, _)| !known.iter().any(|known| key.starts_with(known)));
        if is_bad { refused(999, "what is all this") } else { call.sound() }
    }),
    // Identifiers
    fault("bridge", "takes-any-container-id", "CID-01/forms-that-are-not-valid", |call| {
        let id: String = call.var("CNI_CONTAINERID").chars().filter(char::is_ascii_alphanumeric).collect();
        call.with("CNI_CONTAINERID", id).sound()
    }),
    fault(
        "host-local",
        "calls-a-bad-id-an-internal-error",
        "CID-02/the-code-of-an-id-that-is-not-valid",
        |call| {
            let is_bad =
                !call.var("CNI_CONTAINERID").chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                    || call.var("CNI_CONTAINERID").starts_with(['-', '_', '.']);
            if is_bad { refused(999, "bad ID") } else { call.sound() }
        },
    ),
    fault("bridge", "ignores-the-name", "IFN-02/the-name-as-it-was-given", |call| {
        call.with("CNI_IFNAME", "eth9").sound()
    }),
    fault("bridge", "replaces-an-interface", "IFN-03/a-name-that-is-taken", |call| {
        if call.verb() == "ADD" {
            sh(&call, "ip netns exec \"${CNI_NETNS##*/}\" ip link del \"$CNI_IFNAME\"");
        }
        call.sound()
    }),
    fault("bridge", "knows-only-named-namespaces", "NNS-01/below-proc", |call| {
        if call.var("CNI_NETNS").starts_with("/proc/") { refused(4, "odd path") } else { call.sound() }
    }),
    fault("bridge", "resolves-the-path", "NNS-03/the-path-as-it-was-given", |call| {
        changed(&call, |result| {
            for interface in result["interfaces"].as_array_mut().into_iter().flatten() {
                if interface["sandbox"].as_str().is_some_and(|path| !path.is_empty()) {
                    interface["sandbox"] = "/proc/1/ns/net".into();
                }
            }
        })
    }),
    fault("loopback", "works-in-its-own-namespace", "NNS-04/the-own-namespace", |call| match call.verb() {
        "ADD" => {
            sh(&call, "nsenter --net=\"$CNI_NETNS\" ip link set lo up");
            call.sound()
        }
        _ => call.sound(),
    }),
    fault("bandwidth", "makes-a-file-at-the-path", "NNS-06/nothing-is-made-at-the-path", |call| {
        let answer = call.sound();
        if call.verb() == "DEL" {
            sh(&call, "[ -e \"$CNI_NETNS\" ] || : > \"$CNI_NETNS\"");
        }
        answer
    }),
    // Configuration
    fault("host-local", "takes-what-follows-the-object", "CFG-02/what-is-no-configuration", |mut call| {
        if let Some(Ok(first)) = serde_json::Deserializer::from_slice(&call.stdin)
            .into_iter::<Value>()
            .next()
            .filter(Result::is_ok)
        {
            call.stdin = first.to_string().into_bytes();
        }
        call.sound()
    }),
    fault("bridge", "refuses-args-that-it-does-not-know", "CFG-05/arguments-that-are-not-known", |call| {
        if call.json()["args"].is_object() { refused(2, "args: unknown") } else { call.sound() }
    }),
    fault("portmap", "wants-keys-in-its-own-case", "CFG-08/host-ports", |call| {
        let mut config = call.json();
        if config.to_string().contains("HostPort") {
            config["runtimeConfig"] = json!({});
            return call.with_json(&config).sound();
        }
        call.sound()
    }),
    fault("bridge", "chokes-on-null", "CFG-09/null-for-what-every-network-may-have", |call| {
        let has_null = call.json().as_object().is_some_and(|keys| keys.values().any(Value::is_null));
        if has_null { refused(6, "null") } else { call.sound() }
    }),
    fault("bandwidth", "counts-with-32-bits", "CFG-11/a-burst-of-35-bits", |call| {
        if String::from_utf8_lossy(&call.stdin).contains("34359738359") {
            return refused(7, "burst is too large");
        }
        call.sound()
    }),
    fault("bridge", "does-without-a-name", "NET-01/no-name", |call| {
        let mut config = call.json();
        if config.is_object() && config.get("name").is_none() {
            config["name"] = "default".into();
            return call.with_json(&config).sound();
        }
        call.sound()
    }),
    // Versions
    fault(
        "loopback",
        "answers-in-its-newest-version",
        "VER-06/the-result-is-of-the-configurations-version",
        |call| {
            let mut config = call.json();
            if call.verb() == "ADD" && config.is_object() {
                config["cniVersion"] = "1.1.0".into();
                forget(&mut config, "prevResult");
                return call.with_json(&config).sound();
            }
            call.sound()
        },
    ),
    fault("bridge", "takes-any-version", "VER-02/a-version-that-nobody-has", |call| {
        let mut config = call.json();
        if !config["cniVersion"]
            .as_str()
            .is_none_or(|version| ["0.", "1."].iter().any(|start| version.starts_with(start)))
        {
            config["cniVersion"] = "1.0.0".into();
            return call.with_json(&config).sound();
        }
        call.sound()
    }),
    fault("portmap", "declares-no-versions", "VCMD-01/the-answer-has-both-keys", |call| match call.verb() {
        "VERSION" => Answer::printed(r#"{"cniVersion":"1.1.0"}"#),
        _ => call.sound(),
    }),
    fault("portmap", "answers-with-its-own-version", "VCMD-02/asked-with-each-version", |call| {
        if call.verb() != "VERSION" {
            return call.sound();
        }
        let mut answer = call.sound();
        let mut object = answer.json();
        object["cniVersion"] = "1.1.0".into();
        answer.stdout = object.to_string().into_bytes();
        answer
    }),
    fault("bridge", "writes-at-version", "VCMD-06/nothing-is-changed", |call| {
        if call.verb() == "VERSION" {
            sh(&call, "ip link add asked0 type veth peer name asked1");
        }
        call.sound()
    }),
    // Errors and output
    fault("bridge", "succeeds-with-an-error-object", "EXIT-01/a-failure-ends-with-another-status", |call| {
        Answer { status: 0, ..call.sound() }
    }),
    fault("bridge", "tells-errors-on-standard-error", "ERR-01/a-failure-prints-an-error-object", |call| {
        let answer = call.sound();
        if answer.status == 0 {
            return answer;
        }
        Answer { stderr: answer.stdout, stdout: Vec::new(), status: answer.status }
    }),
    fault("portmap", "has-errors-without-a-version", "ERR-02/the-keys-of-an-error-object", |call| {
        spoiled(&call, |object| {
            forget(object, "cniVersion");
        })
    }),
    fault("host-local", "uses-a-reserved-code", "ERR-03/no-reserved-code", |call| {
        spoiled(&call, |object| object["code"] = 42.into())
    }),
    fault("bridge", "prints-its-result-twice", "ERR-08/one-document-of-a-success", |call| {
        let mut answer = call.sound();
        answer.stdout.extend(answer.stdout.clone());
        answer
    }),
    fault("bridge", "prints-two-errors", "ERR-08/one-document-of-a-failure", |call| {
        let mut answer = call.sound();
        if answer.status != 0 {
            answer.stdout.extend(b"{\"code\":999,\"msg\":\"again\"}");
        }
        answer
    }),
    fault("bridge", "wraps-the-delegate-s-error", "ERR-09/an-error-at-add", |call| {
        spoiled(&call, |object| object["code"] = 999.into())
    }),
    fault("portmap", "talks-at-check", "OUT-02/the-others-print-nothing", |call| {
        let mut answer = call.sound();
        if call.verb() == "CHECK" {
            answer.stdout = b"{\"fine\":true}".to_vec();
        }
        answer
    }),
    fault("bandwidth", "logs-on-standard-output", "OUT-03/no-logs-among-the-output", |call| {
        let answer = call.sound();
        if call.verb() != "ADD" {
            return answer;
        }
        Answer { stdout: [b"level=info msg=added\n".to_vec(), answer.stdout].concat(), ..answer }
    }),
    // Results
    fault("bridge", "labels-a-new-shape-as-an-old-one", "VER-07/the-result-of-a-usual-add", |call| {
        changed(&call, |result| {
            for ip in result["ips"].as_array_mut().into_iter().flatten() {
                forget(ip, "version");
            }
        })
    }),
    fault(
        "bridge",
        "says-an-address-without-a-prefix",
        "RES-05/addresses-with-prefix-and-host-part",
        |call| {
            changed(&call, |result| {
                if let Some(ip) = result["ips"].get_mut(0) {
                    ip["address"] = "10.77.0.2".into();
                }
            })
        },
    ),
    fault("bridge", "counts-interfaces-from-one", "RES-06/indices-are-those-of-interfaces", |call| {
        changed(&call, |result| {
            if let Some(ip) = result["ips"].get_mut(0) {
                ip["interface"] = 3.into();
            }
        })
    }),
    fault(
        "bridge",
        "forgets-whose-an-address-is",
        "RES-07/each-address-is-on-the-interface-in-the-container",
        |call| {
            changed(&call, |result| {
                for ip in result["ips"].as_array_mut().into_iter().flatten() {
                    forget(ip, "interface");
                }
            })
        },
    ),
    fault("bridge", "keeps-the-bridge-to-itself", "RES-10/every-new-link-is-listed", |call| {
        changed(&call, |result| {
            let sandboxed =
                |interface: &Value| interface["sandbox"].as_str().is_some_and(|path| !path.is_empty());
            if let Some(interfaces) = result["interfaces"].as_array_mut() {
                interfaces.retain(sandboxed);
            }
            for ip in result["ips"].as_array_mut().into_iter().flatten() {
                ip["interface"] = 0.into();
            }
        })
    }),
    // ADD
    fault(
        "portmap",
        "does-one-interface-of-a-container",
        "ADD-06/one-container-with-two-interfaces",
        |call| {
            let answer = call.sound();
            if call.verb() == "DEL" {
                for ifname in ["eth0", "eth1", "net1"] {
                    call.clone().with("CNI_IFNAME", ifname).sound();
                }
            }
            answer
        },
    ),
    fault("bridge", "leaves-an-interface-when-ipam-fails", "ADD-04/the-ipam-plugin-fails", |call| {
        let answer = call.sound();
        if call.verb() == "ADD" && answer.status != 0 {
            sh(&call, "ip link add left0 type veth peer name left1");
        }
        answer
    }),
    // DEL
    fault("bridge", "leaves-a-file", "DEL-01/nothing-is-left", |call| {
        let answer = call.sound();
        if call.verb() == "DEL" {
            sh(&call, "echo leak > /var/lib/cni/leak-$CNI_CONTAINERID");
        }
        answer
    }),
    fault("portmap", "leaves-a-rule", "DEL-01/nothing-is-left", |call| {
        let answer = call.sound();
        if call.verb() == "DEL" {
            sh(&call, "nft add table inet leak_$CNI_CONTAINERID");
        }
        answer
    }),
    fault("bandwidth", "leaves-a-policy-rule", "DEL-01/nothing-is-left", |call| {
        let answer = call.sound();
        if call.verb() == "ADD" {
            sh(&call, "ip rule add from 192.0.2.77 lookup main");
        }
        answer
    }),
    fault("bridge", "fails-the-second-del", "DEL-02/three-times", |call| {
        let is_second = call.verb() == "DEL"
            && !sh(&call, "ip netns exec \"${CNI_NETNS##*/}\" ip link show \"$CNI_IFNAME\"");
        if is_second { refused(999, "there is no such link") } else { call.sound() }
    }),
    fault("bridge", "needs-a-namespace-to-delete", "DEL-03/namespace-gone", |call| {
        let is_bad = call.verb() == "DEL" && !std::path::Path::new(call.var("CNI_NETNS")).exists();
        if is_bad { refused(999, "cannot open the namespace") } else { call.sound() }
    }),
    fault("portmap", "needs-prev-result-to-delete", "DEL-04/prev-result-absent-or-null", |call| {
        let is_bad = call.verb() == "DEL" && call.json()["prevResult"].is_null();
        if is_bad { refused(7, "no prevResult") } else { call.sound() }
    }),
    fault("bridge", "keeps-the-address-of-a-gone-pod", "DEL-05/ipam-is-called-whatever-is-gone", |call| {
        let mut config = call.json();
        if call.verb() == "DEL" && !std::path::Path::new(call.var("CNI_NETNS")).exists() {
            forget(&mut config, "ipam");
            return call.with_json(&config).sound();
        }
        call.sound()
    }),
    fault("portmap", "refuses-to-clean-up", "DEL-08/a-key-of-its-own-is-not-valid", |call| {
        let judged = call.clone().with("CNI_COMMAND", "CHECK").sound();
        let is_bad = call.verb() == "DEL" && judged.json()["code"] == 7;
        if is_bad { refused(7, "not valid") } else { call.sound() }
    }),
    // CHECK
    fault("bridge", "checks-nothing", "CHK-03/the-interface-is-gone", checks_nothing),
    fault("portmap", "checks-nothing-either", "CHK-04/the-firewall-was-flushed", checks_nothing),
    fault("bandwidth", "checks-nothing-at-all", "CHK-04/the-shaping-towards-it-is-gone", checks_nothing),
    fault("host-local", "never-looks", "CHK-04/the-reservation-is-gone", checks_nothing),
    fault("bridge", "minds-another-address", "CHK-02/another-address", |call| {
        let counted = "[ $(ip netns exec \"${CNI_NETNS##*/}\" ip -4 -o address show | wc -l) -le 1 ]";
        if call.verb() == "CHECK" && !sh(&call, counted) {
            return refused(999, "an address that I did not give");
        }
        call.sound()
    }),
    fault("host-local", "writes-at-check", "CHK-08/nothing-is-changed", |call| {
        if call.verb() == "CHECK" {
            sh(&call, "date +%s%N > /var/lib/cni/checked");
        }
        call.sound()
    }),
    // GC
    fault("host-local", "collects-nothing", "GC-01/one-is-stale", |call| match call.verb() {
        "GC" => Answer::silence(),
        _ => call.sound(),
    }),
    fault("portmap", "collects-everything", "GC-02/both-keys", |call| {
        let mut config = call.json();
        if call.verb() == "GC" {
            config["cni.dev/valid-attachments"] = json!([]);
            config["cni.dev/attachments"] = json!([]);
            return call.with_json(&config).sound();
        }
        call.sound()
    }),
    // STATUS
    fault("loopback", "is-never-ready", "STA-01/a-plugin-in-good-order-is-ready", |call| match call.verb() {
        "STATUS" => refused(50, "not yet"),
        _ => call.sound(),
    }),
    fault("bandwidth", "writes-at-status", "STA-07/nothing-is-changed", |call| {
        if call.verb() == "STATUS" {
            sh(&call, "ip link add status0 type veth peer name status1");
        }
        call.sound()
    }),
    // Chains
    fault("portmap", "drops-dns", "PREV-02/with-nothing-to-do-the-result-stays", |call| {
        changed(&call, |result| {
            forget(result, "dns");
        })
    }),
    fault(
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
    fault(
        "portmap",
        "works-without-an-interface",
        "CHN-01/an-add-without-an-earlier-result-is-refused",
        |call| {
            if call.verb() == "ADD" && call.json()["prevResult"].is_null() {
                return Answer::printed(r#"{"cniVersion":"1.0.0"}"#);
            }
            call.sound()
        },
    ),
    // Delegation and IPAM
    fault("bridge", "keeps-arguments-from-the-delegate", "DLG-02/the-environment-is-the-same", |call| {
        call.with("CNI_ARGS", "").sound()
    }),
    fault("bridge", "sends-the-delegate-less", "DLG-03/the-configuration-is-complete", |call| {
        let mut config = call.json();
        if let Some(keys) = config.as_object_mut() {
            let kept = ["name", "cniVersion", "type", "ipam", "bridge", "isGateway", "prevResult"];
            keys.retain(|key, _| kept.contains(&key.as_str()));
            return call.with_json(&config).sound();
        }
        call.sound()
    }),
    fault("host-local", "gives-one-address-twice", "IPAM-04/at-the-same-time-all-addresses-differ", |call| {
        changed(&call, |result| {
            if let Some(ip) = result["ips"].get_mut(0) {
                ip["address"] = "10.77.0.2/24".into();
            }
        })
    }),
    fault(
        "host-local",
        "keeps-its-state-in-a-form-of-its-own",
        "IPAM-07/state-has-the-form-of-the-reference",
        |call| {
            let answer = call.sound();
            if call.verb() == "ADD" {
                sh(&call, "for f in /var/lib/cni/networks/*/10.*; do printf '{}' > \"$f\"; done");
            }
            answer
        },
    ),
    // Capabilities and arguments
    fault("portmap", "ignores-the-host-s-address", "CAP-01/one-address-of-the-host", |call| {
        let mut config = call.json();
        for mapping in config["runtimeConfig"]["portMappings"].as_array_mut().into_iter().flatten() {
            if let Some(keys) = mapping.as_object_mut() {
                keys.retain(|key, _| !key.eq_ignore_ascii_case("hostIP"));
            }
        }
        call.with_json(&config).sound()
    }),
    fault("bandwidth", "swaps-the-directions", "CAP-03/rates-of-each-direction", |call| {
        let text = String::from_utf8_lossy(&call.stdin).replace("ingress", "@").replace("egress", "ingress");
        let mut call = call;
        call.stdin = text.replace('@', "egress").into_bytes();
        call.sound()
    }),
    fault("host-local", "ignores-an-address-asked-for", "ARG-03/an-address", |call| {
        call.with("CNI_ARGS", "").sound()
    }),
    // Concurrency and order on the node
    fault("bridge", "leaves-a-process", "PROC-01/no-process-is-left", |call| {
        let answer = call.sound();
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
    fault("host-local", "hangs-at-check", "PROC-02/every-call-ends", |call| {
        if call.verb() == "CHECK" {
            std::thread::sleep(Duration::from_secs(60));
        }
        call.sound()
    }),
    fault("bridge", "flushes-what-is-not-its-own", "SYS-01/what-is-foreign-stays", |call| {
        if call.verb() == "DEL" {
            sh(&call, "nft flush ruleset");
        }
        call.sound()
    }),
    fault("portmap", "forgets-everybody-s-flows", "SYS-01/what-is-foreign-stays", |call| {
        if let ("ADD", Ok(mut socket)) = (call.verb(), Socket::netfilter()) {
            let udp = conntrack::Filter { v6: false, proto: conntrack::UDP, dst_port: None };
            let all = conntrack::flows(&mut socket, udp).unwrap_or_default();
            let _ = conntrack::delete(&mut socket, &all);
        }
        call.sound()
    }),
    // Callers
    in_chain("portmap", "fails-the-second-del-of-containerd", "CALL-01/a-pod-under-containerd", |call| {
        let is_second = call.verb() == "DEL" && call.var("CNI_NETNS").is_empty();
        if is_second { refused(999, "no namespace") } else { call.sound() }
    }),
    in_chain("bridge", "fails-the-check-of-cri-o", "CALL-04/a-pod-under-crio", |call| {
        if call.verb() == "CHECK" { refused(999, "too early") } else { call.sound() }
    }),
];

fn checks_nothing(call: Call) -> Answer {
    if call.verb() == "CHECK" { Answer::silence() } else { call.sound() }
}

/// Takes a key out of an object.
fn forget(object: &mut Value, key: &str) {
    if let Some(keys) = object.as_object_mut() {
        keys.remove(key);
    }
}

/// An error object.
fn refused(code: u64, msg: &str) -> Answer {
    Answer::failed(
        json!({"cniVersion": "1.0.0", "code": code, "msg": msg, "details": "broken on purpose"}).to_string(),
    )
}

/// The sound plugin's answer, with its error object changed.
fn spoiled(call: &Call, change: fn(&mut Value)) -> Answer {
    let mut answer = call.sound();
    let mut object = answer.json();
    if answer.status != 0 && object.is_object() {
        change(&mut object);
        answer.stdout = object.to_string().into_bytes();
    }
    answer
}

/// The sound plugin's answer, with its result of an ADD changed.
fn changed(call: &Call, change: fn(&mut Value)) -> Answer {
    let mut answer = call.sound();
    let mut object = answer.json();
    if call.verb() == "ADD" && answer.status == 0 && object.is_object() {
        change(&mut object);
        answer.stdout = object.to_string().into_bytes();
    }
    answer
}

/// Runs a shell command on the node with the call's variables; whether it succeeded.
fn sh(call: &Call, script: &str) -> bool {
    let status = Command::new("/bin/sh")
        .args(["-c", script])
        .envs(call.env.iter().map(|(key, value)| (key, value)))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
