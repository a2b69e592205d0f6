//! Traffic control filters that redirect all packets that a link receives: u32 with the action mirred.
//!
//! # References
//! linux/pkt_cls.h, linux/tc_act/tc_mirred.h; tc-u32(8), tc-mirred(8).

use nix::libc::{RTM_DELTFILTER, RTM_GETTFILTER, RTM_NEWACTION, RTM_NEWTFILTER, TCA_KIND, TCA_OPTIONS};

use super::error::Error;
use super::message::{F_CREATE, F_DUMP, F_EXCL, Message, attrs, find_attr, text, u32_at};
use super::socket::{Answer, Socket};
use super::tc::{HANDLE, INFO, attributes, tcmsg};

const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TCA_ACT_TAB: u16 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;

/// `TC_U32_TERMINAL`: a match ends the classification.
const TERMINAL: u8 = 1;
/// Length of `struct tc_u32_sel` with one key. The key starts with its mask, at offset 16.
const SELECTOR: usize = 32;
const SELECTOR_KEYS: usize = 2;
const KEY_MASK: usize = 16;
/// The class `1:1`. It has no effect on an ingress qdisc, but the reference sets it.
const CLASS: u32 = 0x0001_0001;

/// Length of `struct tc_mirred`, and the offsets of its fields `action`, `eaction` and `ifindex`.
const MIRRED: usize = 28;
const MIRRED_ACTION: usize = 8;
const MIRRED_EACTION: usize = 20;
const MIRRED_IFINDEX: usize = 24;
/// `TC_ACT_STOLEN`: the action consumes the packet.
const STOLEN: u32 = 4;
/// `TCA_EGRESS_REDIR`: transmit the packet on the other link.
const EGRESS_REDIRECT: u32 = 1;

/// The parent of filters of an `ingress` qdisc.
pub const AT_INGRESS: u32 = 0xffff_0000;
/// The parent of filters for received packets of a `clsact` qdisc.
pub const AT_CLSACT_INGRESS: u32 = 0xffff_fff2;

/// `ETH_P_ALL` in network byte order: the lower 16 bits of `tcm_info`.
fn every_protocol() -> u32 {
    u32::from(0x0003_u16.to_be())
}

fn info(preference: u16) -> u32 {
    u32::from(preference) << 16 | every_protocol()
}

/// A filter in a dump of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its kind, such as `u32` or `bpf`.
    pub kind: String,
    /// Its preference: the kernel tries lower ones first.
    pub preference: u16,
    /// Its handle; 0 for the entry that represents all filters of one preference.
    pub handle: u32,
    /// If the filter redirects all packets: the index of the target link. 0 if that link was deleted; the
    /// filter then drops all packets.
    pub redirect: Option<u32>,
    /// True if this is not a filter but a hash table that the kernel made for u32 filters.
    pub is_table: bool,
}

/// A request for a filter that redirects all packets that `link` receives to `target` (link indexes). The
/// kernel chooses the handle.
pub fn redirect_all(link: u32, parent: u32, preference: u16, target: u32) -> Message {
    let mut selector = [0; SELECTOR];
    selector[0] = TERMINAL;
    selector[SELECTOR_KEYS] = 1; // one key; its mask is zero, so it matches every packet
    let mut mirred = [0; MIRRED];
    mirred[MIRRED_ACTION..MIRRED_ACTION + 4].copy_from_slice(&STOLEN.to_ne_bytes());
    mirred[MIRRED_EACTION..MIRRED_EACTION + 4].copy_from_slice(&EGRESS_REDIRECT.to_ne_bytes());
    mirred[MIRRED_IFINDEX..MIRRED_IFINDEX + 4].copy_from_slice(&target.to_ne_bytes());
    Message::new(RTM_NEWTFILTER, F_CREATE | F_EXCL, &tcmsg(link, 0, parent, info(preference)))
        .attr_text(TCA_KIND, "u32")
        .nest(TCA_OPTIONS, |options| {
            options.attr_u32(TCA_U32_CLASSID, CLASS).attr(TCA_U32_SEL, &selector).nest(
                TCA_U32_ACT,
                |actions| {
                    actions.nest(1, |action| {
                        action
                            .attr_text(TCA_ACT_KIND, "mirred")
                            .nest(TCA_ACT_OPTIONS, |options| options.attr(TCA_MIRRED_PARMS, &mirred))
                    })
                },
            )
        })
}

