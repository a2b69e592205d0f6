//! What a hostile pod writes: a row for each form of packet.

use std::net::IpAddr;

use super::packets::{ACK, Ends, ICMPV6, SCTP, SYN, TCP, UDP, extension, icmp_of, routing};
use Class::{Odd, OddUdp, Open, Udp};

/// The port to which UDP is allowed, from some.
pub(crate) const PORT: u16 = 81;

/// Addresses of one family that a packet may claim.
pub(crate) struct Others {
    /// A pod that may reach the victim.
    pub(crate) ally: IpAddr,
    pub(crate) node: IpAddr,
    pub(crate) outside: IpAddr,
    pub(crate) foreign: IpAddr,
}

/// What becomes of a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It passes where UDP to the port is allowed.
    Udp,
    /// It passes where nothing is denied.
    Open,
    /// The kernel passes it nowhere, or it depends on the kernel.
    Odd,
    /// The same where UDP to the port is allowed; it passes nowhere else.
    OddUdp,
}

pub(crate) type Write = fn(&Ends, &Others, &[u8]) -> Vec<Vec<u8>>;

const BOTH: &[bool] = &[false, true];
const V4: &[bool] = &[false];
const V6: &[bool] = &[true];

fn claims(ends: &Ends, source: IpAddr, data: &[u8]) -> Vec<Vec<u8>> {
    let forged = Ends { source, ..*ends };
    vec![forged.packet(UDP, &forged.udp(data))]
}

fn tcp(ends: &Ends, flags: u8, data: &[u8]) -> Vec<Vec<u8>> {
    vec![ends.packet(TCP, &ends.tcp(flags, data))]
}

fn headers(ends: &Ends, kinds: &[u8], data: &[u8]) -> Vec<Vec<u8>> {
    let mut part = ends.udp(data);
    let mut next = UDP;
    for kind in kinds.iter().rev() {
        part = [&extension(next)[..], &part].concat();
        next = *kind;
    }
    vec![ends.ipv6(next, &part)]
}

/// An ICMP message with the whole mark behind its header.
fn icmp(ends: &Ends, [kind4, kind6]: [u8; 2], data: &[u8]) -> Vec<Vec<u8>> {
    let kind = if ends.source.is_ipv4() { kind4 } else { kind6 };
    vec![ends.packet(icmp_of(ends.source), &ends.icmp(kind, 0, &[&[0, 7, 0, 1], data].concat()))]
}

fn neighbour(ends: &Ends, kind: u8, target: IpAddr, data: &[u8]) -> Vec<Vec<u8>> {
    let IpAddr::V6(target) = target else { return Vec::new() };
    let option = [2, 1, 2, 0, 0, 0, 0, 9];
    let rest = [&[0x60, 0, 0, 0], &target.octets()[..], &option, data].concat();
    vec![ends.ipv6_hops(ICMPV6, 255, &ends.icmp(kind, 0, &rest))]
}

const HOPS: u8 = 0;
const DESTINATION: u8 = 60;
const ROUTING: u8 = 43;

