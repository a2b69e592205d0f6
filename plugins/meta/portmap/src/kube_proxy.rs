//! The mode of kube-proxy.

use ferrule_kernel::sysctl;

/// The dummy link on which kube-proxy keeps the addresses of Services in IPVS mode.
pub const LINK: &str = "kube-ipvs0";

/// Whether kube-proxy runs in IPVS mode: then the addresses of Services are local.
pub fn is_ipvs() -> bool {
    sysctl::exists(&format!("net/ipv4/conf/{LINK}"))
}
