//! The mode of kube-proxy.

use ferrule_kernel::netlink::link;

/// The dummy link on which kube-proxy keeps the addresses of Services in IPVS mode.
pub const LINK: &str = "kube-ipvs0";

/// Whether kube-proxy runs in IPVS mode: then the addresses of Services are local.
/// A process that cannot ask cannot change the table either, and its next step fails.
pub fn is_ipvs() -> bool {
    link::exists(LINK).unwrap_or_default()
}
