//! What only the tests of ptp need.
#![allow(dead_code)] // each test program uses a part

use cni_lab::Snapshot;
use cni_lab::testing::{Origin, PluginDir, StubIpam, TestContext, host_local, network_config, overlay};
use serde_json::{Value, json};

/// Snapshot lines that outlive an attachment: forwarding, host-local's bookkeeping, and the tables for masquerading.
const SHARED: [&str; 6] =
    ["ip_forward", "all/forwarding", "/var/lib/cni/networks", "nft ", "-save nat: table", "-save nat: :"];

/// A node with our ptp and host-local.
pub(crate) fn ours() -> TestContext {
    TestContext::new(
        PluginDir::new(env!("CARGO_BIN_EXE_ptp"), Origin::Ours).with(Origin::Ours, &["host-local"]),
    )
}

/// The same node with a program whose ADD is the repair of ptp.
pub(crate) fn repairing(ctx: &TestContext) -> TestContext {
    TestContext { plugin: env!("CARGO_BIN_EXE_ptp-repair").into(), ..ctx.clone() }
}

/// A node with our ptp and a stub IPAM plugin.
pub(crate) fn with_stub(stub: &StubIpam) -> TestContext {
    let mut ctx = ours();
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    ctx
}

/// The configuration of network `net`, merged with `keys`.
pub(crate) fn config(version: &str, keys: &Value) -> Value {
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let ipam = overlay(&host_local(&["10.1.2.0/24", "fd00:1::/64"]), &json!({"routes": routes}));
    network_config("ptp", version, &overlay(&json!({"ipam": ipam}), keys))
}

/// The name of the host's end in a result.
pub(crate) fn host_end(result: &Value) -> &str {
    result["interfaces"][0]["name"].as_str().unwrap()
}

/// The node's state without [`SHARED`].
pub(crate) fn snapshot(ctx: &TestContext) -> Snapshot {
    ctx.snapshot().ignoring(&SHARED)
}

/// Panics if the node differs from the snapshot, or if a reservation or a masquerading rule is left.
pub(crate) fn assert_nothing_left(ctx: &TestContext, before: &Snapshot, what: &str) {
    use cni_lab::Place as _;
    assert_eq!(before.diff(&snapshot(ctx)), "", "{what}");
    assert_eq!(ctx.reservations("net"), Vec::<String>::new(), "{what}");
    let rules = ctx.node.sh("nft list ruleset; iptables-legacy-save -t nat 2>/dev/null || true").unwrap();
    assert!(!rules.contains("masquerade comment") && !rules.contains("CNI-"), "{what}\n{rules}");
}
