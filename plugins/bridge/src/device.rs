//! The bridge itself, which all attachments of a network (and perhaps other networks) share. It is made once and stays.

use std::hash::{BuildHasher, Hasher, RandomState};

use cni_common::netlink::link::{self, IFF_PROMISC, IFF_UP};
use cni_common::netlink::{Link, LinkId, Mac, Socket, addr};
use cni_common::spec::{CniError, Step};
use cni_common::sysctl;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::config::Conf;

/// The kind of link.
pub const KIND: &str = "bridge";
/// `RT_SCOPE_LINK`: the scope of the addresses that IPv6 gives every link.
const SCOPE_LINK: u8 = 253;

/// The bridge of the configuration; it is made if it does not exist, and mended if it is down or has no hardware address.
///
/// # Errors
/// `"x" already exists but is not a bridge`, or what the kernel said.
pub fn ensure(socket: &mut Socket, conf: &Conf) -> Result<Link, CniError> {
    let name = conf.bridge.as_str();
    let lookup = || format!("look up bridge {name:?}");
    let Some(bridge) = socket.link(LinkId::Name(name)).step(lookup)? else {
        return create(socket, conf);
    };
    if bridge.kind != KIND {
        return Err(CniError::internal(format!("{name:?} already exists but is not a bridge")));
    }
    let mut repairs = Vec::new();
    let wanted = IFF_UP | if conf.promiscuous { IFF_PROMISC } else { 0 };
    if bridge.flags & wanted != wanted {
        repairs.push(link::set_flags(bridge.index, wanted, wanted));
    }
    let mut bridge = bridge;
    if bridge.mac.is_zero() {
        // What the reference leaves when the last port goes from a bridge whose address followed its ports.
        bridge.mac = random_mac();
        repairs.push(link::set_mac(bridge.index, bridge.mac));
    }
    if repairs.is_empty() {
        return Ok(bridge);
    }
    for answer in socket.requests(repairs) {
        answer.step(|| format!("set up bridge {name:?}"))?;
    }
    Ok(bridge)
}

fn create(socket: &mut Socket, conf: &Conf) -> Result<Link, CniError> {
    let name = conf.bridge.as_str();
    let step = || format!("could not add {name:?}");
    let request = link::new_bridge(name, random_mac(), conf.mtu, conf.promiscuous);
    let [made, found] = two(socket.requests(vec![request, link::get(LinkId::Name(name))])).step(step)?;
    match made {
        Err(error) if error.errno != Errno::EEXIST => return Err(error).step(step),
        // Another ADD was faster.
        _ => {}
    }
    let bridge = link::read(found).step(step)?.filter(|bridge| bridge.kind == KIND);
    let bridge =
        bridge.ok_or_else(|| CniError::internal(format!("{name:?} already exists but is not a bridge")))?;
    ignore_router_advertisements(name);
    // The bridge gets its link-local address with its first port. The host solicits containers from there, which it could not
    // do for the first second or two if it waited for others to object. A kernel without IPv6 has nothing to set.
    let _ = sysctl::write(&format!("net/ipv6/conf/{name}/accept_dad"), "0");
    Ok(bridge)
}

/// The two answers to two requests.
pub fn two<T>(answers: Vec<T>) -> Result<[T; 2], Errno> {
    answers.try_into().map_err(|_| Errno::EPROTO)
}

/// Routers in containers shall not configure the host. A kernel without IPv6 has nothing to set.
pub fn ignore_router_advertisements(link: &str) {
    let _ = sysctl::write(&format!("net/ipv6/conf/{link}/accept_ra"), "0");
}

