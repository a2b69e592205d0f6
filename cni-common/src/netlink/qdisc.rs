//! Queueing disciplines: the token bucket filter (tbf), and the hooks for filters (ingress, clsact).
//!
//! # References
//! linux/pkt_sched.h, net/sched/sch_tbf.c; tc-tbf(8).

use nix::errno::Errno;

use super::message::{F_CREATE, F_ECHO, F_EXCL, F_REPLACE, Message, find_attr, text, u32_at, u64_at};
use super::socket::{Answer, Error};
use super::tc::{Object, TCA_KIND, TCA_OPTIONS, tcmsg};

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// Where in `struct tc_tbf_qopt` the numbers stand: behind the rate's `struct tc_ratespec`, and behind that of the peak rate.
const PARMS_RATE: usize = 8;
const PARMS_LIMIT: usize = 24;
const PARMS_BUFFER: usize = 28;
const PARMS: usize = 36;

/// `TC_H_ROOT`: the discipline of all that a link sends.
pub const ROOT: u32 = 0xffff_ffff;
/// `TC_H_INGRESS`: the hook for what a link receives.
pub const INGRESS: u32 = 0xffff_fff1;
/// The handle `1:`
pub const FIRST: u32 = 0x0001_0000;
/// The handle of the hook, `ffff:`.
pub const HOOK: u32 = 0xffff_0000;

/// The length of one of tbf's ticks in nanoseconds (`PSCHED_SHIFT`); the same in every kernel since 2.6.31.
pub const TICK: u64 = 64;
/// The longest bucket in ticks whose largest packet the kernel derives rightly: it cuts the bucket at 2^32 nanoseconds there.
pub const LONGEST_BUCKET: u32 = 0x03ff_ffff;

/// A token bucket filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tbf {
    /// Bytes per second.
    pub rate: u64,
    /// The length of its queue in bytes.
    pub limit: u32,
    /// The size of its bucket, as the time in ticks of 64 ns that it takes to fill.
    pub buffer: u32,
    /// The size of its bucket in bytes, which then outweighs `buffer`: for a bucket that takes longer than
    /// [`LONGEST_BUCKET`] to fill. The kernel never tells it.
    pub burst: Option<u32>,
}

/// A queueing discipline as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// Its kind, such as `tbf`.
    pub kind: String,
    /// Its handle; 0 for one that the kernel put there by itself.
    pub handle: u32,
    /// Its numbers, if it is a token bucket filter.
    pub tbf: Option<Tbf>,
}

/// Asks for the discipline at a parent, [`ROOT`] or [`INGRESS`]. The kernel publishes it as if it had changed, so without
/// `NLM_F_ECHO` whoever asks is the only one who is not told.
pub fn get(link: u32, parent: u32) -> Message {
    Message::new(RTM_GETQDISC, F_ECHO, &tcmsg(link, 0, parent, 0))
}

/// Removes the discipline at a parent.
pub fn delete(link: u32, parent: u32) -> Message {
    Message::new(RTM_DELQDISC, 0, &tcmsg(link, 0, parent, 0))
}

/// Makes a token bucket filter `1:` the root; one that somebody has put there is `EEXIST`.
pub fn create_tbf(link: u32, tbf: &Tbf) -> Message {
    set_tbf(link, F_CREATE | F_EXCL, tbf)
}

/// Makes a token bucket filter `1:` the root, or gives the one that is there these numbers.
pub fn replace_tbf(link: u32, tbf: &Tbf) -> Message {
    set_tbf(link, F_CREATE | F_REPLACE, tbf)
}

fn set_tbf(link: u32, flags: u16, tbf: &Tbf) -> Message {
    let mut parms = [0; PARMS];
    // The field has 32 bits; a higher rate is in RATE64, and the kernel takes the larger one.
    let low = (tbf.rate & u64::from(u32::MAX)) as u32;
    parms[PARMS_RATE..PARMS_RATE + 4].copy_from_slice(&low.to_ne_bytes());
    parms[PARMS_LIMIT..PARMS_LIMIT + 4].copy_from_slice(&tbf.limit.to_ne_bytes());
    parms[PARMS_BUFFER..PARMS_BUFFER + 4].copy_from_slice(&tbf.buffer.to_ne_bytes());
    Message::new(RTM_NEWQDISC, flags, &tcmsg(link, FIRST, ROOT, 0)).attr_text(TCA_KIND, "tbf").nest(
        TCA_OPTIONS,
        |options| {
            let mut options = options.attr(TCA_TBF_PARMS, &parms);
            if let Some(burst) = tbf.burst {
                options = options.attr_u32(TCA_TBF_BURST, burst);
            }
            if tbf.rate > u64::from(u32::MAX) {
                options = options.attr(TCA_TBF_RATE64, &tbf.rate.to_ne_bytes());
            }
            options
        },
    )
}

/// Makes the hook for filters on what a link receives; one that is there, ingress or clsact, is `EEXIST`.
pub fn create_ingress(link: u32) -> Message {
    Message::new(RTM_NEWQDISC, F_CREATE | F_EXCL, &tcmsg(link, HOOK, INGRESS, 0))
        .attr_text(TCA_KIND, "ingress")
        .nest(TCA_OPTIONS, |options| options)
}

/// A request for a root discipline of this kind that fails in any case, since it lacks what every kind that is worth asking
/// for needs: see [`is_unknown_kind`].
pub fn probe(link: u32, kind: &str) -> Message {
    Message::new(RTM_NEWQDISC, F_CREATE | F_EXCL, &tcmsg(link, 0, ROOT, 0)).attr_text(TCA_KIND, kind)
}

/// Whether an answer says that the kernel does not have the kind of discipline, filter or action, and cannot load it.
pub fn is_unknown_kind(answer: &Answer) -> bool {
    matches!(answer, Err(error) if error.errno == Errno::ENOENT)
}

/// The discipline in the answer to [`get`], `None` if there is none.
///
/// # Errors
/// Any other error of the kernel, `ENODEV` for a link that does not exist among them.
pub fn read(answer: Answer) -> Result<Option<Qdisc>, Error> {
    match answer {
        Ok(bodies) => Ok(bodies.first().map(|body| parse(body))),
        Err(error) if error.errno == Errno::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(body: &[u8]) -> Qdisc {
    let object = Object::read(body);
    let kind = find_attr(object.attrs, TCA_KIND).map(text).unwrap_or_default();
    let options = find_attr(object.attrs, TCA_OPTIONS).filter(|_| kind == "tbf");
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
    Qdisc { kind, handle: object.handle, tbf }
}

#[cfg(test)]
mod tests {
    use super::super::message::{HEADER, attrs};
    use super::*;

    fn body(message: Message) -> Vec<u8> {
        message.finish(1, 0)[HEADER..].to_vec()
    }

    #[test]
    fn a_token_bucket_filter_is_written_as_it_is_read() {
        for tbf in [
            Tbf { rate: 1_250_000, limit: 156_250, buffer: 1_562_500, burst: None },
            Tbf { rate: 5_000_000_000, limit: 661_870_911, buffer: 1_677_718, burst: None },
        ] {
            let qdisc = parse(&body(create_tbf(7, &tbf)));
            assert_eq!(qdisc, Qdisc { kind: "tbf".to_owned(), handle: FIRST, tbf: Some(tbf) });
        }
    }

    #[test]
    fn burst_and_rate64_are_only_there_when_needed() {
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
