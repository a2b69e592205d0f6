//! Encoding and decoding of ctnetlink messages.

use std::net::IpAddr;

use super::{Filter, Flow, Peer, Tuple};
use crate::ip::{IpFamily, from_octets};
use crate::netlink::Message;
use crate::netlink::message::{F_DUMP, find_attr};

/// The message types: `NFNL_SUBSYS_CTNETLINK` in the upper byte, `IPCTNL_MSG_CT_GET`, `_DELETE` or `_GET_STATS` in the
/// lower.
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const GET_STATS: u16 = 1 << 8 | 5;
/// Length of `struct nfgenmsg`, which precedes the attributes.
const HEADER: usize = 4;

// CTA_*
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
// CTA_TUPLE_*
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
// CTA_PROTO_*
const PROTO_NUMBER: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
const PROTO_DST_PORT: u16 = 3;
/// `CTA_FILTER_ORIG_FLAGS`, and its bits: one for each field to compare.
const FILTER_ORIGINAL: u16 = 1;
/// `CTA_FILTER_REPLY_FLAGS`, with the same bits.
const FILTER_REPLY: u16 = 2;
/// `CTA_STATS_GLOBAL_ENTRIES`
const ENTRIES: u16 = 1;
const BY_SOURCE: u32 = 1;
const BY_PROTO: u32 = 1 << 3;
const BY_DST_PORT: u32 = 1 << 5;

/// The attributes that identify a flow: its original tuple, its zone and its ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlowId {
    family: u8,
    attributes: Vec<(u16, Vec<u8>)>,
}

/// `struct nfgenmsg` with an address family, version 0 and no resource ID.
const fn header(family: u8) -> [u8; HEADER] {
    [family, 0, 0, 0]
}

pub(super) fn list(filter: Filter) -> Message {
    let flags = BY_PROTO | if filter.dst_port.is_some() { BY_DST_PORT } else { 0 };
    Message::new(GET, F_DUMP, &header(filter.family.number()))
        .nest(ORIGINAL, |tuple| {
            tuple.nest(TUPLE_PROTO, |proto| {
                let proto = proto.attr(PROTO_NUMBER, &[filter.proto]);
                proto.attr_if(PROTO_DST_PORT, filter.dst_port.map(u16::to_be_bytes))
            })
        })
        .nest(FILTER, |message| message.attr_u32(FILTER_ORIGINAL, flags))
}

/// Of both families without one.
pub(super) fn list_all(family: Option<IpFamily>) -> Message {
    Message::new(GET, F_DUMP, &header(family.map_or(0, IpFamily::number)))
}

pub(super) fn count() -> Message {
    Message::new(GET_STATS, 0, &header(0))
}

pub(super) fn read_count(body: &[u8]) -> Option<u32> {
    find_attr(body.get(HEADER..)?, ENTRIES)?.try_into().ok().map(u32::from_be_bytes)
}

/// The filter is for IPv4 alone: the kernel (6.18 and before) selects the flows that do not have an IPv6 address.
pub(super) fn list_of(peer: Peer) -> Message {
    let (tuple, flags) = match peer {
        Peer::Client(_) => (ORIGINAL, FILTER_ORIGINAL),
        Peer::Server(_) => (REPLY, FILTER_REPLY),
    };
    let all = list_all(Some(IpFamily::of(peer.address())));
    match peer.address() {
        // CTA_IP_V4_SRC
        IpAddr::V4(address) => all
            .nest(tuple, |tuple| tuple.nest(TUPLE_IP, |ip| ip.attr(1, &address.octets())))
            .nest(FILTER, |message| message.attr_u32(flags, BY_SOURCE)),
        IpAddr::V6(_) => all,
    }
}

pub(super) fn delete(flow: &Flow) -> Message {
    let start = Message::new(DELETE, 0, &header(flow.id.family));
    // NLA_F_NESTED: the value contains attributes.
    const NESTED: u16 = 1 << 15;
    flow.id.attributes.iter().fold(start, |message, (kind, value)| {
        message.attr(if *kind == ORIGINAL { kind | NESTED } else { *kind }, value)
    })
}

