//! Calls to a host port.

use std::net::IpAddr;
use std::time::Duration;

use conformance::fixture::{Place, eventually};

/// The port of the node, and the container's that it leads to.
pub(crate) const PORTS: (u16, u16) = (8080, 80);

/// What has to run in the container: it takes the calls, one after the other.
pub(crate) const SERVER: [&str; 4] = ["iperf3", "--server", "--port", "80"];

/// Fails unless a call to that address of the node is answered, by a server that may just be starting.
pub(crate) fn assert_answered(caller: &impl Place, node: IpAddr) {
    let mut last = None;
    eventually(Duration::from_secs(5), || {
        last = call(caller, node).err();
        last.is_none()
    });
    assert!(last.is_none(), "{:#}", last.unwrap());
}

/// Fails unless a call is refused: the port is closed.
pub(crate) fn assert_closed(caller: &impl Place, node: IpAddr) {
    let error = call(caller, node).expect_err("the host port is answered").to_string();
    assert!(error.contains("Connection refused"), "{error}");
}

/// Sends a thousand bytes and waits until the other side has confirmed them.
fn call(caller: &impl Place, node: IpAddr) -> anyhow::Result<()> {
    let (node, port) = (node.to_string(), PORTS.0.to_string());
    let script = format!("timeout 5 iperf3 --client {node} --port {port} --bytes 1K --length 1K 2>&1 >&-");
    caller.sh(&script).map(drop)
}
