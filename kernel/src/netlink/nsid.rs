//! Network namespace IDs. Within one namespace, each ID identifies another namespace; a link reports the
//! namespace of its peer by this ID.
//!
//! # References
//! linux/net_namespace.h; ip-netns(8), "set".

use std::os::fd::BorrowedFd;

use nix::libc::{RTM_GETNSID, RTM_NEWNSID};

use super::error::Error;
use super::message::{Message, find_attr};
use super::socket::Answer;
use crate::netns;

const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
const NETNSA_TARGET_NSID: u16 = 4;

/// Length of `struct rtgenmsg`, padded.
const RTGEN: usize = 4;

/// A request for the ID of `netns` in the socket's namespace. The kernel assigns it when it reports a link
/// whose peer is in `netns`.
pub fn get(netns: BorrowedFd<'_>) -> Message {
    Message::new(RTM_GETNSID, 0, &[0; RTGEN]).attr_u32(NETNSA_FD, netns::number(netns)).one_answer()
}

/// A request that gives `netns` an ID in the socket's namespace. EEXIST if it has one.
pub fn assign(netns: BorrowedFd<'_>) -> Message {
    let request = Message::new(RTM_NEWNSID, 0, &[0; RTGEN]).attr(NETNSA_NSID, &(-1i32).to_ne_bytes());
    request.attr_u32(NETNSA_FD, netns::number(netns))
}

/// A request for the ID that the namespace `target` has given to the namespace `id`. Both numbers are IDs in the socket's
/// namespace. Linux 4.20 or newer.
pub fn translate(id: i32, target: i32) -> Message {
    let request = Message::new(RTM_GETNSID, 0, &[0; RTGEN]).attr(NETNSA_NSID, &id.to_ne_bytes());
    request.attr(NETNSA_TARGET_NSID, &target.to_ne_bytes()).one_answer()
}

/// The ID in the answer to [`get`] or [`translate`]. `None` if the kernel has not assigned one.
pub fn read(answer: Answer) -> Result<Option<i32>, Error> {
    let bodies = answer?;
    let attrs = bodies.first().and_then(|body| body.get(RTGEN..)).unwrap_or_default();
    let id = find_attr(attrs, NETNSA_NSID).and_then(|value| value.try_into().ok()).map(i32::from_ne_bytes);
    Ok(id.filter(|id| *id >= 0))
}