pub(super) fn read(body: &[u8]) -> Option<Flow> {
    let attributes = body.get(HEADER..)?;
    let family = body[0];
    let (proto, original, reply) = tuples(body)?;
    let status = find_attr(attributes, STATUS).and_then(|value| value.try_into().ok());
    let id = [ORIGINAL, ID, ZONE]
        .into_iter()
        .filter_map(|kind| find_attr(attributes, kind).map(|value| (kind, value.to_vec())));
    Some(Flow {
        proto,
        original,
        reply,
        status: status.map_or(0, u32::from_be_bytes),
        id: FlowId { family, attributes: id.collect() },
    })
}

/// The protocol, and the original and the reply direction.
pub(super) fn tuples(body: &[u8]) -> Option<(u8, Tuple, Tuple)> {
    let attributes = body.get(HEADER..)?;
    let (proto, original) = tuple(find_attr(attributes, ORIGINAL)?)?;
    let (_, reply) = tuple(find_attr(attributes, REPLY)?)?;
    Some((proto, original, reply))
}

fn tuple(attributes: &[u8]) -> Option<(u8, Tuple)> {
    let ip = find_attr(attributes, TUPLE_IP)?;
    let address = |kinds: [u16; 2]| kinds.into_iter().find_map(|kind| from_octets(find_attr(ip, kind)?));
    let proto = find_attr(attributes, TUPLE_PROTO)?;
    let port = |kind| find_attr(proto, kind).and_then(|value| value.try_into().ok()).map(u16::from_be_bytes);
    let number = *find_attr(proto, PROTO_NUMBER)?.first()?;
    let tuple = Tuple {
        // CTA_IP_V4_SRC or CTA_IP_V6_SRC
        src: address([1, 3])?,
        // CTA_IP_V4_DST or CTA_IP_V6_DST
        dst: address([2, 4])?,
        src_port: port(PROTO_SRC_PORT).unwrap_or_default(),
        dst_port: port(PROTO_DST_PORT).unwrap_or_default(),
    };
    Some((number, tuple))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> Vec<u8> {
        let ports = |message: Message, src: u16, dst: u16| {
            message
                .attr(PROTO_NUMBER, &[17])
                .attr(PROTO_SRC_PORT, &src.to_be_bytes())
                .attr(PROTO_DST_PORT, &dst.to_be_bytes())
        };
        let message = Message::new(0, 0, &header(2))
            .nest(ORIGINAL, |m| {
                m.nest(TUPLE_IP, |m| m.attr(1, &[192, 0, 2, 2]).attr(2, &[192, 0, 2, 1]))
                    .nest(TUPLE_PROTO, |m| ports(m, 4000, 53))
            })
            .nest(REPLY, |m| {
                m.nest(TUPLE_IP, |m| m.attr(1, &[10, 0, 0, 2]).attr(2, &[192, 0, 2, 2]))
                    .nest(TUPLE_PROTO, |m| ports(m, 5353, 4000))
            })
            .attr(STATUS, &0x28_u32.to_be_bytes())
            .attr(ID, &[1, 2, 3, 4]);
        message.finish(0, 0).unwrap()[16..].to_vec()
    }

    #[test]
    fn a_flow_is_decoded_and_identified_in_a_deletion() {
        let flow = read(&body()).unwrap();
        assert_eq!((flow.proto, flow.status), (17, 0x28));
        assert_eq!(flow.original.dst, IpAddr::from([192, 0, 2, 1]));
        assert_eq!((flow.original.src_port, flow.original.dst_port), (4000, 53));
        assert_eq!((flow.reply.src, flow.reply.src_port), (IpAddr::from([10, 0, 0, 2]), 5353));
        let deletion = delete(&flow).finish(0, 0).unwrap();
        let attributes = &deletion[20..];
        assert_eq!(find_attr(attributes, ID), Some(&[1, 2, 3, 4][..]));
        assert_eq!(tuple(find_attr(attributes, ORIGINAL).unwrap()).unwrap().1, flow.original);
    }

    #[test]
    fn a_truncated_message_is_not_a_flow() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&body()[..40]), None);
    }
}
