//! Sysctls of the host that interface plugins set.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::sysctl;
use ipnetwork::IpNetwork;

use crate::check;

/// The forwarding sysctls for the families of these addresses.
fn forwarding(addresses: &[IpNetwork]) -> impl Iterator<Item = &'static str> {
    let has = |family| addresses.iter().any(|address| IpFamily::of(address.ip()) == family);
    [(IpFamily::V4, "net/ipv4/ip_forward"), (IpFamily::V6, "net/ipv6/conf/all/forwarding")]
        .into_iter()
        .filter_map(move |(family, setting)| has(family).then_some(setting))
}

/// Enables forwarding on the host for the families of these addresses.
pub fn ensure_forwarding(addresses: &[IpNetwork]) -> Result<(), CniError> {
    forwarding(addresses)
        .try_for_each(|setting| sysctl::ensure(setting, "1").context(|| "failed to enable forwarding"))
}

/// Checks that forwarding is on for the families of these addresses.
pub fn check_forwarding(addresses: &[IpNetwork]) -> Result<(), CniError> {
    for setting in forwarding(addresses) {
        let value = sysctl::read(setting).context(|| format!("read {setting}"))?;
        check::ensure(value == "1", || format!("forwarding is off: {setting} is {value}"))?;
    }
    Ok(())
}

/// Turns duplicate address detection off for a link of the host, so that its link-local address can be used at once: the
/// host solicits its neighbours from it. A kernel without IPv6 has no such sysctl.
pub fn skip_duplicate_address_detection(link: &str) {
    let _ = sysctl::write(&format!("net/ipv6/conf/{link}/accept_dad"), "0");
}

/// Keeps routers in containers from configuring the host. A kernel without IPv6 has no such sysctl.
pub fn ignore_router_advertisements(link: &str) {
    let _ = sysctl::write(&format!("net/ipv6/conf/{link}/accept_ra"), "0");
}