/// Gives the bridge the gateways' addresses, and keeps its hardware address what it is. Nobody is asked whether an IPv6
/// address is free (DAD): the first container would be without its gateway for the second or two that this takes.
///
/// An address whose subnet overlaps a gateway's is in the way: with `forceAddress` it is removed, else it is an error.
///
/// # Errors
/// `"cni0" already has an IP address different from 10.1.2.1/24`, or what the kernel said.
pub fn ensure_gateways(
    socket: &mut Socket,
    bridge: &Link,
    gateways: &[IpNetwork],
    force: bool,
) -> Result<(), CniError> {
    let name = &bridge.name;
    let present = socket.addresses(bridge.index).step(|| format!("list the addresses of {name:?}"))?;
    let mut changes = Vec::new();
    for gateway in
        gateways.iter().filter(|gateway| !present.iter().any(|address| address.network == **gateway))
    {
        let in_the_way = |address: &&addr::Address| {
            address.scope != SCOPE_LINK
                && overlap(address.network, *gateway)
                && !gateways.contains(&address.network)
        };
        for address in present.iter().filter(in_the_way) {
            if !force {
                let msg = format!("{name:?} already has an IP address different from {gateway}");
                return Err(CniError::internal(msg).with_details(format!("it has {}", address.network)));
            }
            let step = link_change("remove", address.network);
            changes.push((step, Some(Errno::EADDRNOTAVAIL), addr::delete(bridge.index, address.network)));
        }
        let step = link_change("add", *gateway);
        changes.push((step, Some(Errno::EEXIST), addr::add(bridge.index, *gateway, addr::NODAD)));
    }
    if changes.is_empty() {
        return Ok(());
    }
    changes.push(("pin the hardware address".to_owned(), None, link::set_mac(bridge.index, bridge.mac)));
    let (steps, requests): (Vec<_>, Vec<_>) =
        changes.into_iter().map(|(step, done, request)| ((step, done), request)).unzip();
    for ((step, done), answer) in steps.into_iter().zip(socket.requests(requests)) {
        match answer {
            // Another ADD was faster. What says so differs: an address that cannot be added at all is "not available" too.
            Err(error) if Some(error.errno) == done => {}
            answer => drop(answer.step(|| format!("{name:?}: {step}"))?),
        }
    }
    Ok(())
}

fn link_change(what: &str, network: IpNetwork) -> String {
    format!("{what} address {network}")
}

/// Whether the subnets have an address in common.
fn overlap(a: IpNetwork, b: IpNetwork) -> bool {
    a.contains(b.network()) || b.contains(a.network())
}

/// Lets the host forward between its links, for the families of these addresses.
///
/// # Errors
/// What the kernel said.
pub fn ensure_forwarding(addresses: &[IpNetwork]) -> Result<(), CniError> {
    for (is_ipv4, setting) in FORWARDING {
        if addresses.iter().any(|address| address.is_ipv4() == is_ipv4) {
            sysctl::ensure(setting, "1").step(|| "failed to enable forwarding")?;
        }
    }
    Ok(())
}

/// The setting that lets each family (true is IPv4) be forwarded.
pub const FORWARDING: [(bool, &str); 2] =
    [(true, "net/ipv4/ip_forward"), (false, "net/ipv6/conf/all/forwarding")];

/// A locally administered address that no other link here is likely to have.
fn random_mac() -> Mac {
    // The standard library's hasher is seeded by the kernel's random numbers.
    let [a, b, c, d, e, f, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    Mac::local([a, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_overlap_if_one_holds_the_other() {
        let net = |text: &str| text.parse::<IpNetwork>().unwrap();
        assert!(overlap(net("10.1.2.1/24"), net("10.1.2.9/16")));
        assert!(overlap(net("10.1.2.9/16"), net("10.1.2.1/24")));
        assert!(!overlap(net("10.1.2.1/24"), net("10.1.3.1/24")));
        assert!(!overlap(net("10.1.2.1/24"), net("fd00::1/64")));
    }

    #[test]
    fn random_addresses_are_local_and_differ() {
        let (a, b) = (random_mac(), random_mac());
        assert_ne!(a, b);
        assert!(a.is_unicast() && a.0[0] & 2 == 2);
    }
}
