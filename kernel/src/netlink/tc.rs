//! `struct tcmsg`, the header of qdisc and filter messages.
//!
//! # References
//! linux/rtnetlink.h, linux/pkt_sched.h; tc(8).

use super::message::u32_at;

/// Length of `struct tcmsg`.
pub(super) const TCMSG: usize = 20;
/// `TCA_KIND`
pub(super) const TCA_KIND: u16 = 1;
/// `TCA_OPTIONS`
pub(super) const TCA_OPTIONS: u16 = 2;

/// Encodes `struct tcmsg`. `info` is preference and protocol of a filter; 0 for a qdisc.
pub(super) fn tcmsg(link: u32, handle: u32, parent: u32, info: u32) -> [u8; TCMSG] {
    let mut header = [0; TCMSG];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header[16..20].copy_from_slice(&info.to_ne_bytes());
    header
}

/// A decoded qdisc or filter message: header fields and attributes.
pub(super) struct TcMessage<'a> {
    pub(super) handle: u32,
    pub(super) info: u32,
    pub(super) attrs: &'a [u8],
}

impl<'a> TcMessage<'a> {
    pub(super) fn read(body: &'a [u8]) -> Self {
        TcMessage {
            handle: u32_at(body, 8),
            info: u32_at(body, 16),
            attrs: body.get(TCMSG..).unwrap_or_default(),
        }
    }
}
