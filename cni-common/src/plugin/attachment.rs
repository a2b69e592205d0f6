//! Who is attached where.

use super::{Attach, Detach};
use crate::spec::ValidAttachment;

/// The identity of an attachment, by which everything that belongs to it is found: the three that a DEL always has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment<'a> {
    /// The network's name.
    pub network: &'a str,
    /// The container's ID.
    pub container_id: &'a str,
    /// The interface in the container.
    pub ifname: &'a str,
}

impl<'a> Attachment<'a> {
    /// One that GC lists as alive.
    pub fn valid(network: &'a str, valid: &'a ValidAttachment) -> Self {
        Attachment { network, container_id: &valid.container_id, ifname: &valid.ifname }
    }
}

impl<'a> From<&Attach<'a>> for Attachment<'a> {
    fn from(call: &Attach<'a>) -> Self {
        Attachment { network: call.config.name(), container_id: call.container_id, ifname: call.ifname }
    }
}

impl<'a> From<&Detach<'a>> for Attachment<'a> {
    fn from(call: &Detach<'a>) -> Self {
        Attachment { network: call.config.name(), container_id: call.container_id, ifname: call.ifname }
    }
}
