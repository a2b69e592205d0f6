//! `enabledad` and `disableContainerInterface`: the state of the container's interface.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{
    StubIpam, assert_unchanged, host_local, is_up, link, ports, sysctl, try_link, with_prev,
};
use common::{assert_only_shared_changed, config, ours, with_stub};
use serde_json::json;

/// With DAD the address is usable when ADD returns, and the kernel has looked for a duplicate.
#[test]
fn enabledad_waits_for_duplicate_address_detection() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    let conf = config("1.0.0", &json!({"isGateway": true, "enabledad": true, "ipam": ipam}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    assert_eq!(pod.sh("ip -6 address show tentative scope global").unwrap(), "");
    for setting in ["accept_dad", "enhanced_dad"] {
        assert_eq!(sysctl(&pod, &format!("ipv6/conf/eth0/{setting}")), "1");
    }
    // NODAD would make the kernel skip the detection in spite of accept_dad.
    assert!(!pod.sh("ip -6 address show dev eth0").unwrap().contains("nodad"));
    ctx.check(&pod.attachment("eth0"), &with_prev(&conf, &result));
    assert_eq!(sysctl(&pod, "ipv6/conf/eth0/keep_addr_on_down"), "1");
}

#[test]
fn enabledad_refuses_an_address_that_another_host_has() {
    let stub = StubIpam::assigning("1.0.0", &["fd00:1::2/64"]);
    let ctx = with_stub(&stub);
    let conf = config("1.0.0", &json!({"enabledad": true, "ipam": {"type": "stub"}}));
    let (one, two) = (ctx.pod("one"), ctx.pod("two"));
    let result = ctx.add(&one.attachment("eth0"), &conf);
    stub.calls();
    let before = ctx.snapshot();
    let failure = ctx.fail("ADD", &two.attachment("eth0"), &conf);
    failure.expect(999, "duplicate address detection of \"eth0\": another host has fd00:1::2/64");
    assert!(try_link(&two, "eth0").is_none());
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    assert_only_shared_changed(&ctx, &before, "a duplicate address");

    // The first pod finds the other one when its link comes up again. CHECK reports it.
    let plain = config("1.0.0", &json!({"ipam": {"type": "stub"}}));
    one.sh("ip link set eth0 down").unwrap();
    ctx.add(&two.attachment("eth0"), &plain);
    one.sh("ip link set eth0 up").unwrap();
    let failed = || one.sh("ip -6 address show dadfailed").unwrap().contains("fd00:1::2");
    assert!(cni_lab::eventually(cni_lab::TIMEOUT, failed));
    let failure = ctx.fail("CHECK", &one.attachment("eth0"), &with_prev(&conf, &result));
    failure.expect(999, "another host has fd00:1::2/64");
}

#[test]
fn disabled_interface_stays_down() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let before = ctx.snapshot();
    let conf = config("1.0.0", &json!({"disableContainerInterface": true, "hairpinMode": true}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    assert!(!is_up(&pod, "eth0"));
    let port = result["interfaces"][1]["name"].as_str().unwrap();
    assert!(is_up(&ctx.node, port));
    assert_ne!(link(&ctx.node, port)["operstate"], "UP", "it has no carrier");
    let check = with_prev(&conf, &result);
    ctx.check(&pod.attachment("eth0"), &check);
    // A virtual machine's supervisor sets it up later.
    pod.sh("ip link set eth0 up").unwrap();
    ctx.check(&pod.attachment("eth0"), &check);
    ctx.node.sh(&format!("ip link set {port} down")).unwrap();
    ctx.fail("CHECK", &pod.attachment("eth0"), &check).expect(999, "is down");
    ctx.del(&pod.attachment("eth0"), &conf);
    assert!(ports(&ctx.node, "br0").is_empty());
    assert_only_shared_changed(&ctx, &before, "ADD and DEL");
}

#[test]
fn disabled_interface_excludes_ipam_except_for_del() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("pod1");
    let before = ctx.snapshot();
    let conf = config("1.0.0", &json!({"disableContainerInterface": true, "ipam": {"type": "stub"}}));
    let failure = ctx.fail("ADD", &pod.attachment("eth0"), &conf);
    assert_eq!(failure.pair(), (7, "cannot use IPAM when DisableContainerInterface flag is set".to_owned()));
    assert_unchanged(&ctx.node, &before, "a refused ADD");
    assert!(stub.calls().is_empty());
    ctx.del(&pod.attachment("eth0"), &conf);
    assert_eq!(stub.calls(), ["DEL"]);
}
