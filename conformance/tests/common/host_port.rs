//! Calls to a host port.

use std::net::IpAddr;

use anyhow::bail;
use conformance::fixture::{PATIENCE, Place, eventually};

/// The port of the node, and the container's that it leads to.
pub(crate) const PORTS: (u16, u16) = (8080, 80);

/// What has to run in the container: it takes the calls, one after the other.
pub(crate) const SERVER: [&str; 4] = ["iperf3", "--server", "--port", "80"];

/// Fails unless a call to that address of the node is answered, by a server that may just be starting.
pub(crate) fn answered(caller: &impl Place, node: IpAddr) -> anyhow::Result<()> {
    eventually(PATIENCE, || call(caller, node).is_ok());
    call(caller, node)
}

/// Fails unless a call is refused: the port is closed.
pub(crate) fn closed(caller: &impl Place, node: IpAddr) -> anyhow::Result<()> {
    match call(caller, node) {
        Ok(()) => bail!("the host port is answered"),
        Err(error) if error.to_string().contains("Connection refused") => Ok(()),
        Err(error) => Err(error),
    }
}

/// Sends a thousand bytes and waits until the other side has confirmed them.
fn call(caller: &impl Place, node: IpAddr) -> anyhow::Result<()> {
    let port = PORTS.0;
    caller.sh(&format!("timeout 5 iperf3 --client {node} --port {port} --bytes 1K --length 1K")).map(drop)
}
