//! The kernel's links, addresses and routes: a list of all at the start, then each change.

use std::io;
use std::pin::pin;
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, Prop,
};
use netlink_packet_route::nsid::NsidAttribute;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use rtnetlink::sys::AsyncSocket as _;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Change;
use super::dump::dump;
use super::routes::{self, Routes};
use super::uevents::Uevents;
use crate::device::{Device, Link, Place};

/// The socket's receive buffer in bytes: some thousand messages.
const BUFFER: usize = 4 << 20;

/// How long [`Watch::rest`] waits for the next message, and how long it reads.
const IDLE: Duration = Duration::from_millis(20);
const REST: Duration = Duration::from_secs(1);

/// The kinds of links whose IFLA_LINK is their peer.
const PAIRS: [&str; 2] = ["veth", "netkit"];

/// A subscription to links, addresses, routes, namespaces and buses. Ends with this value.
pub struct Watch {
    handle: Handle,
    messages: BoxStream<'static, NetlinkMessage<RouteNetlinkMessage>>,
    uevents: Uevents,
    routes: Routes,
    /// Ends with this value.
    _connection: JoinSet<()>,
}

/// What the subscription says.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// This has changed.
    Change(Box<Change>),
    /// The kernel has thrown messages away: only a new subscription and a new list tell the truth.
    Lost,
}

impl Watch {
    /// Subscribes. Needs a tokio runtime.
    pub fn open() -> io::Result<Watch> {
        use MulticastGroup::{Ipv4Ifaddr, Ipv6Ifaddr, Link, Nsid};
        let (mut connection, handle, messages) =
            new_multicast_connection(&[Link, Ipv4Ifaddr, Ipv6Ifaddr, Nsid])?;
        let socket = connection.socket_mut().socket_ref();
        // Without CAP_NET_ADMIN net.core.rmem_max is the limit.
        if setsockopt(socket, RcvBufForce, &BUFFER).is_err() {
            socket.set_rx_buf_sz(BUFFER)?;
        }
        let messages = messages.map(|(message, _)| message).boxed();
        let connection = JoinSet::from_iter([connection]);
        let (uevents, routes) = (Uevents::open()?, Routes::open()?);
        Ok(Watch { handle, messages, uevents, routes, _connection: connection })
    }

    /// All links, global addresses and links with routes, as changes. What changes meanwhile comes from [`Watch::next`] too.
    pub fn list(&self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        let mut take = |message: &RouteNetlinkMessage| changes.extend(change(message));
        let mut links = LinkMessage::default();
        links.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        dump(RouteNetlinkMessage::GetLink(links), &mut take)?;
        dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), &mut take)?;
        changes.push(Change::Routes(routes::list()?));
        Ok(changes)
    }

    /// The next change; `None` if the connection to the kernel broke.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let message = tokio::select! {
                message = self.messages.next() => message?,
                left = self.uevents.next() => {
                    return Some(left.map_or(Event::Lost, |id| Event::Change(Box::new(Change::Unplugged(id)))));
                }
                carried = self.routes.next() => return Some(Event::Change(Box::new(Change::Routes(carried)))),
            };
            match message.payload {
                NetlinkPayload::Overrun(_) => return Some(Event::Lost),
                NetlinkPayload::InnerMessage(message) => {
                    if let Some(change) = change(&message) {
                        self.routes.link_has_changed();
                        return Some(Event::Change(Box::new(change)));
                    }
                }
                _ => {}
            }
        }
    }

    /// The changes that the kernel has not thrown away, after [`Event::Lost`]: they may tell where a link went. A new list
    /// must follow, because they are older than the loss.
    pub async fn rest(mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let end = Instant::now() + REST;
        while Instant::now() < end
            && let Ok(Some(event)) = timeout(IDLE, self.next()).await
        {
            if let Event::Change(change) = event {
                changes.push(*change);
            }
        }
        changes
    }

    /// Whether the device is still in the namespace that it went to. The kernel reuses numbers of namespaces, so the
    /// link there must have the MAC address of the device, or its ID as alias.
    pub async fn is_in_pod(&self, device: &Device) -> bool {
        let Place::Pod { namespace: Some(namespace), index: Some(index) } = device.place else {
            return false;
        };
        let Ok(index) = u32::try_from(index) else { return false };
        let mut request = self.handle.link().get().match_index(index);
        request.message_mut().attributes.push(LinkAttribute::IfNetnsId(namespace));
        let message = match pin!(request.execute()).try_next().await {
            Ok(message) => message,
            // Without CAP_NET_ADMIN the kernel does not say.
            Err(rtnetlink::Error::NetlinkError(error)) => {
                return [Errno::EPERM, Errno::EACCES].iter().any(|code| error.raw_code() == -(*code as i32));
            }
            Err(_) => None,
        };
        message.is_some_and(|message| {
            let mac = device.link.as_ref().map(|link| link.mac.as_str());
            let alias = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfAlias(alias) if *alias == device.id);
            message.attributes.iter().any(alias) || link(&message).is_some_and(|link| Some(link.mac.as_str()) == mac)
        })
    }
}

