//! The addresses of the gateways: on the bridge, or on the gateway of a VLAN.
//!
//! An IPv4 gateway permits no other IPv4 address on its link, an IPv6 gateway none whose subnet overlaps its own, as with the
//! reference. With `forceAddress` such an address goes, because another node may own its subnet by now, but not while a pod needs it:
//! `Users` asks the kernel for the addresses in the namespaces behind the bridge's ports.

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::addr::{self, Address};
use ferrule_kernel::netlink::{Link, Socket, link};
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::veth;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

/// `RT_SCOPE_LINK`: the scope of the link-local addresses that the kernel adds to every IPv6 link.
const SCOPE_LINK: u8 = 253;
/// The kernel's type of a tap device, whose virtual machine has no namespace to look at.
const TAP: &str = "tun";

/// Where the gateways' addresses go.
pub struct Place<'a> {
    /// The link that gets them.
    pub link: &'a Link,
    /// The addresses that it has, in the kernel's order.
    pub present: &'a [Address],
    /// The bridge, which may be `link` itself.
    pub bridge: &'a Link,
    /// The port of the attachment that ADD makes.
    pub port: &'a Link,
    /// `forceAddress`
    pub force: bool,
}

/// Adds the gateways' addresses, and sets the link's current MAC address explicitly, so that a bridge no longer follows the ports.
/// IPv6 addresses skip duplicate address detection: with it, the first container would have no gateway for one or two seconds.
///
/// # Errors
/// `"cni0" already has an IP address different from 10.1.2.1/24`, or the kernel's error.
pub fn ensure(socket: &mut Socket, place: &Place<'_>, gateways: &[IpNetwork]) -> Result<(), CniError> {
    let Place { link, present, force, .. } = *place;
    let name = &link.name;
    let step = |what: String, request| Step::new(format!("bridge {name:?}: {what}"), request);
    // A concurrent ADD may have made a change already. EADDRNOTAVAIL says so only for a removal: for an
    // addition it means that the kernel refuses the address.
    let (mut changes, mut users) = (Vec::new(), None);
    for gateway in gateways {
        let mut is_complete = present.iter().any(|address| address.network == *gateway);
        if is_complete && !force {
            continue;
        }
        for address in conflicts(present, *gateway, gateways) {
            if !force {
                let msg = format!("{name:?} already has an IP address different from {gateway}");
                let error = CniError::internal(msg).with_details(format!("existing address: {address}"));
                return Err(error.with_remedy("remove that address, or set \"forceAddress\""));
            }
            let users = match &mut users {
                Some(users) => users,
                none => none.insert(Users::find(socket, place)?),
            };
            if users.need(address) {
                continue;
            }
            let remove = addr::delete(link.index, address);
            changes.push(step(format!("remove address {address}"), remove).unless(&[Errno::EADDRNOTAVAIL]));
            // The kernel removes the other addresses of its subnet with it.
            is_complete = false;
        }
        if !is_complete {
            let add = addr::add(link.index, *gateway, addr::NODAD);
            changes.push(step(format!("add address {gateway}"), add).unless(&[Errno::EEXIST]));
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    changes.push(step("set the MAC address".to_owned(), link::set_mac(link.index, link.mac)));
    // The caller does not undo these: another attachment may already rely on them.
    UndoStack::default().run(socket, changes)?;
    Ok(())
}

/// The addresses that exclude the gateway. Those that come after the gateway's own do not count: they were added later.
fn conflicts<'a>(
    present: &'a [Address],
    gateway: IpNetwork,
    gateways: &'a [IpNetwork],
) -> impl Iterator<Item = IpNetwork> + 'a {
    let before = present.iter().take_while(move |address| address.network != gateway);
    let excludes = move |address: &&Address| match (address.network, gateway) {
        (IpNetwork::V4(_), IpNetwork::V4(_)) => true,
        (one, _) => address.scope != SCOPE_LINK && overlap(one, gateway),
    };
    before.filter(excludes).map(|address| address.network).filter(|one| !gateways.contains(one))
}

/// Whether the two subnets overlap.
fn overlap(a: IpNetwork, b: IpNetwork) -> bool {
    a.contains(b.network()) || b.contains(a.network())
}

/// What the pods at the other ports of the bridge have.
struct Users {
    /// The global addresses of each pod; none if they are unknown.
    addresses: Vec<Vec<IpNetwork>>,
}

