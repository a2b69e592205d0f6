//! Links (network interfaces): find, list, change, remove.
//!
//! # References
//! linux/if_link.h, linux/rtnetlink.h; rtnetlink(7).

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixDatagram;

use nix::errno::Errno;
use nix::libc::{
    ARPHRD_ETHER, ARPHRD_INFINIBAND, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_ALT_IFNAME, IFLA_EXT_MASK, IFLA_GROUP,
    IFLA_GSO_MAX_SIZE, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA,
    IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_OPERSTATE,
    IFLA_PARENT_DEV_BUS_NAME, IFLA_PARENT_DEV_NAME, IFLA_PERM_ADDRESS, IFLA_PROP_LIST, IFLA_STATS64,
    IFLA_TXQLEN, IFNAMSIZ,
};
use nix::sys::socket::{setsockopt, sockopt::BindToDevice};

use super::bridge::{PortSettings, VlanFiltering, vlan_filtering};
use super::devconf::{accepts_ra, arp_ignore, routes_localnet};
use super::error::Error;
use super::ifinfo::{
    IFINFO, RTM_DELLINK, RTM_DELLINKPROP, RTM_GETLINK, RTM_NEWLINK, RTM_NEWLINKPROP, SKIP_STATS, ifinfo,
};
use super::link_data::LinkData;
use super::mac::Mac;
use super::message::{F_CREATE, F_DUMP, F_EXCL, Message, attrs, find_attr, text, u16_at, u32_at, u64_at};
use super::socket::{Answer, Socket, ignoring};
use super::vrf;

pub use super::ifinfo::{IFF_ALLMULTI, IFF_LOOPBACK, IFF_NOARP, IFF_PROMISC, IFF_UP, OPER_UP};
pub use super::new_link::{NewLink, new_netkit, new_veth};

/// Identifies a link in a request.
#[derive(Clone, Copy, Debug)]
pub enum LinkId<'a> {
    /// By its index.
    Index(u32),
    /// By its name or one of its alternative names.
    Name(&'a str),
    /// By one of its alternative names, since Linux 5.5.
    AltName(&'a str),
}

/// A link in an answer of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its kind, such as `veth` or `bridge`; empty for a physical device and for `lo`.
    pub kind: String,
    /// Its hardware address.
    pub mac: Mac,
    /// The hardware address that its device was made with; zero if the driver or a kernel before 5.6 reports none.
    pub permanent_mac: Mac,
    /// The type of its hardware address, `ARPHRD_*`.
    pub hardware: u16,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The length of its transmit queue in packets.
    pub tx_queue_len: u32,
    /// `IFF_*`. Promiscuous and all-multicast mode are the configured ones: a packet socket, such as that of
    /// tcpdump, does not set them.
    pub flags: u32,
    /// Its group.
    pub group: u32,
    /// `IF_OPER_*`
    pub operstate: u8,
    /// The index of its master, such as the bridge that has this link as a port.
    pub master: Option<u32>,
    /// For a VRF or a port of one: the VRF's routing table.
    pub vrf_table: Option<u32>,
    /// For a veth or a netkit: the index of its peer, in the peer's namespace. For a macvlan, an ipvlan or a VLAN
    /// device: the same of the link that it was made on.
    pub peer: Option<u32>,
    /// If that link is in another namespace: the ID of that namespace in this link's namespace, see
    /// [`super::nsid`].
    pub peer_netns: Option<i32>,
    /// Its alias (`ifalias`); may be empty.
    pub alias: String,
    /// Its alternative names.
    pub alt_names: Vec<String>,
    /// The largest GSO packet in bytes (`gso_max_size`); 0 if the kernel does not report it.
    pub gso_max: u32,
    /// The device that drives the link, such as `0000:3b:00.2`; empty for a virtual link, and before Linux 5.14.
    pub parent: String,
    /// The bus of [`Link::parent`], such as `pci`.
    pub parent_bus: String,
    /// For a bridge port: its settings.
    pub port: PortSettings,
    /// For a bridge: its VLAN filtering; `None` if the kernel was built without it.
    pub vlan_filtering: Option<VlanFiltering>,
    /// Whether its sysctl `accept_ra` is not 0: a router may configure it.
    pub accepts_ra: bool,
    /// Its sysctl `arp_ignore`; the greater of it and that of `all` counts.
    pub arp_ignore: u32,
    /// Whether its sysctl `route_localnet` is on: packets with an address of 127.0.0.0/8 may pass it.
    pub routes_localnet: bool,
    /// For a macvlan, an ipvlan or a VLAN device: its mode or ID.
    pub data: LinkData,
}

/// The counters of a link since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Received bytes.
    pub rx_bytes: u64,
    /// Sent bytes.
    pub tx_bytes: u64,
    /// Received packets that were dropped.
    pub rx_dropped: u64,
    /// Packets to send that were dropped.
    pub tx_dropped: u64,
}

