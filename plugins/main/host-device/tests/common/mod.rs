//! A node with a device.
#![allow(dead_code)] // each test program uses a part

use cni_lab::testing::{Origin, PluginDir, TestContext, network_config, overlay};
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use serde_json::{Value, json};

pub(crate) const RECORDS: &str = "/run/cni/host-device";

/// A node with the device `hd0`, which is up and has addresses and routes, and with the folder of the records, which DEL
/// does not remove.
pub(crate) fn node() -> TestContext {
    let ctx = TestContext::new(PluginDir::new(env!("CARGO_BIN_EXE_host-device"), Origin::Ours));
    ctx.node
        .sh("ip link add hd0 type veth peer name hd1; ip link set hd1 up; ip link set hd0 up
             mkdir -m 700 /run/cni/host-device
             ip address add 10.9.0.1/24 dev hd0; ip -6 address add fd00:9::1/64 dev hd0 nodad
             ip route add 10.99.0.0/16 via 10.9.0.7; ip -6 route add fd00:99::/64 via fd00:9::7")
        .unwrap();
    let is_ready = || ctx.node.sh("ip -6 route show table local | grep -q fd00:9::1").is_ok();
    assert!(eventually(TIMEOUT, is_ready));
    ctx
}

/// Panics if the node differs from the snapshot. The kernel adds the local route of an IPv6 address some time after the
/// address.
pub(crate) fn assert_as(before: &Snapshot, ctx: &TestContext, what: &str) {
    eventually(TIMEOUT, || before.diff(&ctx.snapshot()).is_empty());
    assert_eq!(before.diff(&ctx.snapshot()), "", "{what}");
}

pub(crate) fn config(keys: &Value) -> Value {
    let conf = network_config("host-device", "1.0.0", &json!({"device": "hd0"}));
    overlay(&conf, keys)
}
