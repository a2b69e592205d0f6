//! The decoders of bytes from other processes, for the fuzzer: each takes any bytes and must neither panic nor run for ever.

use crate::conntrack::wire;
use crate::dbus::Numbers;
use crate::grpc::answer::{Answer, Frame};
use crate::grpc::hpack as header_block;
use crate::iptables::Listing;
use crate::netlink::message::{attrs, messages};
use crate::netlink::{self, addr, features, filter, link, nsid, qdisc, route, rule, stored_route};
use crate::nftables::{read, set};

/// The longest message that [`http2`] accepts, in bytes.
const LONGEST: usize = 4096;

/// A datagram of rtnetlink or generic netlink. Each reader sees the body of each message.
pub fn netlink(bytes: &[u8]) {
    for message in messages(bytes) {
        let answer = || -> netlink::Answer { Ok(vec![message.body.to_vec()]) };
        let _ = netlink::error::read(message.flags, message.body);
        let _ = link::read(answer());
        let _ = addr::read_all(answer());
        let _ = route::read(answer());
        let _ = stored_route::read(answer());
        let _ = rule::read(answer());
        let _ = filter::read(answer());
        let _ = qdisc::read(answer());
        features::parse(message.body);
        let _ = nsid::read(answer());
        for (_, value) in attrs(message.body) {
            let _ = attrs(value).count();
        }
    }
}

/// A datagram of nf_tables: chains, rules, elements.
pub fn nftables(bytes: &[u8]) {
    for message in messages(bytes) {
        read::read_chain(message.body);
        set::read_list(message.body);
        let rule = read::read_rule(message.body.get(4..).unwrap_or_default());
        let _ = (rule.decode(), rule.effect(), rule.jump_target(), rule.source(), rule.compat_comment());
        let _ = (rule.accepts(), rule.drops_everything());
    }
}

/// A datagram of connection tracking.
pub fn conntrack(bytes: &[u8]) {
    for message in messages(bytes) {
        wire::read(message.body);
    }
}

/// A header block of HTTP/2.
pub fn hpack(bytes: &[u8]) {
    let _ = header_block::decode(bytes, |_, _| {});
}

/// The frames of a server of gRPC.
pub fn http2(mut bytes: &[u8]) {
    let mut answer = Answer::new(LONGEST);
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let Ok(frame) = Frame::parse(*header) else { return };
        let Some((payload, rest)) = rest.split_at_checked(frame.len) else { return };
        if answer.take(frame, payload).is_err() {
            return;
        }
        bytes = rest;
    }
    let _ = answer.into_message();
}

/// Header fields and body of an answer of D-Bus, in both byte orders.
pub fn dbus(bytes: &[u8]) {
    for is_big_endian in [false, true] {
        let numbers = Numbers { is_big_endian };
        let _ = numbers.reply_serial(bytes);
        let _ = numbers.text(bytes);
    }
}

/// The output of `iptables-save`.
pub fn iptables_save(bytes: &[u8]) {
    let listing = Listing::parse(&String::from_utf8_lossy(bytes));
    for chain in &listing.chains {
        let _ = (listing.rules_of(chain).count(), listing.jumps_to(chain).count());
    }
}
