//! Links (network interfaces): look up, make, change, remove.
//!
//! # References
//! linux/if_link.h, linux/rtnetlink.h; rtnetlink(7).

use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use super::bridge::{PortSettings, VlanFiltering, accepts_ra, vlan_filtering};
use super::error::Error;
use super::link_data::LinkData;
use super::mac::Mac;
use super::message::{F_CREATE, F_DUMP, F_EXCL, Message, attrs, find_attr, text, u32_at, u64_at};
use super::socket::{Answer, Socket};
use super::vrf;
use crate::netns;

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_SETLINK: u16 = 19;
const RTM_NEWLINKPROP: u16 = 108;
const RTM_DELLINKPROP: u16 = 109;

/// Length of `struct ifinfomsg`.
const IFINFO: usize = 16;

const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
pub(super) const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_OPERSTATE: u16 = 16;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const IFLA_IFALIAS: u16 = 20;
pub(super) const IFLA_AF_SPEC: u16 = 26;
pub(super) const IFLA_NET_NS_FD: u16 = 28;
pub(super) const IFLA_EXT_MASK: u16 = 29;
const IFLA_STATS64: u16 = 23;
pub(super) const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_PERM_ADDRESS: u16 = 54;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
pub(super) const IFLA_INFO_KIND: u16 = 1;
pub(super) const IFLA_INFO_DATA: u16 = 2;
pub(super) const IFLA_INFO_SLAVE_DATA: u16 = 5;
const VETH_INFO_PEER: u16 = 1;
const IFLA_NETKIT_PEER_INFO: u16 = 1;
const IFLA_NETKIT_MODE: u16 = 5;
/// `NETKIT_L2`: the ends have MAC addresses, like those of a veth.
const NETKIT_L2: u32 = 0;

/// `RTEXT_FILTER_SKIP_STATS`: omit the counters, which we do not read.
pub(super) const SKIP_STATS: u32 = 1 << 3;

/// `IFF_UP`
pub const IFF_UP: u32 = 0x1;
/// `IFF_LOOPBACK`
pub const IFF_LOOPBACK: u32 = 0x8;
/// `IFF_PROMISC`
pub const IFF_PROMISC: u32 = 0x100;
/// `IFF_ALLMULTI`
pub const IFF_ALLMULTI: u32 = 0x200;
/// `IF_OPER_UP`
pub const OPER_UP: u8 = 6;

/// Identifies a link in a request.
#[derive(Clone, Copy, Debug)]
pub enum LinkId<'a> {
    /// By its index.
    Index(u32),
    /// By its name.
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
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The length of its transmit queue in packets.
    pub tx_queue_len: u32,
    /// `IFF_*`. Promiscuous and all-multicast mode are the configured ones: a packet socket, such as that of
    /// tcpdump, does not set them.
    pub flags: u32,
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
    /// Whether the link is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Whether promiscuous mode is on.
    pub fn is_promiscuous(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }

    /// Whether the link receives all multicast packets.
    pub fn is_all_multicast(&self) -> bool {
        self.flags & IFF_ALLMULTI != 0
    }
}

pub(super) fn ifinfo(family: u8, index: u32, flags: u32, change: u32) -> [u8; IFINFO] {
    let mut header = [0; IFINFO];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

fn link_request(kind: u16, flags: u16, id: LinkId<'_>) -> Message {
    match id {
        LinkId::Index(index) => Message::new(kind, flags, &ifinfo(0, index, 0, 0)),
        LinkId::Name(name) => Message::new(kind, flags, &ifinfo(0, 0, 0, 0)).attr_text(IFLA_IFNAME, name),
        LinkId::AltName(name) => {
            Message::new(kind, flags, &ifinfo(0, 0, 0, 0)).attr_text(IFLA_ALT_IFNAME, name)
        }
    }
}

/// A request that looks up a link.
pub fn get(id: LinkId<'_>) -> Message {
    link_request(RTM_GETLINK, 0, id).attr_u32(IFLA_EXT_MASK, SKIP_STATS).one_answer()
}

/// A request that removes a link. With a veth the kernel also removes its peer.
pub fn delete(id: LinkId<'_>) -> Message {
    link_request(RTM_DELLINK, 0, id)
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

/// A link to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewLink<'a> {
    /// Its kind, such as `veth` or `bridge`.
    pub kind: &'a str,
    /// Its name; empty for the kernel's choice.
    pub name: &'a str,
    /// Its hardware address; `None` for the kernel's choice.
    pub mac: Option<Mac>,
    /// Its MTU in bytes; 0 for the kernel's default.
    pub mtu: u32,
    /// Its flags (`IFF_*`).
    pub flags: u32,
    /// Its index; 0 for the kernel's choice.
    pub index: u32,
    /// The index of the link that it is made on, in the namespace of the socket.
    pub parent: Option<u32>,
    /// The attributes of its kind.
    pub data: LinkData,
    /// The index of its master, such as the bridge that has this link as a port.
    pub master: Option<u32>,
    /// The namespace to make it in; `None` for the namespace of the socket.
    pub netns: Option<BorrowedFd<'a>>,
}

impl NewLink<'_> {
    /// A request that makes the link; `EEXIST` if the namespace has a link of this name.
    pub fn request(&self) -> Message {
        self.request_with(|info| self.data.encode(info))
    }

    /// `data` adds the attributes of the kind (`IFLA_INFO_DATA`).
    pub(super) fn request_with(&self, data: impl FnOnce(Message) -> Message) -> Message {
        let header = ifinfo(0, self.index, self.flags, self.flags);
        let message = self.attributes(Message::new(RTM_NEWLINK, F_CREATE | F_EXCL, &header));
        message.nest(IFLA_LINKINFO, |info| data(info.attr_text(IFLA_INFO_KIND, self.kind)))
    }

    fn attributes(&self, mut message: Message) -> Message {
        if !self.name.is_empty() {
            message = message.attr_text(IFLA_IFNAME, self.name);
        }
        if let Some(mac) = self.mac {
            message = message.attr(IFLA_ADDRESS, &mac.0);
        }
        if self.mtu != 0 {
            message = message.attr_u32(IFLA_MTU, self.mtu);
        }
        if let Some(parent) = self.parent {
            message = message.attr_u32(IFLA_LINK, parent);
        }
        if let Some(master) = self.master {
            message = message.attr_u32(IFLA_MASTER, master);
        }
        if let Some(netns) = self.netns {
            message = message.attr_u32(IFLA_NET_NS_FD, netns::number(netns));
        }
        message
    }
}

