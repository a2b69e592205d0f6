//! Faults of the reference, each of which users have met, that must not appear here; and state that the reference leaves.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{
    Lab, Stub, addresses, after, config, host_local, mac, overlay, ports, routes, try_link, with_prev,
};
use conformance::fixture::{Place as _, go_bin_dir};
use conformance::runner::Attachment;
use serde_json::{Value, json};

/// Calls the Go plugins on the lab's node.
fn go(lab: &Lab, verb: &str, attachment: &Attachment, conf: &Value) -> (bool, String) {
    let dir = go_bin_dir().unwrap();
    let mut exec = lab.exec(verb, attachment, conf).path(dir.display().to_string());
    exec.binary = dir.join("bridge");
    let output = lab.node.call(&exec).unwrap();
    (output.success(), output.stdout_text())
}

/// plugins#620, nerdctl#4283: a bridge without a pinned address has none at all once its last port has gone. The reference
/// pins what it finds, here zeros, and fails.
#[test]
fn a_bridge_that_has_lost_its_address_is_mended() {
    let lab = Lab::new();
    let (one, two) = (lab.pod("one"), lab.pod("two"));
    let plain = config("1.0.0", &json!({}));
    assert!(go(&lab, "ADD", &one.attachment("eth0"), &plain).0);
    // Its DEL fails on a network without IPAM, see below; the link has gone by then.
    go(&lab, "DEL", &one.attachment("eth0"), &plain);
    one.sh("ip link del eth0 2>/dev/null; true").unwrap();
    assert_eq!(mac(&lab.node, "br0"), "00:00:00:00:00:00", "that the fault can be made");

    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
    let result = lab.add(&two.attachment("eth0"), &conf);
    let address = mac(&lab.node, "br0");
    assert_ne!(address, "00:00:00:00:00:00");
    assert_eq!(result["interfaces"][0]["mac"], address);
    two.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
    lab.check(&two.attachment("eth0"), &with_prev(&conf, &result));
    // And it keeps it.
    lab.del(&two.attachment("eth0"), &conf);
    assert_eq!(mac(&lab.node, "br0"), address);
    lab.add(&one.attachment("eth0"), &conf);
    assert_eq!(mac(&lab.node, "br0"), address);
}

/// The reference adds the same default route twice.
#[test]
fn a_default_route_that_is_asked_for_twice() {
    for (route, expected) in [
        (json!({"dst": "0.0.0.0/0"}), "10.1.0.1"),
        (json!({"dst": "0.0.0.0/0", "gw": "10.1.0.1"}), "10.1.0.1"),
        (json!({"dst": "0.0.0.0/0", "gw": "10.1.0.99"}), "10.1.0.99"),
    ] {
        let lab = Lab::new();
        let pod = lab.pod("pod1");
        let ipam = overlay(&host_local(&["10.1.0.0/24"]), &json!({"routes": [route, route]}));
        let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipam": ipam}));
        let result = lab.add(&pod.attachment("eth0"), &conf);
        let defaults = routes(&pod, "default");
        assert_eq!(defaults.len(), 1, "{defaults:?}");
        assert_eq!(defaults[0]["gateway"], expected);
        lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    }
    // The same in IPv6, where the kernel would make a route with two ways of it.
    let lab = Lab::new();
    let pod = lab.pod("pod1");
    let ipam = overlay(&host_local(&["fd00:1::/64"]), &json!({"routes": [{"dst": "::/0"}]}));
    let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipam": ipam}));
    lab.add(&pod.attachment("eth0"), &conf);
    let defaults = routes(&pod, "-6 default");
    assert_eq!(defaults.len(), 1, "{defaults:?}");
    assert_eq!(defaults[0]["gateway"], "fd00:1::1");
}

/// The reference takes the second IPv4 gateway for a conflict with the first.
#[test]
fn two_ipv4_range_sets_with_a_gateway() {
    for force in [false, true] {
        let lab = Lab::new();
        let ipam = host_local(&["10.1.0.0/24", "10.2.0.0/24"]);
        let keys = json!({"isDefaultGateway": true, "forceAddress": force, "ipam": ipam});
        let conf = config("1.0.0", &keys);
        for name in ["one", "two"] {
            let pod = lab.pod(name);
            let result = lab.add(&pod.attachment("eth0"), &conf);
            assert_eq!(addresses(&lab.node, "br0"), ["10.1.0.1/24", "10.2.0.1/24"]);
            assert_eq!(addresses(&pod, "eth0").len(), 2);
            pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -c 1 -W 2 10.2.0.1").unwrap();
            assert_eq!(routes(&pod, "default").len(), 1);
            lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        }
    }
}

/// The reference asks an IPAM plugin without a name.
#[test]
fn check_and_status_without_ipam() {
    for ipam in [json!(null), json!({}), json!({"type": ""})] {
        let lab = Lab::new();
        let pod = lab.pod("pod1");
        let conf = config("1.1.0", &json!({"ipam": ipam}));
        let result = lab.add(&pod.attachment("eth0"), &conf);
        lab.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
        for verb in ["GC", "STATUS"] {
            lab.succeed(verb, &Attachment::default(), &conf);
        }
        lab.del(&pod.attachment("eth0"), &with_prev(&conf, &result));
    }
}

/// plugins#29: the reference leaves the pair, and the next try fails with "already exists".
#[test]
fn a_failed_add_can_be_tried_again() {
    let stub = Stub::new();
    stub.fail("ADD", 11, "later");
    let lab = Lab::with_stub(&stub);
    let pod = lab.pod("pod1");
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": {"type": "stub"}}));
    for _ in 0..3 {
        lab.refused("ADD", &pod.attachment("eth0"), &conf).expect(11, "later");
    }
    stub.assign("1.0.0", &["10.1.0.2/24"]);
    lab.add(&pod.attachment("eth0"), &conf);
}

/// What the reference left of an ADD that failed is in the way, until a DEL of ours takes it away.
#[test]
fn what_a_failed_add_of_the_reference_left_is_removed() {
    let lab = Lab::new();
    let pod = lab.pod("pod1");
    let before = lab.snapshot();
    let ipam = overlay(
        &host_local(&["10.1.0.0/24"]),
        &json!({"routes": [{"dst": "10.9.0.0/16", "gw": "10.77.0.1"}]}),
    );
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": ipam}));
    assert!(!go(&lab, "ADD", &pod.attachment("eth0"), &conf).0);
    assert!(try_link(&pod, "eth0").is_some(), "that the fault can be made");
    lab.del(&pod.attachment("eth0"), &conf);
    assert!(try_link(&pod, "eth0").is_none() && ports(&lab.node, "br0").is_empty());
    after(&lab, &before, "DEL after a failed ADD of the reference");
}

/// The reference has the plugin do its work in its own namespace and complains afterwards, in a second document.
#[test]
fn the_own_namespace_is_refused_before_anything_is_made() {
    let lab = Lab::new();
    let before = lab.snapshot();
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["10.1.0.0/24"])}));
    let own = Attachment::new("pod1", "/proc/self/ns/net", "eth0");
    for verb in ["ADD", "CHECK"] {
        lab.refused(verb, &own, &conf).expect(8, "should not be the same");
    }
    assert_eq!(before.diff(&lab.snapshot()), "");
}
