//! Sysctls of the host that interface plugins set.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::sysctl;
use ipnetwork::IpNetwork;

use crate::check;

/// The forwarding sysctls for the families of these addresses.
fn forwarding(addresses: &[IpNetwork]) -> impl Iterator<Item = &'static str> {
    let has = |is_ipv4| addresses.iter().any(|address| address.is_ipv4() == is_ipv4);
    let settings = [(has(true), "net/ipv4/ip_forward"), (has(false), "net/ipv6/conf/all/forwarding")];
    settings.into_iter().filter_map(|(is_needed, setting)| is_needed.then_some(setting))
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

/// Keeps routers in containers from configuring the host. A kernel without IPv6 has no such sysctl.
pub fn ignore_router_advertisements(link: &str) {
    let _ = sysctl::write(&format!("net/ipv6/conf/{link}/accept_ra"), "0");
}
