//! An ADD that fails leaves nothing of its own, whichever step it was that failed, and a DEL after it is fine.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Lab, Refusal, SHARED, Stub, addresses, config, overlay, ports, try_link, unchanged, with_prev};
use conformance::fixture::{Place as _, Snapshot};
use serde_json::{Value, json};

/// One way to fail.
struct Failing {
    name: &'static str,
    /// What IPAM's ADD does, as shell code.
    ipam: String,
    /// Keys of the configuration.
    keys: Value,
    /// Run on the node, or in the pod, beforehand.
    node: &'static str,
    pod: &'static str,
    /// The error.
    code: u64,
    text: &'static str,
    /// What IPAM is called with.
    calls: &'static [&'static str],
}

impl Default for Failing {
    fn default() -> Self {
        Failing {
            name: "",
            ipam: result(&json!({"ips": [{"address": "10.1.0.9/24"}]})),
            keys: json!({}),
            node: "true",
            pod: "true",
            code: 999,
            text: "",
            calls: &["ADD", "DEL"],
        }
    }
}

fn result(result: &Value) -> String {
    format!("cat <<'END'\n{}\nEND", overlay(result, &json!({"cniVersion": "1.0.0"})))
}

fn ways_to_fail() -> Vec<Failing> {
    let one = json!({"address": "10.1.0.9/24"});
    vec![
        Failing {
            name: "IPAM fails",
            ipam: r#"echo '{"code": 11, "msg": "full up", "details": "x"}'; exit 1"#.to_owned(),
            code: 11,
            text: "full up",
            ..Failing::default()
        },
        Failing {
            name: "IPAM dies",
            ipam: "echo oh >&2; kill -9 $$".to_owned(),
            text: "oh",
            ..Failing::default()
        },
        Failing {
            name: "no addresses",
            ipam: result(&json!({"dns": {"domain": "x"}})),
            text: "IPAM plugin returned missing IP config",
            ..Failing::default()
        },
        Failing {
            name: "null",
            ipam: "echo null".to_owned(),
            text: "IPAM plugin returned missing IP config",
            ..Failing::default()
        },
        Failing { name: "junk", ipam: "echo hello".to_owned(), text: "stub", ..Failing::default() },
        Failing { name: "nothing", ipam: "true".to_owned(), text: "stub", ..Failing::default() },
        Failing {
            name: "an address that is none",
            ipam: result(&json!({"ips": [{"address": "10.1.0.9"}]})),
            text: "10.1.0.9",
            ..Failing::default()
        },
        Failing {
            name: "a result of an unknown version",
            ipam: r#"echo '{"cniVersion": "9.0.0", "ips": [{"address": "10.1.0.9/24"}]}'"#.to_owned(),
            text: "9.0.0",
            ..Failing::default()
        },
        Failing {
            name: "the same address twice",
            ipam: result(&json!({"ips": [one, one]})),
            text: "failed to add IP addr 10.1.0.9/24",
            ..Failing::default()
        },
        Failing {
            name: "an address that the kernel refuses",
            ipam: result(&json!({"ips": [{"address": "10.1.0.9/24"}, {"address": "ff02::9/64"}]})),
            text: "failed to add IP addr ff02::9/64",
            ..Failing::default()
        },
        Failing {
            name: "a route by way of nowhere",
            ipam: result(&json!({"ips": [one], "routes": [{"dst": "10.9.0.0/16", "gw": "10.77.0.1"}]})),
            text: "failed to add route '10.9.0.0/16 via 10.77.0.1",
            ..Failing::default()
        },
        Failing {
            name: "a gateway in conflict",
            ipam: result(&json!({"ips": [{"address": "10.1.0.9/20"}]})),
            keys: json!({"isGateway": true}),
            text: "already has an IP address different from 10.1.0.1/20",
            ..Failing::default()
        },
        Failing {
            name: "a gateway that the kernel refuses",
            ipam: result(&json!({"ips": [{"address": "fd00:9::9/64", "gateway": "ff02::1"}]})),
            keys: json!({"isGateway": true}),
            text: "add address ff02::1/64",
            ..Failing::default()
        },
        Failing {
            name: "masquerading that the kernel refuses",
            keys: json!({"ipMasq": true}),
            // A regular chain of the name of the one that is to be hooked.
            node: "nft 'add table inet cni_plugins_masquerade { chain postrouting { type filter hook input priority 0 ; } ; }'",
            text: "masquerade",
            ..Failing::default()
        },
        Failing {
            name: "the name is taken in the container",
            pod: "ip link add eth0 type veth peer name other0",
            text: "container veth name (\"eth0\") peer provided (",
            calls: &[],
            ..Failing::default()
        },
        Failing {
            name: "the bridge is none",
            keys: json!({"bridge": "notbr"}),
            node: "ip link add notbr type veth peer name notbr-peer",
            text: "\"notbr\" already exists but is not a bridge",
            ..Failing::default()
        },
        Failing {
            name: "the bridge's name is lo",
            keys: json!({"bridge": "lo"}),
            text: "\"lo\" already exists but is not a bridge",
            ..Failing::default()
        },
        Failing {
            name: "the bridge's name is one that the kernel refuses",
            keys: json!({"bridge": "all"}),
            text: "\"all\"",
            ..Failing::default()
        },
        Failing {
            name: "no such IPAM plugin",
            keys: json!({"ipam": {"type": "missing"}}),
            text: "failed to find plugin \"missing\" in path [",
            calls: &[],
            ..Failing::default()
        },
        Failing {
            name: "a configuration that makes no sense",
            keys: json!({"mtu": -1}),
            code: 7,
            text: "invalid mtu -1",
            calls: &[],
            ..Failing::default()
        },
    ]
}

