//! Queueing disciplines (qdiscs): the token bucket filter (tbf), and the ingress and clsact qdiscs, which
//! hold filters.
//!
//! # References
//! linux/pkt_sched.h, net/sched/sch_tbf.c; tc-tbf(8).

use nix::errno::Errno;
use nix::libc::{RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC, TCA_KIND, TCA_OPTIONS, TCA_STATS2};

use super::error::Error;
use super::message::{F_CREATE, F_DUMP, F_ECHO, F_EXCL, F_REPLACE, Message, find_attr, text, u32_at, u64_at};
use super::socket::{Answer, Socket, ignoring};
use super::tc::{HANDLE, attributes, tcmsg};

const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
/// Offset of `drops` in `struct gnet_stats_queue`.
const QUEUE_DROPS: usize = 8;
const TCA_INGRESS_BLOCK: u16 = 13;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// Offsets in `struct tc_tbf_qopt`: the last field of `rate` (`struct tc_ratespec`), and the fields after
/// `peakrate`.
const PARMS_RATE: usize = 8;
const PARMS_LIMIT: usize = 24;
const PARMS_BUFFER: usize = 28;
const PARMS: usize = 36;

/// `TC_H_ROOT`: the parent of the qdisc for packets that a link sends.
pub const ROOT: u32 = 0xffff_ffff;
/// `TC_H_INGRESS`: the parent of the qdisc for packets that a link receives.
pub const INGRESS: u32 = 0xffff_fff1;
/// The handle `1:`.
pub const FIRST: u32 = 0x0001_0000;
/// The handle of the ingress qdisc, `ffff:`.
pub const HOOK: u32 = 0xffff_0000;

/// The length of a tbf tick in nanoseconds (`PSCHED_SHIFT`); the same in every kernel since 2.6.31.
pub const TICK: u64 = 64;
/// The largest [`Tbf::buffer`] in ticks. From a larger one the kernel derives a wrong maximum packet size,
/// because it truncates the time to 2^32 ns.
pub const LONGEST_BUCKET: u32 = 0x03ff_ffff;

/// A token bucket filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tbf {
    /// The rate in bytes per second.
    pub rate: u64,
    /// The size of the queue in bytes.
    pub limit: u32,
    /// The size of the bucket, as the time that filling it takes, in ticks of 64 ns.
    pub buffer: u32,
    /// The size of the bucket in bytes. The kernel then ignores `buffer`. Needed if filling the bucket takes
    /// longer than [`LONGEST_BUCKET`]. The kernel does not report it.
    pub burst: Option<u32>,
}

/// A qdisc in an answer of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// Its kind, such as `tbf`.
    pub kind: String,
    /// Its handle; 0 for the kernel's default qdisc.
    pub handle: u32,
    /// Its parameters, if it is a token bucket filter.
    pub tbf: Option<Tbf>,
}

/// A qdisc in a dump of all qdiscs, with its place and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The index of its link.
    pub link: u32,
    /// Its parent, such as [`ROOT`] or [`INGRESS`].
    pub parent: u32,
    /// The qdisc.
    pub qdisc: Qdisc,
    /// The bytes that it has passed on.
    pub bytes: u64,
    /// The packets that it has dropped.
    pub drops: u64,
}

impl Listed {
    fn parse(body: &[u8]) -> Listed {
        let stats = find_attr(attributes(body), TCA_STATS2).unwrap_or_default();
        Listed {
            link: u32_at(body, 4),
            parent: u32_at(body, 12),
            qdisc: parse(body),
            bytes: find_attr(stats, TCA_STATS_BASIC).map_or(0, |basic| u64_at(basic, 0)),
            drops: find_attr(stats, TCA_STATS_QUEUE).map_or(0, |queue| u32_at(queue, QUEUE_DROPS)).into(),
        }
    }
}

