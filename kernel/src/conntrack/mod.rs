//! Connection tracking: lists and deletes flows.
//!
//! The kernel applies NAT rules only to the first packet of a flow. A UDP client that keeps sending keeps its
//! flow, and so keeps the translation of rules that have changed. Plugins delete such flows, so that the next
//! packet passes the rules again.
//!
//! # References
//! linux/netfilter/nfnetlink_conntrack.h

mod wire;

use std::net::IpAddr;

use nix::errno::Errno;

use crate::ip::IpFamily;
use crate::netlink::{Error, Message, Socket};

/// The protocol number of TCP.
pub const TCP: u8 = 6;
/// The protocol number of UDP.
pub const UDP: u8 = 17;
/// The protocol number of SCTP.
pub const SCTP: u8 = 132;
/// The most deletions that are written before they are sent: there may be hundreds of thousands.
const PART: usize = 1024;
/// `IPS_DST_NAT`: the destination was translated.
pub const DST_NAT: u32 = 1 << 5;

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

/// A tracked flow (a conntrack entry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The transport protocol number.
    pub proto: u8,
    /// The packets of the client, before translation.
    pub original: Tuple,
    /// The packets of the server. Their source is the translated destination of the flow.
    pub reply: Tuple,
    /// `IPS_*`.
    pub status: u32,
    /// Identifies this flow in a deletion, and never a later flow with the same addresses.
    id: wire::FlowId,
}

impl Flow {
    /// The flow in the kernel's description. `None` if it is not one of a flow.
    pub fn parse(body: &[u8]) -> Option<Flow> {
        wire::read(body)
    }
}

/// Selects the flows to list. Linux 5.8 and later apply the filter in the kernel. An older kernel sends all
/// flows of the family, and [`flows`] filters them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The family.
    pub family: IpFamily,
    /// The transport protocol number.
    pub proto: u8,
    /// The destination port of the original direction; `None` for any.
    pub dst_port: Option<u16>,
}

/// An end of a flow, as the pod or the host there knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The client: the source of the original direction.
    Client(IpAddr),
    /// The server behind all translation: the source of the replies.
    Server(IpAddr),
}

impl Peer {
    fn address(self) -> IpAddr {
        let (Peer::Client(address) | Peer::Server(address)) = self;
        address
    }
}

/// Lists the flows of all protocols with this end. For IPv4, Linux 5.8 and later apply the filter in the kernel; for IPv6 it sends
/// the flows of the whole family.
pub fn flows_of(socket: &mut Socket, peer: Peer) -> Result<Vec<Flow>, Error> {
    select(socket, wire::list_of(peer), |original, reply| match peer {
        Peer::Client(address) => original.src == address,
        Peer::Server(address) => reply.src == address,
    })
}

/// Lists the flows of a family, or of both in one walk of the kernel through its table, whose original and reply direction are wanted. A
/// flow that is not costs less.
pub fn all_flows(
    socket: &mut Socket,
    family: Option<IpFamily>,
    is_wanted: impl Fn(&Tuple, &Tuple) -> bool,
) -> Result<Vec<Flow>, Error> {
    select(socket, wire::list_all(family), is_wanted)
}

fn select(
    socket: &mut Socket,
    dump: Message,
    is_wanted: impl Fn(&Tuple, &Tuple) -> bool,
) -> Result<Vec<Flow>, Error> {
    let mut found = Vec::new();
    socket.visit(dump, &mut |body| {
        if wire::tuples(body).is_some_and(|(_, original, reply)| is_wanted(&original, &reply)) {
            found.extend(Flow::parse(body));
        }
    })?;
    Ok(found)
}

/// How many flows of all families the kernel tracks in the socket's namespace.
pub fn count(socket: &mut Socket) -> Result<usize, Error> {
    let bodies = socket.request(wire::count().one_answer())?;
    bodies
        .first()
        .and_then(|body| wire::read_count(body))
        .and_then(|count| count.try_into().ok())
        .ok_or_else(|| Error::from(Errno::EPROTO))
}

/// Lists the flows that match the filter.
pub fn flows(socket: &mut Socket, filter: Filter) -> Result<Vec<Flow>, Error> {
    let bodies = socket.request(wire::list(filter))?;
    let mut flows: Vec<Flow> = bodies.iter().filter_map(|body| Flow::parse(body)).collect();
    flows.retain(|flow| {
        flow.proto == filter.proto && filter.dst_port.is_none_or(|port| flow.original.dst_port == port)
    });
    Ok(flows)
}

/// Deletes the flows and returns the number of deleted ones. A flow that no longer exists is not an error.
///
/// # Errors
/// The first error; the other deletions are still tried.
pub fn delete(socket: &mut Socket, flows: &[Flow]) -> Result<usize, Error> {
    let mut outcome = Ok(0);
    for part in flows.chunks(PART) {
        for answer in socket.requests(part.iter().map(wire::delete).collect()) {
            match answer {
                Ok(_) => outcome = outcome.map(|count| count + 1),
                Err(error) if error.errno == Errno::ENOENT => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
    }
    outcome
}
