//! What only the tests of flannel need.
#![allow(dead_code)] // each test program uses a part

use cni_lab::Place as _;
use cni_lab::testing::{Origin, PluginDir, StubIpam, TestContext, network_config};
use serde_json::{Value, json};

/// What flannel's daemon writes for both families.
pub(crate) const SUBNET_ENV: &str = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.9.1/24\n\
    FLANNEL_IPV6_NETWORK=fd00:1::/48\nFLANNEL_IPV6_SUBNET=fd00:1:0:9::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// Writes what flannel's daemon writes.
pub(crate) fn write_env(ctx: &TestContext, text: &str) {
    ctx.node.sh("mkdir -p /run/flannel").unwrap();
    ctx.node.write_file("/run/flannel/subnet.env", text).unwrap();
}

/// A node where flannel's daemon runs, with all plugins in one program.
pub(crate) fn ours() -> TestContext {
    let plugins = PluginDir::installed(Origin::Ours, "flannel");
    let ctx = TestContext::new(plugins.with(Origin::Ours, &["bridge", "host-local", "loopback"]));
    write_env(&ctx, SUBNET_ENV);
    ctx
}

/// A node where flannel's daemon runs, with the program that cargo has built and a stub as the delegate.
pub(crate) fn with_stub(stub: &StubIpam) -> TestContext {
    let mut ctx = TestContext::new(PluginDir::new(env!("CARGO_BIN_EXE_flannel"), Origin::Ours));
    ctx.path = format!("{}:{}", stub.dir().display(), ctx.path);
    write_env(&ctx, SUBNET_ENV);
    ctx
}

/// The configuration of network `net` as in flannel's manifest and in k3s.
pub(crate) fn config(keys: &Value) -> Value {
    let delegate = json!({"hairpinMode": true, "forceAddress": true, "isDefaultGateway": true});
    let mut conf = network_config("flannel", "1.1.0", &json!({"delegate": delegate}));
    conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    conf
}

/// The same with the stub as the delegate.
pub(crate) fn to_stub(keys: &Value) -> Value {
    let mut conf = config(keys);
    conf["delegate"] = json!({"type": "stub"});
    conf
}

/// The state files.
pub(crate) fn states(ctx: &TestContext) -> Vec<String> {
    ctx.node.list_dir("/var/lib/cni/flannel").unwrap_or_default()
}
