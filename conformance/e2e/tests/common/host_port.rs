//! Connections to a host port.

use std::net::IpAddr;

use anyhow::bail;
use cni_lab::{Place, TIMEOUT, eventually};

/// The host port, and the container's port that it leads to.
pub(crate) const PORTS: (u16, u16) = (8080, 80);

/// The server command for the container; it handles one connection at a time.
pub(crate) const SERVER: [&str; 4] = ["iperf3", "--server", "--port", "80"];

/// Fails unless the host port answers on this address of the node. Waits for a server that is starting or still busy
/// with the connection before.
pub(crate) fn answered(caller: &impl Place, node: IpAddr) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    eventually(TIMEOUT, || {
        outcome = call(caller, node);
        outcome.is_ok()
    });
    outcome
}

/// Fails unless a connection is refused because the port is closed.
pub(crate) fn closed(caller: &impl Place, node: IpAddr) -> anyhow::Result<()> {
    match call(caller, node) {
        Ok(()) => bail!("the host port is open"),
        Err(error) if error.to_string().contains("Connection refused") => Ok(()),
        Err(error) => Err(error),
    }
}

/// Sends 1000 bytes and waits until the server has confirmed them.
fn call(caller: &impl Place, node: IpAddr) -> anyhow::Result<()> {
    let port = PORTS.0;
    caller.sh(&format!("timeout 5 iperf3 --client {node} --port {port} --bytes 1K --length 1K")).map(drop)
}