impl Socket {
    /// The qdiscs of all links, by one dump.
    pub fn qdiscs(&mut self) -> Result<Vec<Listed>, Error> {
        let bodies = self.request(Message::new(RTM_GETQDISC, F_DUMP, &tcmsg(0, 0, 0, 0)))?;
        Ok(bodies.iter().map(|body| Listed::parse(body)).collect())
    }
}

/// A request for the qdisc at a parent, [`ROOT`] or [`INGRESS`]. The reply is a notification; without
/// `NLM_F_ECHO` the kernel skips the sender.
pub fn get(link: u32, parent: u32) -> Message {
    Message::new(RTM_GETQDISC, F_ECHO, &tcmsg(link, 0, parent, 0))
}

/// A request that removes the qdisc at a parent.
pub fn delete(link: u32, parent: u32) -> Message {
    Message::new(RTM_DELQDISC, 0, &tcmsg(link, 0, parent, 0))
}

/// A request that makes a token bucket filter with handle `1:` the root qdisc. `EEXIST` if the link already
/// has a root qdisc other than the default.
pub fn create_tbf(link: u32, tbf: &Tbf) -> Message {
    set_tbf(link, F_CREATE | F_EXCL, tbf)
}

/// A request that makes a token bucket filter with handle `1:` the root qdisc, or changes the parameters of
/// an existing one.
pub fn replace_tbf(link: u32, tbf: &Tbf) -> Message {
    set_tbf(link, F_CREATE | F_REPLACE, tbf)
}

fn set_tbf(link: u32, flags: u16, tbf: &Tbf) -> Message {
    let mut parms = [0; PARMS];
    // The field has 32 bits. A higher rate is also in TCA_TBF_RATE64, and the kernel uses the larger of the
    // two.
    let low = (tbf.rate & u64::from(u32::MAX)) as u32;
    parms[PARMS_RATE..PARMS_RATE + 4].copy_from_slice(&low.to_ne_bytes());
    parms[PARMS_LIMIT..PARMS_LIMIT + 4].copy_from_slice(&tbf.limit.to_ne_bytes());
    parms[PARMS_BUFFER..PARMS_BUFFER + 4].copy_from_slice(&tbf.buffer.to_ne_bytes());
    let rate64 = (tbf.rate > u64::from(u32::MAX)).then(|| tbf.rate.to_ne_bytes());
    let message = Message::new(RTM_NEWQDISC, flags, &tcmsg(link, FIRST, ROOT, 0)).attr_text(TCA_KIND, "tbf");
    message.nest(TCA_OPTIONS, |options| {
        options
            .attr(TCA_TBF_PARMS, &parms)
            .attr_if(TCA_TBF_BURST, tbf.burst.map(u32::to_ne_bytes))
            .attr_if(TCA_TBF_RATE64, rate64)
    })
}

/// A request that makes the ingress qdisc of a link. `EEXIST` if the link has an ingress or clsact qdisc.
pub fn create_ingress(link: u32) -> Message {
    Message::new(RTM_NEWQDISC, F_CREATE | F_EXCL, &tcmsg(link, HOOK, INGRESS, 0))
        .attr_text(TCA_KIND, "ingress")
        .nest(TCA_OPTIONS, |options| options)
}

/// A request for a root qdisc of this kind with an invalid filter block. Since Linux 4.17 it fails before the
/// kernel makes a qdisc; [`is_unknown_kind`] of the answer says whether the kernel supports the kind.
pub fn probe(link: u32, kind: &str) -> Message {
    Message::new(RTM_NEWQDISC, F_CREATE | F_EXCL, &tcmsg(link, 0, ROOT, 0))
        .attr_text(TCA_KIND, kind)
        .attr_u32(TCA_INGRESS_BLOCK, 0)
}

/// Whether the answer to a probe means that the kernel does not have the kind of qdisc, filter or action and
/// cannot load its module.
pub fn is_unknown_kind(answer: &Answer) -> bool {
    matches!(answer, Err(error) if error.errno == Errno::ENOENT)
}

