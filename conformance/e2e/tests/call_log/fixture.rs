//! A node without configuration files, and calls with a log.

use cni_lab::Place as _;
use cni_lab::testing::{Origin, PluginDir, TestContext};
use serde_json::Value;

/// The variable that switches the log on and off.
pub(crate) const VARIABLE: &str = "CNI_FERRULE_LOG";
/// A log in the node.
pub(crate) const LOG: &str = "/run/calls";

/// The runtime's span.
pub(crate) const TRACED: [(&str, &str); 3] = [
    ("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("TRACESTATE", "vendor=1"),
    ("BAGGAGE", "tenant=blue"),
];

/// A node on which the plugin is installed, and host-local for the bridge, with an empty `/etc/cni`.
pub(crate) fn node(plugin: &str) -> TestContext {
    let delegates: &[&str] = if plugin == "bridge" { &["host-local"] } else { &[] };
    let ctx = TestContext::new(PluginDir::installed(Origin::Ours, plugin).with(Origin::Ours, delegates));
    ctx.node.sh("mount -t tmpfs tmpfs /etc && mkdir /etc/cni").unwrap();
    ctx
}

/// The same node with the log switched to this value.
pub(crate) fn with_log(ctx: &TestContext, value: &str) -> TestContext {
    with_env(ctx, &[(VARIABLE, value)])
}

/// The same node, whose runtime has these variables.
pub(crate) fn with_env(ctx: &TestContext, variables: &[(&str, &str)]) -> TestContext {
    let mut ctx = ctx.clone();
    ctx.env.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    ctx
}

/// The calls in a log file of the node.
pub(crate) fn lines(ctx: &TestContext, path: &str) -> Vec<Value> {
    let text = ctx.node.read_file(path).unwrap();
    assert!(text.ends_with('\n'), "{text}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
        .collect()
}
