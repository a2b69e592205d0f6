//! The numbers that a network namespace has for others, by which links name the namespace of their peer.
//!
//! # References
//! linux/net_namespace.h; ip-netns(8), "set".

use super::message::{Message, find_attr};
use super::socket::{Answer, Error};
use crate::netns::Netns;

const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

/// Length of `struct rtgenmsg`, padded.
const RTGEN: usize = 4;

/// Asks which number the socket's namespace has for `netns`. It gets one when a link is looked up whose peer is there.
pub fn get(netns: &Netns) -> Message {
    Message::new(RTM_GETNSID, 0, &[0; RTGEN]).attr_u32(NETNSA_FD, netns.raw_fd())
}

/// The number in the answer to [`get`], `None` if there is none (yet).
///
/// # Errors
/// Those of the kernel.
pub fn read(answer: Answer) -> Result<Option<i32>, Error> {
    let bodies = answer?;
    let attrs = bodies.first().and_then(|body| body.get(RTGEN..)).unwrap_or_default();
    let number =
        find_attr(attrs, NETNSA_NSID).and_then(|value| value.try_into().ok()).map(i32::from_ne_bytes);
    Ok(number.filter(|number| *number >= 0))
}