impl Counters {
    /// Decodes `struct rtnl_link_stats64`.
    fn parse(stats: &[u8]) -> Counters {
        let field = |index: usize| u64_at(stats, 8 * index);
        Counters { rx_bytes: field(2), tx_bytes: field(3), rx_dropped: field(6), tx_dropped: field(7) }
    }
}

impl Link {
    /// Whether this is its name or one of its alternative names.
    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.alt_names.iter().any(|one| one == name)
    }

    /// Whether this is still the same link: no other one has got its index.
    pub fn is_same_link(&self, other: &Link) -> bool {
        (self.index, &self.name, &self.kind, self.mac) == (other.index, &other.name, &other.kind, other.mac)
    }

    /// Whether the link is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Whether promiscuous mode is on.
    pub fn is_promiscuous(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }

    /// Whether its frames carry packets to any address: Ethernet and InfiniBand do. A tunnel, PPP or a tun device of a VPN sends
    /// those that it knows the way of, and drops the others.
    pub fn has_link_layer(&self) -> bool {
        matches!(self.hardware, ARPHRD_ETHER | ARPHRD_INFINIBAND)
    }

    /// Whether the link receives all multicast packets.
    pub fn is_all_multicast(&self) -> bool {
        self.flags & IFF_ALLMULTI != 0
    }
}

fn link_request(kind: u16, flags: u16, id: LinkId<'_>) -> Message {
    let by = |index| Message::new(kind, flags, &ifinfo(0, index, 0, 0));
    match id {
        LinkId::Index(index) => by(index),
        // The kernel looks for alternative names too, but takes only short ones in this attribute.
        LinkId::Name(name) if name.len() < IFNAMSIZ => by(0).attr_text(IFLA_IFNAME, name),
        LinkId::Name(name) => by(0).attr_text(IFLA_ALT_IFNAME, name),
        LinkId::AltName(name) => by(0).attr_text(IFLA_ALT_IFNAME, name),
    }
}

/// A request that finds a link.
pub fn get(id: LinkId<'_>) -> Message {
    link_request(RTM_GETLINK, 0, id).attr_u32(IFLA_EXT_MASK, SKIP_STATS).one_answer()
}

/// A request that removes a link. With a veth the kernel also removes its peer.
pub fn delete(id: LinkId<'_>) -> Message {
    link_request(RTM_DELLINK, 0, id)
}

/// A request that removes all links with this group.
pub(super) fn delete_group(group: u32) -> Message {
    Message::new(RTM_DELLINK, 0, &ifinfo(0, 0, 0, 0)).attr_u32(IFLA_GROUP, group)
}

/// A request that sets the group.
pub(super) fn set_group(index: u32, group: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).attr_u32(IFLA_GROUP, group)
}

/// A request that sets the flags (`IFF_*`) in `mask` to their values in `flags`.
pub fn set_flags(index: u32, flags: u32, mask: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, flags, mask))
}

/// A request that sets the hardware address.
pub fn set_mac(index: u32, mac: Mac) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).attr(IFLA_ADDRESS, &mac.0)
}

/// A request that sets the MTU in bytes.
pub fn set_mtu(index: u32, mtu: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).attr_u32(IFLA_MTU, mtu)
}

/// A request that sets the length of the transmit queue in packets.
pub fn set_tx_queue_len(index: u32, len: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).attr_u32(IFLA_TXQLEN, len)
}

/// A request that makes the link with this index a port of `master`, also an index.
pub fn set_master(index: u32, master: u32) -> Message {
    Message::new(RTM_NEWLINK, 0, &ifinfo(0, index, 0, 0)).attr_u32(IFLA_MASTER, master)
}

/// A request that gives a link an alternative name of at most 127 bytes. `EEXIST` if a link of the namespace has it.
pub fn add_alt_name(id: LinkId<'_>, name: &str) -> Message {
    link_request(RTM_NEWLINKPROP, F_CREATE | F_EXCL, id)
        .nest(IFLA_PROP_LIST, |list| list.attr_text(IFLA_ALT_IFNAME, name))
}

/// A request that removes an alternative name of a link.
pub fn remove_alt_name(id: LinkId<'_>, name: &str) -> Message {
    link_request(RTM_DELLINKPROP, 0, id).nest(IFLA_PROP_LIST, |list| list.attr_text(IFLA_ALT_IFNAME, name))
}

/// The link in the answer to [`get`]. `None` if it does not exist.
pub fn read(answer: Answer) -> Result<Option<Link>, Error> {
    Ok(ignoring(answer, &[Errno::ENODEV])?.first().map(|body| parse(body)))
}

