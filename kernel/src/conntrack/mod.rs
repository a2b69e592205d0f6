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
use crate::netlink::{Error, Socket};

/// The protocol number of UDP.
pub const UDP: u8 = 17;
/// The protocol number of SCTP.
pub const SCTP: u8 = 132;
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
    for answer in socket.requests(flows.iter().map(wire::delete).collect()) {
        match answer {
            Ok(_) => outcome = outcome.map(|count| count + 1),
            Err(error) if error.errno == Errno::ENOENT => {}
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}