/// A request that makes a veth pair. `EEXIST` if either name is taken.
///
/// Each end gets one queue for each direction. Without a number, Linux 5.17 and later allocate one for each possible
/// CPU, and then disable all but one, which takes two RCU grace periods.
pub fn new_veth(end: &NewLink<'_>, peer: &NewLink<'_>) -> Message {
    let one_queue =
        |message: Message| message.attr_u32(IFLA_NUM_TX_QUEUES, 1).attr_u32(IFLA_NUM_RX_QUEUES, 1);
    let peer = |data| peer_info(data, VETH_INFO_PEER, peer, one_queue);
    one_queue(end.request_with(|info| info.nest(IFLA_INFO_DATA, peer)))
}

/// A request that makes a netkit pair with MAC addresses. `end` must be in the namespace of the socket. `EEXIST` if
/// either name is taken, `EOPNOTSUPP` if the kernel has no netkit.
pub fn new_netkit(end: &NewLink<'_>, peer: &NewLink<'_>) -> Message {
    let peer = |data| peer_info(data, IFLA_NETKIT_PEER_INFO, peer, |peer| peer);
    end.request_with(|info| {
        info.nest(IFLA_INFO_DATA, |data| peer(data).attr_u32(IFLA_NETKIT_MODE, NETKIT_L2))
    })
}

/// Describes the other end of a pair. `more` adds further attributes of it.
fn peer_info(data: Message, kind: u16, peer: &NewLink<'_>, more: impl Fn(Message) -> Message) -> Message {
    let header = ifinfo(0, 0, peer.flags, peer.flags);
    data.nest_behind(kind, &header, |message| more(peer.attributes(message)))
}

/// The link in the answer to [`get`]. `None` if it does not exist.
pub fn read(answer: Answer) -> Result<Option<Link>, Error> {
    match answer {
        Ok(bodies) => Ok(bodies.first().map(|body| parse(body))),
        Err(error) if error.errno == Errno::ENODEV => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn parse(body: &[u8]) -> Link {
    let mut link = Link { index: u32_at(body, 4), flags: u32_at(body, 8), ..Link::default() };
    for (kind, value) in attrs(body.get(IFINFO..).unwrap_or_default()) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.mac = value.try_into().map(Mac).unwrap_or_default(),
            IFLA_MTU => link.mtu = u32_at(value, 0),
            IFLA_TXQLEN => link.tx_queue_len = u32_at(value, 0),
            IFLA_OPERSTATE => link.operstate = value.first().copied().unwrap_or_default(),
            IFLA_MASTER => link.master = Some(u32_at(value, 0)),
            IFLA_LINK => link.peer = Some(u32_at(value, 0)),
            IFLA_LINK_NETNSID => link.peer_netns = value.try_into().ok().map(i32::from_ne_bytes),
            IFLA_IFALIAS => link.alias = text(value),
            IFLA_PROP_LIST => link.alt_names = attrs(value).map(|(_, name)| text(name)).collect(),
            IFLA_PERM_ADDRESS => link.permanent_mac = value.try_into().map(Mac).unwrap_or_default(),
            IFLA_PARENT_DEV_NAME => link.parent = text(value),
            IFLA_PARENT_DEV_BUS_NAME => link.parent_bus = text(value),
            IFLA_AF_SPEC => link.accepts_ra = accepts_ra(value),
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

impl Socket {
    /// All links of the namespace with their counters, by one dump.
    pub fn links_with_counters(&mut self) -> Result<Vec<(Link, Option<Counters>)>, Error> {
        let bodies = self.request(Message::new(RTM_GETLINK, F_DUMP, &ifinfo(0, 0, 0, 0)))?;
        let counters = |body: &[u8]| find_attr(body.get(IFINFO..)?, IFLA_STATS64).map(Counters::parse);
        Ok(bodies.iter().map(|body| (parse(body), counters(body))).collect())
    }

    /// Looks up a link. `None` if it does not exist.
    pub fn link(&mut self, id: LinkId<'_>) -> Result<Option<Link>, Error> {
        read(self.request(get(id)))
    }
    /// Deletes a link; false if it does not exist.
    pub fn delete_link(&mut self, id: LinkId<'_>) -> Result<bool, Error> {
        match self.request(delete(id)) {
            Ok(_) => Ok(true),
            Err(error) if error.errno == Errno::ENODEV => Ok(false),
            Err(error) => Err(error),
        }
    }
}