/// The link in the kernel's description.
pub fn parse(body: &[u8]) -> Link {
    let (index, flags, hardware) = (u32_at(body, 4), u32_at(body, 8), u16_at(body, 2));
    let mut link = Link { index, flags, hardware, ..Link::default() };
    for (kind, value) in attrs(body.get(IFINFO..).unwrap_or_default()) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.mac = value.try_into().map(Mac).unwrap_or_default(),
            IFLA_MTU => link.mtu = u32_at(value, 0),
            IFLA_TXQLEN => link.tx_queue_len = u32_at(value, 0),
            IFLA_GROUP => link.group = u32_at(value, 0),
            IFLA_OPERSTATE => link.operstate = value.first().copied().unwrap_or_default(),
            IFLA_MASTER => link.master = Some(u32_at(value, 0)),
            IFLA_LINK => link.peer = Some(u32_at(value, 0)),
            IFLA_LINK_NETNSID => link.peer_netns = value.try_into().ok().map(i32::from_ne_bytes),
            IFLA_IFALIAS => link.alias = text(value),
            IFLA_PROP_LIST => link.alt_names = attrs(value).map(|(_, name)| text(name)).collect(),
            IFLA_PERM_ADDRESS => link.permanent_mac = value.try_into().map(Mac).unwrap_or_default(),
            IFLA_PARENT_DEV_NAME => link.parent = text(value),
            IFLA_PARENT_DEV_BUS_NAME => link.parent_bus = text(value),
            IFLA_AF_SPEC => {
                link.accepts_ra = accepts_ra(value);
                link.arp_ignore = arp_ignore(value);
                link.routes_localnet = routes_localnet(value);
            }
            IFLA_GSO_MAX_SIZE => link.gso_max = u32_at(value, 0),
            IFLA_LINKINFO => {
                link.vrf_table = vrf::table(value);
                link.kind = find_attr(value, IFLA_INFO_KIND).map(text).unwrap_or_default();
                link.port =
                    find_attr(value, IFLA_INFO_SLAVE_DATA).map(PortSettings::parse).unwrap_or_default();
                let data = find_attr(value, IFLA_INFO_DATA);
                link.vlan_filtering = data.filter(|_| link.kind == "bridge").and_then(vlan_filtering);
                link.data = LinkData::parse(&link.kind, data.unwrap_or_default());
            }
            _ => {}
        }
    }
    link
}

/// A request for all links of the namespace, or only for those of one kind.
pub fn list(kind: Option<&str>) -> Message {
    kind.iter()
        .fold(list_all(), |all, kind| all.nest(IFLA_LINKINFO, |info| info.attr_text(IFLA_INFO_KIND, kind)))
}

/// A request for the ports of a VRF or a bridge.
pub fn list_ports(index: u32) -> Message {
    list_all().attr_u32(IFLA_MASTER, index)
}

fn list_all() -> Message {
    Message::new(RTM_GETLINK, F_DUMP, &ifinfo(0, 0, 0, 0)).attr_u32(IFLA_EXT_MASK, SKIP_STATS)
}

/// Whether this thread's namespace has a link with this name.
///
/// For a missing link `SIOCGIFINDEX` starts modprobe twice, `RTM_GETLINK` waits for other changes of links, and a file below
/// /proc/sys/net costs more with each pod of the node. `SO_BINDTODEVICE` looks in the table of names, without a lock.
///
/// # Errors
/// Those of `socket` and `setsockopt`, such as `EMFILE`.
pub fn exists(name: &str) -> io::Result<bool> {
    match setsockopt(&UnixDatagram::unbound()?, BindToDevice, &OsString::from(name)) {
        Err(Errno::ENODEV) => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    }
}

impl Socket {
    /// All links of the namespace, or only those of one kind.
    pub fn links(&mut self, kind: Option<&str>) -> Result<Vec<Link>, Error> {
        let bodies = self.request(list(kind))?;
        let links = bodies.iter().map(|body| parse(body));
        // Kernels before 4.6 ignore the kind and dump all links.
        Ok(links.filter(|link| kind.is_none_or(|kind| link.kind == kind)).collect())
    }

    /// The ports of the VRF or bridge with this index.
    pub fn ports(&mut self, index: u32) -> Result<Vec<Link>, Error> {
        let bodies = self.request(list_ports(index))?;
        let links = bodies.iter().map(|body| parse(body));
        // Kernels before 4.6 ignore the master and dump all links.
        Ok(links.filter(|link| link.master == Some(index)).collect())
    }

    /// All links of the namespace with their counters, by one dump.
    pub fn links_with_counters(&mut self) -> Result<Vec<(Link, Option<Counters>)>, Error> {
        let bodies = self.request(Message::new(RTM_GETLINK, F_DUMP, &ifinfo(0, 0, 0, 0)))?;
        let counters = |body: &[u8]| find_attr(body.get(IFINFO..)?, IFLA_STATS64).map(Counters::parse);
        Ok(bodies.iter().map(|body| (parse(body), counters(body))).collect())
    }

    /// Finds a link. `None` if it does not exist.
    pub fn link(&mut self, id: LinkId<'_>) -> Result<Option<Link>, Error> {
        read(self.request(get(id)))
    }

    /// Deletes a link; false if it does not exist.
    pub fn delete_link(&mut self, id: LinkId<'_>) -> Result<bool, Error> {
        match self.request(delete(id)) {
            Err(error) if error.errno == Errno::ENODEV => Ok(false),
            answer => answer.map(|_| true),
        }
    }
}
