//! The tests that all plugins of one link share.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::Place as _;
use cni_lab::testing::TestContext;
use cni_lab::testing::link_plugin::{self, CHANGES};
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

#[test]
fn takes_turns_with_the_reference() {
    link_plugin::takes_turns_with_the_reference(&node(), "macvlan", &conf());
}

#[test]
fn dhcp_finds_the_link() {
    link_plugin::dhcp_finds_the_link(&node(), &conf());
}
