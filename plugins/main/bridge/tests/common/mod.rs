//! What only the tests of bridge need.

// Every test binary compiles all of these helpers and uses only some.
#![allow(dead_code)]

use cni_lab::testing::{Origin, PluginDir, StubIpam, TestContext, network_config, overlay};
use cni_lab::{Client, Place as _, Snapshot, TIMEOUT, eventually};
use serde_json::{Value, json};

/// Snapshot lines of objects that belong to the network, not to an attachment: the bridge of [`config`] with
/// its addresses and routes, forwarding, and host-local's bookkeeping. A failed ADD and a DEL leave them.
pub(crate) const SHARED: [&str; 11] = [
    "link: br0 ",
    "address: br0 ",
    "dev=br0",
    "ip_forward",
    "all/forwarding",
    "last_reserved_ip.",
    "/lock 0",
    "/var/lib/cni/networks/ ",
    "/var/lib/cni/networks/net/ ",
    "/.ferrule/ ",
    "/.ferrule/net/ ",
];

/// The bridge plugin, host-local and loopback.
pub(crate) fn plugins(origin: Origin) -> PluginDir {
    PluginDir::new(env!("CARGO_BIN_EXE_bridge"), origin).with(origin, &["host-local", "loopback"])
}

/// A node with our plugins.
pub(crate) fn ours() -> TestContext {
    TestContext::new(plugins(Origin::Ours))
}

/// The same node with a program whose ADD is the repair of bridge.
pub(crate) fn repairing(ctx: &TestContext) -> TestContext {
    TestContext { plugin: env!("CARGO_BIN_EXE_bridge-repair").into(), ..ctx.clone() }
}

/// A node with our plugins and a stub IPAM plugin.
pub(crate) fn with_stub(stub: &StubIpam) -> TestContext {
    let mut ctx = ours();
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    ctx
}

/// The configuration of network `net` on bridge `br0`, merged with `keys`.
pub(crate) fn config(version: &str, keys: &Value) -> Value {
    network_config("bridge", version, &overlay(&json!({"bridge": "br0"}), keys))
}

/// Waits until no address of the node and the client is tentative: they solicit each other from their
/// link-local addresses, which cannot be used during duplicate address detection.
pub(crate) fn wait_for_dad(ctx: &TestContext, client: &Client) {
    let is_ready = || {
        let tentative = "ip -6 address show tentative";
        ctx.node.sh(tentative).unwrap().is_empty() && client.sh(tentative).unwrap().is_empty()
    };
    assert!(eventually(TIMEOUT, is_ready));
}

/// Panics if the node differs from the snapshot, apart from [`SHARED`].
pub(crate) fn assert_only_shared_changed(ctx: &TestContext, before: &Snapshot, what: &str) {
    let difference = before.clone().ignoring(&SHARED).diff(&ctx.snapshot().ignoring(&SHARED));
    assert_eq!(difference, "", "{what}");
}
