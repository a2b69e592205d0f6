//! What a container keeps of an attachment behind the back of DEL: it can rename its interface, give the name to another link and
//! put the addresses on any link. IPAM may give an address to another container only when no link of this one has it.

use std::net::IpAddr;

use cni_common::plugin::DelRequest;
use cni_common::spec::{AddResult, CniError, Context as _};
use ferrule_kernel::netlink::link::{self, IFF_LOOPBACK};
use ferrule_kernel::netlink::{Answer, Link, LinkData, LinkId, Mac, Message, Socket, addr};
use ipnetwork::IpNetwork;

/// How many times the container is looked at. A process in it can add an address again.
const ATTEMPTS: u32 = 5;

/// The addresses that the interface had when ADD ended. None if the runtime sent no `prevResult`.
pub fn former_addresses(result: Option<&AddResult>, ifname: &str) -> Vec<IpAddr> {
    result.iter().flat_map(|result| result.ips_of(ifname)).map(|ip| ip.address.ip()).collect()
}

/// The MAC address that the interface had when ADD ended. `None` if the runtime sent no `prevResult`.
pub fn former_mac(call: &DelRequest<'_>) -> Option<Mac> {
    let mut interfaces = call.prev_result.as_ref()?.container_interfaces();
    interfaces.find(|interface| interface.name == call.ifname)?.mac.parse().ok()
}

/// An address of the container that IPAM wants to free, and the index of its link.
pub type Held = (u32, IpNetwork);

/// Those of `former` that links still have, by the answer to [`addr::list`] for all links.
pub fn held(former: &[IpAddr], listed: Answer) -> Result<Vec<Held>, CniError> {
    let present = addr::read_all(listed).context(|| "list the addresses of the container")?;
    let networks = present.into_iter().map(|(link, address)| (link, address.network));
    Ok(networks.filter(|(_, network)| former.contains(&network.ip())).collect())
}

/// Removes those of the addresses `former` that links of the container still have, by the answer to [`addr::list`] for all links.
///
/// # Errors
/// Something is left.
pub fn remove_addresses(container: &mut Socket, former: &[IpAddr], listed: Answer) -> Result<(), CniError> {
    let held = held(former, listed)?;
    if held.is_empty() { Ok(()) } else { remove(container, former, held, |_| None) }
}

/// The link that ADD has made, as far as DEL knows it.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// Its kind.
    pub kind: &'static str,
    /// Its mode or VLAN ID.
    pub data: LinkData,
    /// See [`former_mac`].
    pub mac: Option<Mac>,
    /// Index and namespace ID of the link that it was made on, as in [`Link::peer`] and [`Link::peer_netns`]. The container cannot change
    /// them. `None` if unknown.
    pub parent: Option<(Option<u32>, Option<i32>)>,
    /// Whether DEL has removed it already, so that a similar link belongs to another attachment.
    pub is_gone: bool,
}

impl Created {
    /// Whether this is a link of the kind on the same parent.
    fn is_like(&self, link: &Link) -> bool {
        link.kind == self.kind && self.parent == Some((link.peer, link.peer_netns))
    }

    /// Whether it is this link, which has one of the addresses or none. Without one only a proof counts: several attachments of a
    /// container may have a parent in common, and the ADD of this one may have failed.
    fn is(&self, link: &Link, has_address: bool) -> bool {
        let is_proven = || match link.data {
            LinkData::Macvlan { .. } => self.mac == Some(link.mac),
            LinkData::Vlan { .. } => self.mac.is_some() && self.data == link.data,
            _ => false,
        };
        let is_unknown = self.parent.is_none() && link.kind == self.kind;
        !self.is_gone
            && if has_address {
                is_unknown || self.is_like(link)
            } else {
                self.is_like(link) && link.peer_netns.is_some() && is_proven()
            }
    }
}

/// What to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal<'a> {
    Link(&'a Link),
    Address(&'a Link, IpNetwork),
}

impl Removal<'_> {
    fn request(self) -> Message {
        match self {
            Removal::Link(link) => link::delete(LinkId::Index(link.index)),
            Removal::Address(link, network) => addr::delete_local(link.index, network),
        }
    }

    fn failed(self) -> CniError {
        CniError::internal(match self {
            Removal::Link(link) => format!("the container still has its interface, now {:?}", link.name),
            Removal::Address(link, network) => {
                format!("the container still has {} on {:?}", network.ip(), link.name)
            }
        })
    }
}

/// The attachment's link is removed, and the addresses are removed from links that do not leave the container and from links beside
/// the attachment's. Other links belong to other attachments, which may have the same addresses in other networks.
fn plan<'a>(links: &'a [Link], held: &[Held], created: Option<&Created>) -> Vec<Removal<'a>> {
    let mut removals = Vec::new();
    for link in links {
        let networks = || held.iter().filter(|(index, _)| *index == link.index).map(|(_, network)| *network);
        if created.is_some_and(|created| created.is(link, networks().next().is_some())) {
            removals.push(Removal::Link(link));
        } else if !leaves_container(link) || created.is_some_and(|created| created.is_like(link)) {
            removals.extend(networks().map(|network| Removal::Address(link, network)));
        }
    }
    removals
}

/// Whether the link is a device, has its other end or its parent in another namespace, or has a routing table of its own.
fn leaves_container(link: &Link) -> bool {
    let is_device = link.kind.is_empty() && link.flags & IFF_LOOPBACK == 0;
    is_device || link.peer_netns.is_some() || link.vrf_table.is_some()
}

