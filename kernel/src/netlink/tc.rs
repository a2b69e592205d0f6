//! `struct tcmsg`, the header of qdisc and filter messages.
//!
//! # References
//! linux/rtnetlink.h, linux/pkt_sched.h; tc(8).

/// Length of `struct tcmsg`.
pub(super) const TCMSG: usize = 20;

/// The offset of the handle.
pub(super) const HANDLE: usize = 8;
/// The offset of `tcm_info`.
pub(super) const INFO: usize = 16;

/// Encodes `struct tcmsg`. `info` is preference and protocol of a filter; 0 for a qdisc.
pub(super) fn tcmsg(link: u32, handle: u32, parent: u32, info: u32) -> [u8; TCMSG] {
    let mut header = [0; TCMSG];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header[16..20].copy_from_slice(&info.to_ne_bytes());
    header
}

/// The attributes of a qdisc or filter message.
pub(super) fn attributes(body: &[u8]) -> &[u8] {
    body.get(TCMSG..).unwrap_or_default()
}