#[rustfmt::skip]
pub(crate) const FORMS: &[(&str, &[bool], Class, Write)] = &[
    ("UDP", BOTH, Udp, |ends, _, data| vec![ends.packet(UDP, &ends.udp(data))]),
    ("UDP from the allowed port, as an answer", BOTH, Open, |ends, _, data| {
        let answer = Ends { ports: [PORT, ends.ports[0]], ..*ends };
        vec![answer.packet(UDP, &answer.udp(data))]
    }),
    ("from the ally's address", BOTH, Open, |ends, others, data| claims(ends, others.ally, data)),
    ("from its receiver's address", BOTH, Open, |ends, _, data| claims(ends, ends.destination, data)),
    ("from the node's address", BOTH, Odd, |ends, others, data| claims(ends, others.node, data)),
    ("from outside", BOTH, Open, |ends, others, data| claims(ends, others.outside, data)),
    ("from an address of its own link", BOTH, Open, |ends, others, data| claims(ends, others.foreign, data)),
    ("from no address", V6, Odd, |ends, _, data| {
        claims(ends, "::".parse().unwrap(), data)
    }),
    ("SYN", BOTH, Open, |ends, _, data| tcp(ends, SYN, data)),
    ("ACK", BOTH, Open, |ends, _, data| tcp(ends, ACK, data)),
    ("SYN and ACK", BOTH, Open, |ends, _, data| tcp(ends, SYN | ACK, data)),
    ("RST", BOTH, Open, |ends, _, data| tcp(ends, 4, data)),
    ("FIN", BOTH, Open, |ends, _, data| tcp(ends, 1, data)),
    ("no flags", BOTH, Open, |ends, _, data| tcp(ends, 0, data)),
    ("SYN and FIN", BOTH, Open, |ends, _, data| tcp(ends, SYN | 1, data)),
    ("SCTP", BOTH, Open, |ends, _, data| vec![ends.packet(SCTP, &ends.sctp(data))]),
    ("UDP-Lite", BOTH, Open, |ends, _, data| vec![ends.packet(136, &ends.udp(data))]),
    ("protocol 253", BOTH, Open, |ends, _, data| vec![ends.packet(253, &ends.udp(data))]),
    ("GRE", BOTH, Open, |ends, _, data| {
        vec![ends.packet(47, &[&[0, 0, 8, 0], &ends.packet(UDP, &ends.udp(data))[..]].concat())]
    }),
    ("IP in IP", BOTH, Open, |ends, _, data| {
        let kind = if ends.source.is_ipv4() { 4 } else { 41 };
        vec![ends.packet(kind, &ends.packet(UDP, &ends.udp(data)))]
    }),
    ("echo request", BOTH, Open, |ends, _, data| icmp(ends, [8, 128], data)),
    ("echo answer", BOTH, Open, |ends, _, data| icmp(ends, [0, 129], data)),
    ("unreachable, about nothing", BOTH, Open, |ends, _, data| icmp(ends, [3, 1], data)),
    ("redirect", BOTH, Open, |ends, _, data| icmp(ends, [5, 137], data)),
    ("two fragments", BOTH, Udp, |ends, _, data| ends.in_two(UDP, &ends.udp(data), 24).into()),
    ("two fragments, the later one first", BOTH, Udp, |ends, _, data| {
        let [one, two] = ends.in_two(UDP, &ends.udp(data), 24);
        vec![two, one]
    }),
    ("a first fragment alone", BOTH, Odd, |ends, _, data| vec![ends.in_two(UDP, &ends.udp(data), 24)[0].clone()]),
    ("a later fragment alone", BOTH, Odd, |ends, _, data| vec![ends.in_two(UDP, &ends.udp(data), 24)[1].clone()]),
    ("a first fragment of eight bytes", BOTH, Odd, |ends, _, data| ends.in_two(TCP, &ends.tcp(SYN, data), 8).into()),
    ("fragments that overlap in the ports", BOTH, OddUdp, |ends, _, data| {
        let (denied, allowed) = (ends.tcp(SYN, data), Ends { ports: [ends.ports[0], PORT], ..*ends }.udp(data));
        ends.fragments(UDP, [(0, true, &allowed[..24]), (0, true, &denied[..24]), (24, false, &allowed[24..])]).into()
    }),
    ("padding options", V4, Udp, |ends, _, data| vec![ends.ipv4(UDP, (0, false), &[1; 4], &ends.udp(data))]),
    ("record route", V4, Udp, |ends, _, data| {
        vec![ends.ipv4(UDP, (0, false), &[7, 7, 4, 0, 0, 0, 0, 0], &ends.udp(data))]
    }),
    ("source route by the node", V4, Odd, |ends, others, data| {
        let IpAddr::V4(last) = ends.destination else { return Vec::new() };
        let [a, b, c, d] = last.octets();
        let by = Ends { destination: others.node, ..*ends };
        vec![by.ipv4(UDP, (0, false), &[131, 7, 4, a, b, c, d, 0], &ends.udp(data))]
    }),
    ("hop by hop", V6, Udp, |ends, _, data| headers(ends, &[HOPS], data)),
    ("destination options", V6, Udp, |ends, _, data| headers(ends, &[DESTINATION], data)),
    ("eight destination options", V6, Udp, |ends, _, data| headers(ends, &[DESTINATION; 8], data)),
    ("hop by hop, then destination options", V6, Udp, |ends, _, data| headers(ends, &[HOPS, DESTINATION], data)),
    ("hop by hop behind destination options", V6, OddUdp, |ends, _, data| headers(ends, &[DESTINATION, HOPS], data)),
    ("a used routing header of type 0", V6, Udp, |ends, others, data| {
        vec![ends.ipv6(ROUTING, &[routing(UDP, 0, 0, others.ally), ends.udp(data)].concat())]
    }),
    ("a routing header of type 0 by the node", V6, Odd, |ends, others, data| {
        let by = Ends { destination: others.node, ..*ends };
        vec![by.ipv6(ROUTING, &[routing(UDP, 0, 1, ends.destination), ends.udp(data)].concat())]
    }),
    ("a routing header of type 2 by the node", V6, Odd, |ends, others, data| {
        let by = Ends { destination: others.node, ..*ends };
        vec![by.ipv6(ROUTING, &[routing(UDP, 2, 1, ends.destination), ends.udp(data)].concat())]
    }),
    ("no next header", V6, Open, |ends, _, data| vec![ends.ipv6(59, data)]),
    ("ESP", V6, Open, |ends, _, data| vec![ends.ipv6(50, &ends.udp(data))]),
    ("one fragment that is all", V6, Udp, |ends, _, data| {
        ends.fragments(UDP, [(0, false, &ends.udp(data))]).into()
    }),
    ("the ports in a later fragment", V6, OddUdp, |ends, _, data| {
        let options = [&extension(UDP)[..], data].concat();
        ends.fragments(DESTINATION, [(0, true, &options[..8]), (8, false, &ends.udp(data))]).into()
    }),
    ("neighbour solicitation", V6, Odd, |ends, others, data| neighbour(ends, 135, others.ally, data)),
    ("neighbour advertisement", V6, Odd, |ends, others, data| neighbour(ends, 136, others.ally, data)),
];

/// An error of ICMP that is about a flow between these ends.
pub(crate) fn error(ends: &Ends, about: &Ends, data: &[u8]) -> Vec<Vec<u8>> {
    let quoted = about.packet(UDP, &about.udp(data));
    let (kind, code) = if ends.source.is_ipv4() { (3, 3) } else { (1, 4) };
    vec![ends.packet(icmp_of(ends.source), &ends.icmp(kind, code, &[&[0; 4], &quoted[..]].concat()))]
}