impl Users {
    /// Asks for the addresses behind each port but that of the attachment. A namespace that is gone has no pod. A port of another kind,
    /// such as a NIC, leads to no pod of this node.
    fn find(socket: &mut Socket, place: &Place<'_>) -> Result<Users, CniError> {
        let Place { bridge, port: own, .. } = place;
        let ports = socket.ports(bridge.index).context(|| format!("list the ports of {:?}", bridge.name))?;
        let mut addresses = Vec::new();
        for port in ports.iter().filter(|port| port.index != own.index) {
            let is_pair = [veth::KIND, veth::NETKIT].contains(&port.kind.as_str());
            match port.peer_netns.filter(|_| is_pair) {
                Some(netns) => match addr::read_in(socket.request(addr::list_in(netns)), netns) {
                    Ok(found) => {
                        let is_own = |index| own.peer_netns == Some(netns) && own.peer == Some(index);
                        let of_others = found.into_iter().filter(|(index, _)| !is_own(*index));
                        let global = of_others.filter(|(_, address)| address.scope == 0);
                        addresses.push(global.map(|(_, address)| address.network).collect());
                    }
                    Err(error) if error.errno == Errno::EINVAL => {}
                    Err(_) => addresses.push(Vec::new()),
                },
                None if port.kind == TAP => addresses.push(Vec::new()),
                None => {}
            }
        }
        Ok(Users { addresses })
    }

    /// Whether a pod has an address of the gateway's subnet, or may have one that is not visible here, as a virtual machine has.
    fn need(&self, gateway: IpNetwork) -> bool {
        let uses = |pod: &Vec<IpNetwork>| pod.is_empty() || pod.iter().any(|one| gateway.contains(one.ip()));
        self.addresses.iter().any(uses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    #[test]
    fn subnets_overlap_if_one_contains_the_other() {
        assert!(overlap(net("10.1.2.1/24"), net("10.1.2.9/16")));
        assert!(overlap(net("10.1.2.9/16"), net("10.1.2.1/24")));
        assert!(!overlap(net("10.1.2.1/24"), net("10.1.3.1/24")));
        assert!(!overlap(net("10.1.2.1/24"), net("fd00::1/64")));
    }

    #[test]
    fn what_excludes_a_gateway() {
        let list = |texts: &[&str]| -> Vec<Address> {
            let scope = |text: &str| if text.starts_with("fe80") { SCOPE_LINK } else { 0 };
            texts.iter().map(|text| Address { network: net(text), flags: 0, scope: scope(text) }).collect()
        };
        for (present, gateways, expected) in [
            (&["10.7.0.1/24"][..], &["10.8.0.1/24"][..], &["10.7.0.1/24"][..]),
            // The second range set of the same network.
            (&["10.7.0.1/24"], &["10.8.0.1/24", "10.7.0.1/24"], &[]),
            (&["10.7.0.1/24", "10.8.0.1/24"], &["10.8.0.1/24"], &["10.7.0.1/24"]),
            (&["10.8.0.1/24", "10.7.0.1/24"], &["10.8.0.1/24"], &[]),
            (&["fd07::1/64", "fd08::9/64", "fe80::9/64"], &["fd08::1/64"], &["fd08::9/64"]),
            (&["10.7.0.1/24", "fe80::9/64"], &["fe80::1/64"], &[]),
        ] {
            let gateways: Vec<IpNetwork> = gateways.iter().map(|one| net(one)).collect();
            let present = list(present);
            let found: Vec<String> =
                conflicts(&present, gateways[0], &gateways).map(|one| one.to_string()).collect();
            assert_eq!(found, expected, "{gateways:?}");
        }
    }

    #[test]
    fn who_needs_a_gateway() {
        let need = |pods: &[&[&str]]| {
            let addresses = pods.iter().map(|pod| pod.iter().map(|one| net(one)).collect()).collect();
            Users { addresses }.need(net("10.7.0.1/24"))
        };
        assert!(!need(&[]) && !need(&[&["10.8.0.2/24", "fd00::2/64"]]));
        assert!(need(&[&["10.8.0.2/24"], &["10.7.0.2/24"]]) && need(&[&["10.8.0.2/24"], &[]]));
    }
}
