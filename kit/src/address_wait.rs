//! Waits until new IPv6 addresses can be used.
//!
//! Without duplicate address detection (DAD), the kernel must answer neighbour solicitations. Neighbours solicit an address
//! through its solicited-node multicast group. The kernel joins that group in a work queue that takes the RTNL lock: at once on an
//! idle machine, milliseconds later on one that starts and stops containers. A solicitation that arrives earlier is lost, and the
//! neighbour repeats it after one second.

use std::net::Ipv6Addr;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::addr::{DAD_FAILED, TENTATIVE};
use ferrule_kernel::netlink::link::OPER_UP;
use ferrule_kernel::netlink::{Link, LinkId, Socket};
use ferrule_kernel::observer;
use ipnetwork::IpNetwork;

/// After this time ADD goes on: the address will answer a little later.
pub const GROUPS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the kernel may take for DAD: one probe after a random delay of up to one second, and one second for an
/// answer. The reference waits as long.
const DAD_TIMEOUT: Duration = Duration::from_secs(5);
const DAD_PAUSE: Duration = Duration::from_millis(10);

/// What duplicate address detection does with new IPv6 addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dad {
    /// The addresses can be used at once.
    #[default]
    Off,
    /// ADD does not wait for the outcome.
    NoWait,
    /// ADD waits, and fails if another host has one of the addresses.
    Wait,
}

impl Dad {
    /// The value of the key `dad`. An empty text means `wait`.
    ///
    /// # Errors
    /// Code 7 if it is another one.
    pub fn parse(text: &str) -> Result<Dad, CniError> {
        match text {
            "" | "wait" => Ok(Dad::Wait),
            "nowait" => Ok(Dad::NoWait),
            "off" => Ok(Dad::Off),
            other => Err(CniError::invalid_config(format!("unknown dad: {other:?}"))
                .with_details("wait, nowait and off are known")),
        }
    }
}

/// Waits until the link has joined the groups of all IPv6 addresses in `addresses`.
pub fn wait_for_groups(socket: &mut Socket, link: u32, addresses: &[IpNetwork]) {
    let wanted: Vec<Ipv6Addr> = addresses.iter().filter_map(group).collect();
    if wanted.is_empty() {
        return;
    }
    let end = Instant::now() + GROUPS_TIMEOUT;
    let mut pause = Duration::from_micros(50);
    while let Ok(joined) = socket.groups(link) {
        if wanted.iter().all(|group| joined.contains(group)) || Instant::now() >= end {
            return;
        }
        observer::step("wait for IPv6 addresses", || thread::sleep(pause));
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// The address's solicited-node group (RFC 4291, section 2.7.1); `None` for IPv4.
fn group(address: &IpNetwork) -> Option<Ipv6Addr> {
    let IpNetwork::V6(v6) = address else { return None };
    let [.., high, low] = v6.ip().segments();
    Some(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low))
}

/// Waits until the kernel has found that no other host on the network has one of these addresses. The kernel does not begin
/// before the link has a carrier, which may need a cable: a link that has none after 5 s is no error.
///
/// # Errors
/// Another host has one of the addresses, or DAD has not ended after 5 s.
pub fn wait_for_dad(socket: &mut Socket, link: &Link, addresses: &[IpNetwork]) -> Result<(), CniError> {
    let name = &link.name;
    let end = Instant::now() + DAD_TIMEOUT;
    while addresses.iter().any(IpNetwork::is_ipv6) {
        let mut present =
            socket.addresses(link.index).context(|| format!("list the addresses of {name:?}"))?;
        present.retain(|present| addresses.contains(&present.network));
        // The kernel keeps a duplicate tentative.
        if let Some(duplicate) = present.iter().find(|address| address.flags & DAD_FAILED != 0) {
            return Err(duplicate_of(name, duplicate.network));
        }
        let Some(pending) = present.iter().find(|address| address.flags & TENTATIVE != 0) else { break };
        if Instant::now() >= end {
            let now = socket.link(LinkId::Index(link.index));
            if matches!(now, Ok(Some(link)) if link.operstate != OPER_UP) {
                break;
            }
            let (address, limit) = (pending.network, DAD_TIMEOUT.as_secs());
            return Err(CniError::internal(format!(
                "duplicate address detection of {address} on {name:?} has not ended after {limit} s"
            )));
        }
        observer::step("wait for duplicate address detection", || thread::sleep(DAD_PAUSE));
    }
    Ok(())
}

/// The error for an address that another host has.
pub(crate) fn duplicate_of(ifname: &str, address: IpNetwork) -> CniError {
    CniError::internal(format!("duplicate address detection of {ifname:?}: another host has {address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_ends_in_the_addresss_last_three_bytes() {
        let group = |text: &str| group(&text.parse().unwrap()).map(|group| group.to_string());
        assert_eq!(group("2001:db8::12ab:3456/64").as_deref(), Some("ff02::1:ffab:3456"));
        assert_eq!(group("10.1.2.3/24"), None);
    }
}
