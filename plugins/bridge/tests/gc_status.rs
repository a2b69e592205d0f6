//! GC removes what belongs to attachments that are no more, and nothing else; STATUS only looks.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Lab, Stub, config, host_local, overlay, unchanged, with_prev};
use conformance::fixture::{Place as _, Pod};
use conformance::runner::Attachment;
use serde_json::{Value, json};

/// Which pods of a network the node masquerades, each rule being one line.
fn masqueraded(lab: &Lab) -> Vec<String> {
    let rules = lab.node.sh("nft list ruleset").unwrap();
    let comments = rules.lines().filter_map(|line| line.split_once("comment \"").map(|(_, comment)| comment));
    let pods = comments.filter_map(|comment| {
        let (net, id) = (comment.split_once("net: ")?.1, comment.split_once("id: ")?.1);
        let ifname = comment.split_once("if: ")?.1;
        Some(format!("{}/{}/{}", net.split(',').next()?, id.trim_end_matches('"'), ifname.split(',').next()?))
    });
    let mut pods: Vec<String> = pods.collect();
    pods.sort();
    pods.dedup();
    pods
}

fn net(name: &str, subnet: &str) -> Value {
    let ipam = host_local(&[subnet, &format!("fd00:{name}::/64").replace("net", "1").replace("other", "2")]);
    config("1.1.0", &json!({"name": name, "isGateway": true, "ipMasq": true, "ipam": ipam}))
}

struct Full {
    lab: Lab,
    net: Value,
    _pods: Vec<Pod>,
}

/// `one` and `two` on network `net`, `two` with a second interface, and `one` on network `other` too.
fn full() -> Full {
    let lab = Lab::new();
    let (net, other) = (net("net", "10.1.0.0/24"), net("other", "10.2.0.0/24"));
    let (one, two) = (lab.pod("one"), lab.pod("two"));
    for (attachment, conf) in [
        (one.attachment("eth0"), &net),
        (two.attachment("eth0"), &net),
        (two.attachment("eth1"), &net),
        (one.attachment("eth9"), &other),
    ] {
        lab.add(&attachment, conf);
    }
    assert_eq!(masqueraded(&lab), ["net/one/eth0", "net/two/eth0", "net/two/eth1", "other/one/eth9"]);
    Full { lab, net, _pods: vec![one, two] }
}

