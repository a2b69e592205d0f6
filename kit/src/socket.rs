//! Netlink sockets, with the errors of CNI.

use cni_common::netns::Netns;
use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::features::Ethtool;

use crate::netns::enter;

/// A socket on the host for links, addresses, routes and qdiscs.
pub fn route() -> Result<Socket, CniError> {
    Socket::route().context(|| "open a netlink socket")
}

/// As [`route`], in the container's network namespace.
pub fn route_in(netns: &Netns) -> Result<Socket, CniError> {
    let socket = enter(netns, || Socket::route().context(|| "open a netlink socket in the container"))?;
    Ok(socket.of_container())
}

/// A socket on the host for nf_tables and connection tracking.
pub fn netfilter() -> Result<Socket, CniError> {
    Socket::netfilter().context(|| "open a netfilter socket")
}

/// A socket for the offload features of the links in the container's network namespace.
pub fn ethtool_in(netns: &Netns) -> Result<Ethtool, CniError> {
    enter(netns, || Ethtool::open().context(|| "open a socket for ethtool in the container"))
}
