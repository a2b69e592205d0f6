//! What tells the device from every link that its container can make. Pure.
//!
//! A container with `CAP_NET_ADMIN` chooses name, alternative names, alias, hardware address and index of its links, and removes
//! or renames the device. It has no link with these attributes:
//!
//! - a parent device on a bus: only a driver makes such a link;
//! - no kind, other than `lo`: as before, on kernels before 5.14, which do not report the parent device;
//! - the other end in the node's namespace, or in another one that the container cannot enter: a veth's peer, or the link below
//!   a macvlan. A macvlan's twin is possible, because a macvlan on a macvlan is one on the same link; then the index decides.
//!
//! Other virtual devices, such as a dummy, have nothing that cannot be copied. For them kind and index must be the same: the
//! container can have another such link only after it has given up the device.

use ferrule_kernel::netlink::link::IFF_LOOPBACK;
use ferrule_kernel::netlink::{Link, Mac};
use serde::{Deserialize, Serialize};

/// The identity of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Identity {
    /// Its index: in the container as soon as ADD knows it. 0 if nothing is known: ADD was the reference's or an older version's.
    pub index: u32,
    /// The device on a bus that drives it; empty for a virtual device.
    pub parent: String,
    /// The bus of `parent`.
    pub parent_bus: String,
    /// The hardware address that the driver has found; empty if unknown.
    pub permanent_mac: String,
    /// The index of its other end.
    pub peer: Option<u32>,
    /// The ID that the node's namespace has for the namespace of that end; `None` if it is the node's own.
    pub peer_netns: Option<i32>,
}

/// Where the other end of a link in the container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherEnd {
    /// In the node's namespace.
    Node,
    /// In the namespace with this ID in the node's namespace.
    Elsewhere(i32),
    /// In the container, in a namespace that the node does not know, or nowhere.
    Unknown,
}

impl Identity {
    /// That of a link of the node.
    pub fn of(link: &Link) -> Identity {
        let permanent = link.permanent_mac;
        Identity {
            index: link.index,
            parent: link.parent.clone(),
            parent_bus: link.parent_bus.clone(),
            permanent_mac: if permanent.is_zero() { String::new() } else { permanent.to_string() },
            peer: link.peer,
            peer_netns: link.peer_netns,
        }
    }

    /// Whether the device has a parent on a bus. Then nothing else decides in the container.
    pub fn is_physical(&self) -> bool {
        !self.parent.is_empty()
    }

    /// Whether the link of the container can be nothing but the device, which is of this kind, or a twin that does the same.
    pub fn proves(&self, kind: &str, link: &Link, other_end: OtherEnd) -> bool {
        if link.kind != kind || is_loopback(link) {
            return false;
        }
        if self.is_physical() {
            return self.has_parent_of(link);
        }
        if kind.is_empty() {
            return true;
        }
        // An end that was elsewhere may have come to the node since.
        let is_there =
            other_end == OtherEnd::Node || self.peer_netns.map(OtherEnd::Elsewhere) == Some(other_end);
        match self.peer {
            Some(_) => link.peer == self.peer && is_there,
            None => link.index == self.index && link.peer.is_none(),
        }
    }

    /// How much speaks for one of several links that [`Identity::proves`] permits.
    pub fn rank(&self, link: &Link) -> impl Ord + use<> {
        (self.has_permanent_mac_of(link), link.index == self.index)
    }

    /// Whether a link of the node is the device. Other links of the node may have the same parent, such as a second port.
    pub fn is_on_node(&self, kind: &str, link: &Link) -> bool {
        link.kind == kind && self.has_parent_of(link) && self.has_permanent_mac_of(link)
    }

    /// Whether the link's parent is that of the device.
    pub fn has_parent_of(&self, link: &Link) -> bool {
        self.is_physical() && (&link.parent, &link.parent_bus) == (&self.parent, &self.parent_bus)
    }

    /// Whether the link has the device's permanent hardware address.
    pub fn has_permanent_mac_of(&self, link: &Link) -> bool {
        !self.permanent_mac.is_empty() && self.permanent_mac.parse() == Ok::<Mac, String>(link.permanent_mac)
    }
}

/// What speaks for a link of the container if nothing is known of the device. The greater, the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Proof {
    /// It is a physical one.
    pub is_physical: bool,
    /// It is one end of a pair or lies on another link, and that is on the node.
    pub is_at_node: bool,
}