/// Beside a working attachment, which makes all that is shared beforehand: so nothing at all may be different afterwards.
#[test]
fn every_failure_leaves_everything_as_it_was() {
    for way in ways_to_fail() {
        let name = way.name;
        println!("{name}");
        let stub = Stub::assigning("1.0.0", &["10.1.0.8/24"]);
        let lab = Lab::with_stub(&stub);
        let (first, second) = (lab.pod("first"), lab.pod("second"));
        let base = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
        let result = lab.add(&first.attachment("eth0"), &base);
        lab.node.sh(way.node).unwrap();
        second.sh(way.pod).unwrap();
        stub.calls();

        stub.answer("ADD", &way.ipam);
        let conf = overlay(&overlay(&base, &json!({"isGateway": false})), &way.keys);
        let (before, pod_before) = (lab.snapshot(), Snapshot::take(&second).unwrap());
        lab.refused("ADD", &second.attachment("eth0"), &conf).expect(way.code, way.text);

        unchanged(&lab.node, &before, name);
        unchanged(&second, &pod_before, name);
        assert_eq!(stub.calls(), way.calls, "{name}");
        lab.check(&first.attachment("eth0"), &with_prev(&base, &result));

        // A runtime answers a failed ADD with a DEL, or tries again.
        if !way.keys.to_string().contains("missing") && way.pod == "true" {
            lab.del(&second.attachment("eth0"), &conf);
            unchanged(&lab.node, &before, name);
        }
        if way.pod == "true" {
            stub.assign("1.0.0", &["10.1.0.9/24"]);
            lab.add(&second.attachment("eth0"), &base);
            second.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
        }
    }
}

/// Alone: what is left is shared, or was there before.
#[test]
fn a_first_add_that_fails_leaves_the_bridge_at_most() {
    for way in ways_to_fail() {
        println!("{}", way.name);
        let stub = Stub::new();
        stub.answer("ADD", &way.ipam);
        let lab = Lab::with_stub(&stub);
        let pod = lab.pod("first");
        if way.name.contains("conflict") {
            lab.node.sh("ip link add br0 type bridge && ip address add 10.1.0.1/24 dev br0").unwrap();
        }
        lab.node.sh(way.node).unwrap();
        pod.sh(way.pod).unwrap();
        let base = config("1.0.0", &json!({"ipam": {"type": "stub"}}));
        let conf = overlay(&base, &way.keys);
        let (before, pod_before) = (lab.snapshot(), Snapshot::take(&pod).unwrap());
        lab.refused("ADD", &pod.attachment("eth0"), &conf).expect(way.code, way.text);
        let left = before.ignoring(&SHARED).diff(&lab.snapshot().ignoring(&SHARED));
        assert_eq!(left, "", "{}", way.name);
        unchanged(&pod, &pod_before, way.name);
        assert!(try_link(&lab.node, "br0").is_none() || ports(&lab.node, "br0").is_empty(), "{}", way.name);
        assert_eq!(stub.calls(), way.calls, "{}", way.name);
    }
}