/// Removes what the container has left of the attachment, whose addresses are `former`. `present` are those that links had at the
/// last look. `created` describes the link that ADD has made, unless that is gone in any case.
///
/// # Errors
/// Something is left.
pub fn remove(
    container: &mut Socket,
    former: &[IpAddr],
    mut present: Vec<Held>,
    created: impl FnOnce(&mut Socket) -> Option<Created>,
) -> Result<(), CniError> {
    let list = || "list the links of the container";
    let mut links = container.links(None).context(list)?;
    // Reading the links makes the kernel assign IDs to the namespaces of their parents.
    let created = created(container);
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let removals = plan(&links, &present, created.as_ref());
        if removals.is_empty() {
            return Ok(());
        }
        let requests = removals.iter().map(|removal| removal.request()).chain([addr::list(0)]);
        let mut answers = container.requests(requests.collect());
        present = held(former, answers.pop().unwrap_or(Ok(Vec::new())))?;
        refused = answers.into_iter().find_map(Result::err);
        links = container.links(None).context(list)?;
    }
    let left = plan(&links, &present, created.as_ref()).first().map(|removal| removal.failed());
    let why = refused.map_or_else(|| "a process of it adds it again".to_owned(), |error| error.to_string());
    left.map_or(Ok(()), |error| Err(error.with_details(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const NODE: i32 = 0;

    fn link(index: u32, kind: &str, parent: (Option<u32>, Option<i32>)) -> Link {
        let (kind, (peer, peer_netns)) = (kind.to_owned(), parent);
        Link { index, name: format!("if{index}"), kind, peer, peer_netns, ..Link::default() }
    }

    fn macvlan(index: u32, parent: u32, mac: Mac) -> Link {
        let data = LinkData::Macvlan { mode: 4, broadcast_queue: 1000 };
        Link { mac, data, ..link(index, "macvlan", (Some(parent), Some(NODE))) }
    }

    /// The plan for one link, which has the address or not.
    fn planned(link: &Link, has_address: bool, created: Option<Created>) -> &'static str {
        let network: IpNetwork = "10.1.2.3/24".parse().unwrap();
        let held = [(link.index, network), (99, network)];
        let links = [link.clone()];
        match plan(&links, &held[usize::from(!has_address)..], created.as_ref()).as_slice() {
            [] => "nothing",
            [Removal::Link(_)] => "link",
            [Removal::Address(..)] => "address",
            _ => "several",
        }
    }

    #[test]
    fn links_of_other_attachments_stay() {
        let other = Mac([2, 0, 0, 0, 0, 2]);
        let created = Created {
            kind: "macvlan",
            data: LinkData::None,
            mac: Some(MAC),
            parent: Some((Some(7), Some(NODE))),
            is_gone: false,
        };
        let gone = Created { is_gone: true, ..created };
        let (vague, unreported) = (Created { parent: None, ..created }, Created { mac: None, ..created });
        let outside = (Some(5), Some(NODE));
        let vrf_port = Link { vrf_table: Some(10), ..link(3, "dummy", (None, None)) };
        let lo = Link { flags: IFF_LOOPBACK, ..link(1, "", (None, None)) };
        for (what, link, created, with, without) in [
            ("renamed", macvlan(2, 7, MAC), created, "link", "link"),
            ("renamed, another MAC address", macvlan(2, 7, other), created, "link", "nothing"),
            ("on another parent", macvlan(2, 8, MAC), created, "nothing", "nothing"),
            ("beside the removed one", macvlan(2, 7, MAC), gone, "address", "nothing"),
            ("on another parent than the removed one", macvlan(2, 8, MAC), gone, "nothing", "nothing"),
            ("on an unknown parent", macvlan(2, 7, MAC), vague, "link", "nothing"),
            ("of an ADD without a result", macvlan(2, 7, MAC), unreported, "link", "nothing"),
            ("a bridge of the container", link(3, "bridge", (None, None)), created, "address", "nothing"),
            ("a bridge of the container, later", link(3, "bridge", (None, None)), gone, "address", "nothing"),
            ("lo", lo, created, "address", "nothing"),
            ("a pair of another attachment", link(3, "veth", outside), created, "nothing", "nothing"),
            ("a device", link(3, "", (None, None)), created, "nothing", "nothing"),
            ("a port of a VRF", vrf_port, created, "nothing", "nothing"),
        ] {
            let plans = [true, false].map(|has_address| planned(&link, has_address, Some(created)));
            assert_eq!(plans, [with, without], "{what}");
        }
    }

    #[test]
    fn what_proves_a_link_depends_on_its_kind() {
        let parent = (Some(7), Some(NODE));
        let (five, six) = (LinkData::Vlan { id: 5 }, LinkData::Vlan { id: 6 });
        let (shared, none) = (LinkData::Ipvlan { mode: 0, flags: 0 }, LinkData::None);
        for (kind, parent, wanted, is, with, without) in [
            ("vlan", parent, five, five, "link", "link"),
            ("vlan", parent, five, six, "link", "nothing"),
            // All ipvlans have the MAC address of their parent.
            ("ipvlan", parent, shared, shared, "link", "nothing"),
            ("dummy", (None, None), none, none, "link", "nothing"),
        ] {
            let created =
                Created { kind, data: wanted, mac: Some(MAC), parent: Some(parent), is_gone: false };
            let found = Link { data: is, mac: MAC, ..link(2, kind, parent) };
            let plans = [true, false].map(|has_address| planned(&found, has_address, Some(created)));
            assert_eq!(plans, [with, without], "{kind} {is}");
        }
    }

    #[test]
    fn a_pair_needs_no_description() {
        assert_eq!(planned(&link(3, "bridge", (None, None)), true, None), "address");
        assert_eq!(planned(&link(3, "veth", (Some(4), None)), true, None), "address");
        assert_eq!(planned(&link(3, "veth", (Some(4), Some(NODE))), true, None), "nothing");
    }
}