/// A request that removes one u32 filter for all protocols.
pub fn delete(link: u32, parent: u32, preference: u16, handle: u32) -> Message {
    Message::new(RTM_DELTFILTER, 0, &tcmsg(link, handle, parent, info(preference))).attr_text(TCA_KIND, "u32")
}

/// A request for an action of this kind without options. It always fails; [`super::qdisc::is_unknown_kind`]
/// of the answer says whether the kernel supports the kind.
pub fn probe_action(kind: &str) -> Message {
    // struct tcamsg: the family and padding
    Message::new(RTM_NEWACTION, F_CREATE, &[0; 4])
        .nest(TCA_ACT_TAB, |table| table.nest(1, |action| action.attr_text(TCA_ACT_KIND, kind)))
}

/// A request for the filters of `parent` on `link` (an index).
pub fn list(link: u32, parent: u32) -> Message {
    Message::new(RTM_GETTFILTER, F_DUMP, &tcmsg(link, 0, parent, 0))
}

/// The filters in the answer to [`list`], in the order of the kernel. Empty if there is no qdisc for the parent.
pub fn read(answer: Answer) -> Result<Vec<Filter>, Error> {
    Ok(answer?.iter().map(|body| parse(body)).collect())
}

impl Socket {
    /// The filters of `parent` on `link` (an index), in the order of the kernel.
    pub fn filters(&mut self, link: u32, parent: u32) -> Result<Vec<Filter>, Error> {
        read(self.request(list(link, parent)))
    }
}

fn parse(body: &[u8]) -> Filter {
    let kind = find_attr(attributes(body), TCA_KIND).map(text).unwrap_or_default();
    let options = find_attr(attributes(body), TCA_OPTIONS).unwrap_or_default();
    let (is_u32, info) = (kind == "u32", u32_at(body, INFO));
    let covers_all_protocols = info & 0xffff == every_protocol();
    Filter {
        preference: (info >> 16) as u16,
        handle: u32_at(body, HANDLE),
        redirect: if is_u32 && covers_all_protocols { redirect_target(options) } else { None },
        is_table: is_u32 && find_attr(options, TCA_U32_SEL).is_none(),
        kind,
    }
}

/// The target link of a u32 filter that redirects all packets.
fn redirect_target(options: &[u8]) -> Option<u32> {
    let selector = find_attr(options, TCA_U32_SEL)?;
    let matches_all = selector.get(SELECTOR_KEYS) == Some(&1) && u32_at(selector, KEY_MASK) == 0;
    // Only the first action counts: a redirect consumes the packet.
    let (_, action) = attrs(find_attr(options, TCA_U32_ACT)?).next()?;
    let is_mirred = text(find_attr(action, TCA_ACT_KIND)?) == "mirred";
    let mirred = find_attr(find_attr(action, TCA_ACT_OPTIONS)?, TCA_MIRRED_PARMS)?;
    let redirects = u32_at(mirred, MIRRED_EACTION) == EGRESS_REDIRECT;
    (matches_all && is_mirred && redirects).then(|| u32_at(mirred, MIRRED_IFINDEX))
}

#[cfg(test)]
mod tests {
    use super::super::message::HEADER;
    use super::*;

    #[test]
    fn a_redirect_is_encoded_and_decoded() {
        let bytes = redirect_all(7, AT_INGRESS, 1, 9).finish(1, 0).unwrap();
        let filter = parse(&bytes[HEADER..]);
        assert_eq!((filter.kind.as_str(), filter.preference, filter.redirect), ("u32", 1, Some(9)));
        assert!(!filter.is_table);
    }

    #[test]
    fn a_filter_with_a_mask_does_not_redirect_all_packets() {
        let mut bytes = redirect_all(7, AT_INGRESS, 1, 9).finish(1, 0).unwrap();
        let selector =
            bytes.windows(4).position(|w| w == [SELECTOR as u8 + 4, 0, TCA_U32_SEL as u8, 0]).unwrap() + 4;
        bytes[selector + KEY_MASK] = 0xff;
        assert_eq!(parse(&bytes[HEADER..]).redirect, None);
    }
}