/// A runtime that has lost count ADDs again. IPAM must not see a DEL then: the address is in use.
#[test]
fn a_second_add_harms_nothing() {
    let stub = Stub::assigning("1.0.0", &["10.1.0.8/24"]);
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    let result = lab.add(&pod.attachment("eth0"), &conf);
    let (before, pod_before) = (lab.snapshot(), Snapshot::take(&pod).unwrap());
    assert_eq!(stub.calls(), ["ADD"]);
    for _ in 0..2 {
        let refusal = lab.refused("ADD", &pod.attachment("eth0"), &conf);
        let port = result["interfaces"][1]["name"].as_str().unwrap();
        refusal.expect(
            999,
            &format!("container veth name (\"eth0\") peer provided (\"{port}\") already exists"),
        );
    }
    assert!(stub.calls().is_empty());
    unchanged(&lab.node, &before, "the node after a second ADD");
    unchanged(&pod, &pod_before, "the pod after a second ADD");
    lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
}

/// The name can also be taken by somebody who comes between the first look and the making of the pair. The stub is that
/// somebody.
#[test]
fn a_name_that_is_taken_at_the_last_moment() {
    let stub = Stub::new();
    let answer = result(&json!({"ips": [{"address": "10.1.0.9/24"}]}));
    let take = "nsenter --net=\"$CNI_NETNS\" ip link add eth0 type veth peer name other0 >/dev/null";
    stub.answer("ADD", &format!("{take}\n{answer}"));
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
    lab.refused("ADD", &pod.attachment("eth0"), &conf).expect(999, "container veth name (\"eth0\")");
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    assert!(ports(&lab.node, "br0").is_empty());
    assert!(try_link(&pod, "other0").is_some(), "the stranger's link is not ours to remove");
}

/// The runtime that should have read the result is gone: the attachment is nobody's.
#[test]
fn a_result_that_nobody_reads_is_a_failed_add() {
    let stub = Stub::assigning("1.0.0", &["10.1.0.8/24"]);
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    lab.add(&lab.pod("first").attachment("eth0"), &conf);
    stub.calls();
    let before = lab.snapshot();
    let script = format!(
        "CNI_COMMAND=ADD CNI_CONTAINERID=pod1 CNI_IFNAME=eth0 CNI_NETNS=/run/netns/pod1 CNI_PATH={} \
         {}/bridge >/dev/full <<'END'\n{conf}\nEND",
        lab.path,
        lab.bins.display()
    );
    assert!(lab.node.sh(&script).is_err());
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    unchanged(&lab.node, &before, "the node after a result that could not be written");
    assert!(try_link(&pod, "eth0").is_none());
}

/// 0.2.0 has room for one address of a family. Losing the other without a word would be worse than an error.
#[test]
fn a_result_that_the_version_has_no_room_for() {
    let stub = Stub::assigning("0.2.0", &[]);
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let conf = config("0.2.0", &json!({"ipam": {"type": "stub"}}));
    lab.refused("ADD", &pod.attachment("eth0"), &conf).expect(999, "missing IP config");
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    assert!(try_link(&pod, "eth0").is_none());
}

/// What fails in the container is told by name, and by what the kernel said.
#[test]
fn the_message_says_which_step_and_why() {
    let stub = Stub::new();
    stub.answer("ADD", &result(&json!({"ips": [{"address": "10.1.0.9/24"}, {"address": "10.1.0.9/24"}]})));
    let lab = Lab::with_stub(&stub);
    let conf = config("1.0.0", &json!({"ipam": {"type": "stub"}}));
    let output = lab.call("ADD", &lab.pod("pod1").attachment("eth0"), &conf);
    let refusal = Refusal::of(&output);
    refusal.expect(999, "failed to add IP addr 10.1.0.9/24 to \"eth0\"");
    assert!(format!("{refusal:?}").contains("exists"), "{refusal:?}");
    assert!(addresses(&lab.node, "br0").is_empty());
}
