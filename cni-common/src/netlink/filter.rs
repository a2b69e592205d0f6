//! Filters that send all that a link receives to another link: u32 with the action mirred.
//!
//! # References
//! linux/pkt_cls.h, linux/tc_act/tc_mirred.h; tc-u32(8), tc-mirred(8).

use super::message::{F_CREATE, F_DUMP, F_EXCL, Message, attrs, find_attr, text, u32_at};
use super::socket::{Error, Socket};
use super::tc::{Object, TCA_KIND, TCA_OPTIONS, tcmsg};

const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const RTM_NEWACTION: u16 = 48;

const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TCA_ACT_TAB: u16 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;

/// `TC_U32_TERMINAL`: a match ends the search.
const TERMINAL: u8 = 1;
/// Length of `struct tc_u32_sel` with one key; the key's mask comes behind the first 16 bytes.
const SELECTOR: usize = 32;
const SELECTOR_KEYS: usize = 2;
const KEY_MASK: usize = 16;
/// The class `1:1`, which means nothing at a hook but is what the reference writes.
const CLASS: u32 = 0x0001_0001;

/// Length of `struct tc_mirred`, and where its fields are.
const MIRRED: usize = 28;
const MIRRED_VERDICT: usize = 8;
const MIRRED_WHAT: usize = 20;
const MIRRED_TARGET: usize = 24;
/// `TC_ACT_STOLEN`: the packet is the action's now.
const STOLEN: u32 = 4;
/// `TCA_EGRESS_REDIR`: have the other link send it.
const EGRESS_REDIRECT: u32 = 1;

/// The parent of filters at an `ingress` hook.
pub const AT_INGRESS: u32 = 0xffff_0000;
/// The parent of filters on what is received at a `clsact` hook.
pub const AT_CLSACT_INGRESS: u32 = 0xffff_fff2;

/// `ETH_P_ALL` in network byte order, which is what the kernel wants in the lower half of the header's last field.
fn every_protocol() -> u32 {
    u32::from(0x0003_u16.to_be())
}

fn info(preference: u16) -> u32 {
    u32::from(preference) << 16 | every_protocol()
}

/// A filter as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its kind, such as `u32` or `bpf`.
    pub kind: String,
    /// Its place in the order: lower ones come first.
    pub preference: u16,
    /// Its handle; 0 for the head of all filters of one preference.
    pub handle: u32,
    /// The index of the link that it sends every packet to, if that is what it does; 0 if that link is gone, which makes
    /// the filter a black hole.
    pub redirect: Option<u32>,
    /// Whether it is no filter but a table that the kernel made for u32 filters.
    pub is_table: bool,
}

/// Sends everything that `link` receives to `target`. The kernel chooses the handle.
pub fn redirect_all(link: u32, parent: u32, preference: u16, target: u32) -> Message {
    let mut selector = [0; SELECTOR];
    selector[0] = TERMINAL;
    selector[SELECTOR_KEYS] = 1; // whose mask of zeros matches anything
    let mut mirred = [0; MIRRED];
    mirred[MIRRED_VERDICT..MIRRED_VERDICT + 4].copy_from_slice(&STOLEN.to_ne_bytes());
    mirred[MIRRED_WHAT..MIRRED_WHAT + 4].copy_from_slice(&EGRESS_REDIRECT.to_ne_bytes());
    mirred[MIRRED_TARGET..MIRRED_TARGET + 4].copy_from_slice(&target.to_ne_bytes());
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

/// Removes one filter for every protocol.
pub fn delete(link: u32, parent: u32, preference: u16, handle: u32) -> Message {
    Message::new(RTM_DELTFILTER, 0, &tcmsg(link, handle, parent, info(preference))).attr_text(TCA_KIND, "u32")
}

/// A request for an action of this kind that fails in any case, since it says nothing about it: the answer tells whether the
/// kernel knows the kind, see [`super::qdisc::is_unknown_kind`].
pub fn probe_action(kind: &str) -> Message {
    // struct tcamsg: a family and padding
    Message::new(RTM_NEWACTION, F_CREATE, &[0; 4])
        .nest(TCA_ACT_TAB, |table| table.nest(1, |action| action.attr_text(TCA_ACT_KIND, kind)))
}

impl Socket {
    /// The filters at a parent, in their order.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn filters(&mut self, link: u32, parent: u32) -> Result<Vec<Filter>, Error> {
        let bodies = self.request(Message::new(RTM_GETTFILTER, F_DUMP, &tcmsg(link, 0, parent, 0)))?;
        Ok(bodies.iter().map(|body| parse(body)).collect())
    }
}

fn parse(body: &[u8]) -> Filter {
    let object = Object::read(body);
    let kind = find_attr(object.attrs, TCA_KIND).map(text).unwrap_or_default();
    let options = find_attr(object.attrs, TCA_OPTIONS).unwrap_or_default();
    let is_u32 = kind == "u32";
    let covers_all_protocols = object.info & 0xffff == every_protocol();
    Filter {
        preference: (object.info >> 16) as u16,
        handle: object.handle,
        redirect: if is_u32 && covers_all_protocols { redirect(options) } else { None },
        is_table: is_u32 && find_attr(options, TCA_U32_SEL).is_none(),
        kind,
    }
}

/// Where a u32 filter's options say that every packet goes.
fn redirect(options: &[u8]) -> Option<u32> {
    let selector = find_attr(options, TCA_U32_SEL)?;
    let matches_all = selector.get(SELECTOR_KEYS) == Some(&1) && u32_at(selector, KEY_MASK) == 0;
    // Of several actions the first is the one that takes the packet.
    let (_, action) = attrs(find_attr(options, TCA_U32_ACT)?).next()?;
    let is_mirred = text(find_attr(action, TCA_ACT_KIND)?) == "mirred";
    let mirred = find_attr(find_attr(action, TCA_ACT_OPTIONS)?, TCA_MIRRED_PARMS)?;
    let redirects = u32_at(mirred, MIRRED_WHAT) == EGRESS_REDIRECT;
    (matches_all && is_mirred && redirects).then(|| u32_at(mirred, MIRRED_TARGET))
}

#[cfg(test)]
mod tests {
    use super::super::message::HEADER;
    use super::*;

    #[test]
    fn a_redirection_is_written_as_it_is_read() {
        let bytes = redirect_all(7, AT_INGRESS, 1, 9).finish(1, 0);
        let filter = parse(&bytes[HEADER..]);
        assert_eq!((filter.kind.as_str(), filter.preference, filter.redirect), ("u32", 1, Some(9)));
        assert!(!filter.is_table);
    }

    #[test]
    fn another_match_is_no_redirection_of_everything() {
        let mut bytes = redirect_all(7, AT_INGRESS, 1, 9).finish(1, 0);
        let selector =
            bytes.windows(4).position(|w| w == [SELECTOR as u8 + 4, 0, TCA_U32_SEL as u8, 0]).unwrap() + 4;
        bytes[selector + KEY_MASK] = 0xff;
        assert_eq!(parse(&bytes[HEADER..]).redirect, None);
    }
}