/// The qdisc in the answer to [`get`]. `None` if the parent has no qdisc.
///
/// # Errors
/// Any other error of the kernel, for example `ENODEV` if the link does not exist.
pub fn read(answer: Answer) -> Result<Option<Qdisc>, Error> {
    Ok(ignoring(answer, &[Errno::ENOENT])?.first().map(|body| parse(body)))
}

fn parse(body: &[u8]) -> Qdisc {
    let kind = find_attr(attributes(body), TCA_KIND).map(text).unwrap_or_default();
    let options = find_attr(attributes(body), TCA_OPTIONS).filter(|_| kind == "tbf");
    let tbf = options.and_then(|options| {
        let parms = find_attr(options, TCA_TBF_PARMS)?;
        let rate64 = find_attr(options, TCA_TBF_RATE64).map(|rate| u64_at(rate, 0));
        Some(Tbf {
            rate: rate64.unwrap_or(u64::from(u32_at(parms, PARMS_RATE))),
            limit: u32_at(parms, PARMS_LIMIT),
            buffer: u32_at(parms, PARMS_BUFFER),
            burst: None,
        })
    });
    Qdisc { kind, handle: u32_at(body, HANDLE), tbf }
}

#[cfg(test)]
mod tests {
    use super::super::message::{HEADER, attrs};
    use super::*;

    fn body(message: Message) -> Vec<u8> {
        message.finish(1, 0).unwrap()[HEADER..].to_vec()
    }

    #[test]
    fn a_token_bucket_filter_is_encoded_and_decoded() {
        for tbf in [
            Tbf { rate: 1_250_000, limit: 156_250, buffer: 1_562_500, burst: None },
            Tbf { rate: 5_000_000_000, limit: 661_870_911, buffer: 1_677_718, burst: None },
        ] {
            let qdisc = parse(&body(create_tbf(7, &tbf)));
            assert_eq!(qdisc, Qdisc { kind: "tbf".to_owned(), handle: FIRST, tbf: Some(tbf) });
        }
    }

    #[test]
    fn the_counters_of_a_listed_qdisc_are_decoded() {
        let mut queue = [0; 20];
        queue[QUEUE_DROPS..QUEUE_DROPS + 4].copy_from_slice(&7_u32.to_ne_bytes());
        let tbf = Tbf { rate: 1_000, limit: 1, buffer: 1, burst: None };
        let message = create_tbf(9, &tbf).nest(TCA_STATS2, |stats| {
            stats
                .attr(TCA_STATS_BASIC, &[5_u64.to_ne_bytes(), 1_u64.to_ne_bytes()].concat())
                .attr(TCA_STATS_QUEUE, &queue)
        });
        let listed = Listed::parse(&body(message));
        assert_eq!((listed.link, listed.parent, listed.bytes, listed.drops), (9, ROOT, 5, 7));
        assert_eq!(listed.qdisc.tbf, Some(tbf));
    }

    #[test]
    fn burst_and_rate64_are_sent_only_if_needed() {
        let kinds = |tbf: Tbf| -> Vec<u16> {
            let body = body(create_tbf(7, &tbf));
            let options = find_attr(&body[super::super::tc::TCMSG..], TCA_OPTIONS).unwrap().to_vec();
            attrs(&options).map(|(kind, _)| kind).collect()
        };
        assert_eq!(kinds(Tbf { rate: 1, ..Tbf::default() }), [TCA_TBF_PARMS]);
        assert_eq!(kinds(Tbf { rate: 1, burst: Some(9), ..Tbf::default() }), [TCA_TBF_PARMS, TCA_TBF_BURST]);
        assert_eq!(kinds(Tbf { rate: 1 << 32, ..Tbf::default() }), [TCA_TBF_PARMS, TCA_TBF_RATE64]);
    }
}
