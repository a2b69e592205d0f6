//! kube-proxy's mode `ipvs`.

use std::fs;

/// Its packets do not pass the hook `forward`.
pub(super) const REASON: &str = "IPVS has services on this node (kube-proxy's mode ipvs): it sends packets to pods as if the node had made them, so no policy judges them; use the mode nftables or iptables";

/// The lines of the file before the services.
const HEAD: usize = 3;

/// Whether IPVS has a service in this network namespace.
pub(super) fn is_used() -> bool {
    fs::read_to_string("/proc/thread-self/net/ip_vs").is_ok_and(|text| text.lines().count() > HEAD)
}