fn change(message: &RouteNetlinkMessage) -> Option<Change> {
    match message {
        RouteNetlinkMessage::NewLink(message) => link(message).map(Change::Link),
        RouteNetlinkMessage::DelLink(message) => left(message),
        RouteNetlinkMessage::NewAddress(message) => address(message, true),
        RouteNetlinkMessage::DelAddress(message) => address(message, false),
        RouteNetlinkMessage::DelNsId(message) => {
            message.attributes.iter().find_map(|attribute| match attribute {
                NsidAttribute::Id(id) => Some(Change::NamespaceGone(*id)),
                _ => None,
            })
        }
        _ => None,
    }
}

/// A link, unless the message is about a bridge port or a radio event.
fn link(message: &LinkMessage) -> Option<Link> {
    let header = &message.header;
    if header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let mut link = Link {
        index: header.index,
        loopback: header.flags.contains(LinkFlags::Loopback),
        up: header.flags.contains(LinkFlags::Up),
        carrier: header.flags.contains(LinkFlags::LowerUp),
        link_type: match header.link_layer_type {
            LinkLayerType::Ether => "ether".to_owned(),
            LinkLayerType::Infiniband => "infiniband".to_owned(),
            _ => String::new(),
        },
        ..Link::default()
    };
    let (mut below, mut is_below_elsewhere) = (None, false);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Link(index) => below = Some(*index),
            LinkAttribute::LinkNetNsId(_) => is_below_elsewhere = true,
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(bytes) => {
                let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                link.mac = bytes.join(":");
            }
            LinkAttribute::Controller(master) => link.master = (*master != 0).then_some(*master),
            LinkAttribute::PropList(names) => {
                link.alt_names.extend(names.iter().filter_map(|prop| match prop {
                    Prop::AltIfName(name) => Some(name.clone()),
                    _ => None,
                }));
            }
            LinkAttribute::LinkInfo(infos) => {
                let kind = |info: &LinkInfo| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                };
                link.kind = infos.iter().find_map(kind);
            }
            LinkAttribute::Wireless(_) => return None,
            _ => {}
        }
    }
    let is_pair = link.kind.as_deref().is_some_and(|kind| PAIRS.contains(&kind));
    link.below = below.filter(|index| *index != 0 && !is_below_elsewhere && !is_pair);
    Some(link)
}

fn left(message: &LinkMessage) -> Option<Change> {
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let (mut to, mut new_index) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::NewNetnsId(id) => to = Some(*id),
            LinkAttribute::NewIfIndex(index) => new_index = Some(*index),
            _ => {}
        }
    }
    Some(Change::Left { index: message.header.index, to: to.map(|namespace| (namespace, new_index)) })
}

/// A global address that a link has got, or has lost.
fn address(message: &AddressMessage, is_there: bool) -> Option<Change> {
    let find = |own: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) if own => Some(*address),
            AddressAttribute::Address(address) if !own => Some(*address),
            _ => None,
        })
    };
    let is_global = message.header.scope == AddressScope::Universe;
    let address = find(true).or_else(|| find(false)).filter(|_| is_global)?;
    Some(Change::Address { index: message.header.index, address, is_there })
}
