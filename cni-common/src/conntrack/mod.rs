//! Connection tracking: find flows and make the kernel forget them, so that their next packet is looked at afresh.
//!
//! A translation is decided by a flow's first packet. A UDP client that goes on sending keeps its flow, and with it an
//! old decision, for as long as it sends; hence this module.
//!
//! # References
//! linux/netfilter/nfnetlink_conntrack.h

mod wire;

use std::net::IpAddr;

use nix::errno::Errno;

use crate::netlink::{Error, Socket};

/// UDP's number.
pub const UDP: u8 = 17;
/// SCTP's number.
pub const SCTP: u8 = 132;
/// `IPS_DST_NAT`: the destination was translated.
pub const DST_NAT: u32 = 1 << 5;

/// How many deletions go into one datagram; their answers wait in the socket's buffer.
const AT_ONCE: usize = 100;

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

/// A tracked flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The transport protocol's number.
    pub proto: u8,
    /// As the side that began sends it.
    pub original: Tuple,
    /// As the other side answers: its source is where the flow really goes.
    pub reply: Tuple,
    /// `IPS_*`.
    pub status: u32,
    /// What names this flow in a deletion, and no later one with the same addresses.
    name: wire::Name,
}

/// Which flows to list. The kernel applies it, from Linux 5.8; with an older one all flows of the family are transferred
/// and filtered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// IPv6 or IPv4.
    pub v6: bool,
    /// The transport protocol's number.
    pub proto: u8,
    /// The destination port that the flow's beginner sends to; `None` is any.
    pub dst_port: Option<u16>,
}

/// The flows that pass the filter.
///
/// # Errors
/// What the kernel said.
pub fn flows(socket: &mut Socket, filter: Filter) -> Result<Vec<Flow>, Error> {
    let bodies = socket.request(wire::list(filter))?;
    let mut flows: Vec<Flow> = bodies.iter().filter_map(|body| wire::read(body)).collect();
    flows.retain(|flow| {
        flow.proto == filter.proto && filter.dst_port.is_none_or(|port| flow.original.dst_port == port)
    });
    Ok(flows)
}

/// Makes the kernel forget the flows and says how many it forgot; one that has ended meanwhile is no error.
///
/// # Errors
/// The first thing the kernel said, after all were tried.
pub fn delete(socket: &mut Socket, flows: &[Flow]) -> Result<usize, Error> {
    let mut outcome = Ok(0);
    for part in flows.chunks(AT_ONCE) {
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