/// The proof for a device that the reference has moved into the container, or a version without [`Identity`]. `None` for `lo`,
/// and if both ends are in the container.
pub fn of_unknown(link: &Link, other_end: OtherEnd) -> Option<Proof> {
    let is_physical = !link.parent.is_empty() || link.kind.is_empty();
    let is_inside = link.peer.is_some() && link.peer_netns.is_none();
    let is_device = !is_loopback(link) && (is_physical || !is_inside);
    is_device.then_some(Proof { is_physical, is_at_node: other_end == OtherEnd::Node })
}

fn is_loopback(link: &Link) -> bool {
    link.flags & IFF_LOOPBACK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: &str, change: impl FnOnce(&mut Link)) -> Link {
        let mut link = Link { index: 7, kind: kind.to_owned(), name: "ens1".to_owned(), ..Link::default() };
        change(&mut link);
        link
    }

    fn on_bus(link: &mut Link, id: &str, mac: u8) {
        (link.parent, link.parent_bus) = (id.to_owned(), "pci".to_owned());
        link.permanent_mac = Mac([2, 0, 0, 0, 0, mac]);
    }

    #[test]
    fn a_physical_device_is_known_by_its_parent() {
        let device = link("", |link| on_bus(link, "0000:00:04.0", 1));
        let known = Identity::of(&device);
        let proves = |link: &Link| known.proves("", link, OtherEnd::Unknown);
        // What the container can change does not count.
        let changed = Link { index: 9, name: "x".to_owned(), mac: Mac([9; 6]), ..device.clone() };
        assert!(proves(&changed) && known.is_on_node("", &changed));
        assert!(!proves(&link("", |link| on_bus(link, "0000:00:05.0", 1))));
        assert!(
            !proves(&link("veth", |_| ()))
                && !proves(&link("ipvlan", |link| link.permanent_mac = device.permanent_mac))
        );
        // The other port of one PCI device: only on the node is there certainly another one.
        let port = link("", |link| on_bus(link, "0000:00:04.0", 2));
        assert!(proves(&port) && known.rank(&port) < known.rank(&changed) && !known.is_on_node("", &port));
        // Before Linux 5.14.
        let old = Identity { parent: String::new(), ..known.clone() };
        assert!(old.proves("", &link("", |_| ()), OtherEnd::Unknown));
        assert!(!old.proves("", &link("", |link| link.flags = IFF_LOOPBACK), OtherEnd::Unknown));
        assert!(!old.proves("", &link("dummy", |_| ()), OtherEnd::Unknown));
    }

    #[test]
    fn a_virtual_device_is_known_by_its_other_end_or_its_index() {
        let device = link("veth", |link| link.peer = Some(3));
        let known = Identity::of(&device);
        let moved = Link { index: 9, peer_netns: Some(0), ..device.clone() };
        assert!(known.proves("veth", &moved, OtherEnd::Node));
        assert!(!known.proves("veth", &device, OtherEnd::Unknown), "its peer is in the container");
        assert!(!known.proves("veth", &Link { peer: Some(4), ..moved.clone() }, OtherEnd::Node));
        assert!(!known.proves("veth", &moved, OtherEnd::Elsewhere(5)));
        let known = Identity { peer_netns: Some(5), ..known };
        assert!(
            known.proves("veth", &moved, OtherEnd::Elsewhere(5))
                && known.proves("veth", &moved, OtherEnd::Node)
        );
        assert!(!known.proves("veth", &moved, OtherEnd::Elsewhere(6)));
        let known = Identity::of(&link("dummy", |_| ()));
        assert!(known.proves("dummy", &link("dummy", |_| ()), OtherEnd::Unknown));
        for other in [link("dummy", |link| link.index = 8), link("bridge", |_| ())] {
            assert!(!known.proves("dummy", &other, OtherEnd::Unknown));
        }
    }

    #[test]
    fn what_speaks_for_a_device_without_a_record() {
        let proof =
            |link: Link, end| of_unknown(&link, end).map(|proof| (proof.is_physical, proof.is_at_node));
        let pair = |id| link("veth", |link| (link.peer, link.peer_netns) = (Some(3), id));
        assert_eq!(proof(link("", |_| ()), OtherEnd::Unknown), Some((true, false)));
        assert_eq!(proof(pair(Some(0)), OtherEnd::Node), Some((false, true)));
        assert_eq!(proof(link("dummy", |_| ()), OtherEnd::Unknown), Some((false, false)));
        assert_eq!(proof(pair(None), OtherEnd::Unknown), None);
        assert_eq!(proof(link("", |link| link.flags = IFF_LOOPBACK), OtherEnd::Unknown), None);
    }
}
