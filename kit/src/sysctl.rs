//! Sysctls of the host that interface plugins set.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::sysctl;
use ipnetwork::IpNetwork;

use crate::check;

/// The families of these addresses, and their forwarding sysctls.
fn forwarding(addresses: &[IpNetwork]) -> impl Iterator<Item = (IpFamily, &'static str)> {
    let has = |family| addresses.iter().any(|address| IpFamily::of(address.ip()) == family);
    [(IpFamily::V4, "net/ipv4/ip_forward"), (IpFamily::V6, "net/ipv6/conf/all/forwarding")]
        .into_iter()
        .filter(move |(family, _)| has(*family))
}

/// Enables forwarding on the host for the families of these addresses. A read-only `/proc/sys` is no error if it is on already.
pub fn ensure_forwarding(host: &mut Socket, addresses: &[IpNetwork]) -> Result<(), CniError> {
    for (family, setting) in forwarding(addresses) {
        if !host.forwards(family).unwrap_or(false) {
            sysctl::write(setting, "1").context(|| "failed to enable forwarding")?;
        }
    }
    Ok(())
}

/// Checks that forwarding is on for the families of these addresses.
pub fn check_forwarding(host: &mut Socket, addresses: &[IpNetwork]) -> Result<(), CniError> {
    for (family, setting) in forwarding(addresses) {
        let is_on = host.forwards(family).context(|| format!("read {setting}"))?;
        check::ensure(is_on, || format!("forwarding is off: {setting} is 0"))?;
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
