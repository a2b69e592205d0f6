//! The tests that all plugins of one link share.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::Place as _;
use cni_lab::testing::link_plugin::{self, CHANGES};
use cni_lab::testing::{TestContext, overlay, with_prev};
use serde_json::{Value, json};

fn node() -> TestContext {
    let ctx = link_plugin::ours(env!("CARGO_BIN_EXE_macvlan"));
    link_plugin::uplink(&ctx);
    ctx
}

fn conf() -> Value {
    link_plugin::config("macvlan", "1.0.0", &json!({"master": "uplink0", "mtu": 1450, "dad": "nowait"}))
}

#[test]
fn del_cleans_up_after_kills() {
    link_plugin::del_cleans_up_after_kills(&node(), &conf());
}

#[test]
fn del_needs_nothing() {
    link_plugin::del_needs_nothing(&node(), &conf());
}

#[test]
fn del_leaves_no_address() {
    link_plugin::del_leaves_no_address(&node(), &conf(), &conf(), true);
}

#[test]
fn a_doubtful_del_frees_no_address() {
    link_plugin::a_doubtful_del_frees_no_address(&node(), &conf());
}

#[test]
fn failed_adds_leave_nothing() {
    link_plugin::failed_adds_leave_nothing(&node(), &conf());
}

#[test]
fn check_notices_every_change() {
    let ctx = node();
    ctx.node.sh("ip link add other0 type veth peer name other1").unwrap();
    let own = [
        (
            "ip link set eth0 type macvlan mode vepa",
            "macvlan \"eth0\" has mode vepa, the configuration says mode bridge",
        ),
        ("ip link set eth0 address 02:00:00:00:00:99", "MAC address"),
        (
            "node:ip link set uplink0 name renamed0; ip link set other0 name uplink0",
            "the master of \"eth0\" is \"renamed0\", not \"uplink0\"",
        ),
    ];
    link_plugin::check_notices(&ctx, &conf(), &[&CHANGES[..], &own[..]].concat());
}

/// State, addresses and routes of the link are made again. The mode is not.
#[test]
fn repair_completes_the_link() {
    let ctx = node();
    let repair = TestContext { plugin: env!("CARGO_BIN_EXE_macvlan-repair").into(), ..ctx.clone() };
    let pod = ctx.pod("pod1");
    let attachment = pod.attachment("eth0");
    let conf = with_prev(&conf(), &ctx.add(&attachment, &conf()));
    for script in [
        "ip link set eth0 down",
        "ip address flush dev eth0 scope global",
        "ip route del 10.9.0.0/16",
        "ip address flush dev eth0; ip link set eth0 down",
    ] {
        pod.sh(script).unwrap();
        ctx.fail("CHECK", &attachment, &conf);
        repair.add(&attachment, &conf);
        ctx.check(&attachment, &conf);
    }
    pod.sh("ip link set eth0 type macvlan mode vepa").unwrap();
    repair.add(&attachment, &conf);
    ctx.fail("CHECK", &attachment, &conf).expect(999, "has mode vepa");
    pod.sh("ip link del eth0").unwrap();
    let text = "the container has no interface \"eth0\", start the container again";
    repair.fail("ADD", &attachment, &conf).expect(999, text);
}

#[test]
fn takes_turns_with_the_reference() {
    link_plugin::takes_turns_with_the_reference(&node(), "macvlan", &conf());
}

#[test]
fn dhcp_finds_the_link() {
    link_plugin::dhcp_finds_the_link(&node(), &conf());
}

#[test]
fn repair_accepts_router_advertisements_again() {
    let ctx = node();
    let pod = ctx.pod("pod");
    let eth0 = pod.attachment("eth0");
    let result = ctx.add(&eth0, &conf());
    let waiting = overlay(&with_prev(&conf(), &result), &json!({"waitForRA": 5}));
    let damage = "sysctl -qw net.ipv6.conf.eth0.accept_ra=0";
    let error = ctx.mend(env!("CARGO_BIN_EXE_macvlan-repair"), &eth0, &waiting, &pod, damage);
    error.expect(999, "interface \"eth0\" of the container does not accept router advertisements");
    ctx.del(&eth0, &conf());
}
