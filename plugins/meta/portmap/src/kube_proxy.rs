//! The mode of kube-proxy.

use ferrule_kernel::netlink::Socket;

/// The dummy link on which kube-proxy keeps the addresses of Services in IPVS mode.
pub const LINK: &str = "kube-ipvs0";

/// Whether kube-proxy runs in IPVS mode: then the addresses of Services are local.
pub fn is_ipvs(socket: &Socket) -> bool {
    socket.has_link(LINK)
}