#[test]
fn gc_keeps_what_is_listed() {
    let valid = json!([{"containerID": "two", "ifname": "eth0"}]);
    for keys in [
        json!({"cni.dev/valid-attachments": valid}),
        json!({"cni.dev/attachments": valid}),
        json!({"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}),
    ] {
        let it = full();
        let links = it.lab.node.sh("ip -o link | wc -l").unwrap();
        it.lab.succeed("GC", &Attachment::default(), &overlay(&it.net, &keys));
        assert_eq!(masqueraded(&it.lab), ["net/two/eth0", "other/one/eth9"], "{keys}");
        assert_eq!(it.lab.reservations(), ["10.1.0.3", "fd00:1::3"], "{keys}");
        assert_eq!(it.lab.node.list_dir("/var/lib/cni/networks/other").unwrap().len(), 5);
        assert_eq!(it.lab.node.sh("ip -o link | wc -l").unwrap(), links, "links go with their namespaces");
        it.lab.succeed("GC", &Attachment::default(), &overlay(&it.net, &keys));
    }
}

/// CRI-O that starts without a single pod sends `null`, cnitool no key at all.
#[test]
fn gc_of_everything() {
    for keys in [
        json!({"cni.dev/valid-attachments": []}),
        json!({"cni.dev/valid-attachments": null, "cni.dev/attachments": null}),
        json!({}),
    ] {
        let it = full();
        it.lab.succeed("GC", &Attachment::default(), &overlay(&it.net, &keys));
        assert_eq!(masqueraded(&it.lab), ["other/one/eth9"], "{keys}");
        assert!(it.lab.reservations().is_empty(), "{keys}");
    }
}

/// Also without `ipMasq`: it may have been switched off since.
#[test]
fn gc_after_the_configuration_has_changed() {
    let it = full();
    let keys = json!({"ipMasq": false, "vlan": 100, "mtu": -1, "cni.dev/valid-attachments": []});
    it.lab.succeed("GC", &Attachment::default(), &overlay(&it.net, &keys));
    assert_eq!(masqueraded(&it.lab), ["other/one/eth9"]);
}

#[test]
fn gc_is_forwarded_to_ipam_and_makes_nothing() {
    let stub = Stub::new();
    let lab = Lab::with_stub(&stub);
    let before = lab.snapshot();
    let keys = json!({"ipMasq": true, "ipam": {"type": "stub"}, "cni.dev/valid-attachments": null});
    let conf = config("1.1.0", &keys);
    lab.succeed("GC", &Attachment::default(), &conf);
    assert_eq!(stub.calls(), ["GC"]);
    assert_eq!(stub.stdin("GC"), conf.to_string());
    unchanged(&lab.node, &before, "GC has made something");
    // Without IPAM there is nobody to tell.
    lab.succeed("GC", &Attachment::default(), &overlay(&conf, &json!({"ipam": null})));
    unchanged(&lab.node, &before, "GC has made something");
    assert!(stub.calls().is_empty());
}

#[test]
fn an_error_of_ipam_comes_after_the_rules_have_gone() {
    let stub = Stub::assigning("1.1.0", &["10.1.0.2/24"]);
    stub.fail("GC", 130, "not today");
    let lab = Lab::with_stub(&stub);
    let conf = config("1.1.0", &json!({"ipMasq": true, "ipam": {"type": "stub"}}));
    let pod = lab.pod("pod1");
    lab.add(&pod.attachment("eth0"), &conf);
    assert_eq!(masqueraded(&lab).len(), 1);
    lab.refused("GC", &Attachment::default(), &conf).expect(130, "not today");
    assert!(masqueraded(&lab).is_empty());
    let missing = overlay(&conf, &json!({"ipam": {"type": "missing"}}));
    lab.refused("GC", &Attachment::default(), &missing).expect(999, "failed to find plugin \"missing\"");
}

#[test]
fn gc_with_a_list_that_is_none() {
    let it = full();
    let before = it.lab.snapshot();
    for valid in [json!("x"), json!(5), json!([5]), json!({"containerID": "two"})] {
        let conf = overlay(&it.net, &json!({"cni.dev/valid-attachments": valid}));
        let refusal = it.lab.refused("GC", &Attachment::default(), &conf);
        assert!(matches!(refusal.code, 6 | 7), "{refusal:?}");
    }
    unchanged(&it.lab.node, &before, "GC with a list that is none");
}

#[test]
fn gc_and_status_are_of_1_1_0() {
    let lab = Lab::new();
    for version in &common::VERSIONS[..6] {
        for verb in ["GC", "STATUS"] {
            let refusal = lab.refused(verb, &Attachment::default(), &config(version, &json!({})));
            refusal.expect(1, &format!("config version does not allow {verb}"));
        }
    }
}

#[test]
fn status_is_fine_and_leaves_no_trace() {
    let stub = Stub::new();
    let lab = Lab::with_stub(&stub);
    let before = lab.snapshot();
    for keys in [
        json!({}),
        json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}),
        json!({"isGateway": true, "ipMasq": true, "ipam": host_local(&["10.1.0.0/24"])}),
        json!({"ipam": {"type": ""}}),
    ] {
        lab.succeed("STATUS", &Attachment::default(), &config("1.1.0", &keys));
        unchanged(&lab.node, &before, &keys.to_string());
    }
    assert_eq!(stub.calls(), ["STATUS"]);
    // And with everything there already.
    let pod = lab.pod("pod1");
    let conf = net("net", "10.1.0.0/24");
    let result = lab.add(&pod.attachment("eth0"), &conf);
    let before = lab.snapshot();
    lab.succeed("STATUS", &Attachment::default(), &conf);
    unchanged(&lab.node, &before, "STATUS");
    lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
}

#[test]
fn status_knows_when_add_would_fail() {
    let stub = Stub::new();
    let lab = Lab::with_stub(&stub);
    let call = |keys: &Value| {
        let conf = overlay(&config("1.1.0", &json!({"ipam": {"type": "stub"}})), keys);
        lab.refused("STATUS", &Attachment::default(), &conf)
    };
    lab.node.sh("ip link add notbr type veth peer name notbr-peer").unwrap();
    let before = lab.snapshot();
    call(&json!({"bridge": "notbr"})).expect(50, "\"notbr\" already exists but is not a bridge");
    call(&json!({"mtu": -1})).expect(7, "invalid mtu -1");
    call(&json!({"vlan": 5})).expect(2, "vlan");
    call(&json!({"ipam": {"type": "missing"}})).expect(50, "failed to find plugin \"missing\"");
    assert!(stub.calls().is_empty());
    stub.fail("STATUS", 50, "full up");
    call(&json!({})).expect(50, "full up");
    stub.answer("STATUS", "echo oh >&2; exit 3");
    call(&json!({})).expect(999, "oh");
    unchanged(&lab.node, &before, "STATUS");
}

/// It is polled twice a second at the start of a node.
#[test]
fn status_is_quick() {
    let lab = Lab::new();
    let conf = config("1.1.0", &json!({"isGateway": true, "ipMasq": true}));
    let mut exec = lab.exec("STATUS", &Attachment::default(), &conf);
    exec.timeout = None;
    let walls = (0..20).map(|_| lab.node.call(&exec).unwrap().wall);
    let quickest = walls.min().unwrap();
    assert!(quickest.as_millis() < 50, "{quickest:?}");
}
