//! The identity of an attachment.

use super::{AddRequest, DelRequest};
use crate::spec::ValidAttachment;

/// The identity of an attachment: three values that every DEL receives. Plugins label their objects with it,
/// to find them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment<'a> {
    /// The network name.
    pub network: &'a str,
    /// The container ID (CNI_CONTAINERID).
    pub container_id: &'a str,
    /// The name of the interface in the container (CNI_IFNAME).
    pub ifname: &'a str,
}

impl<'a> Attachment<'a> {
    /// The identity of an attachment in the list of a GC request.
    pub fn valid(network: &'a str, valid: &'a ValidAttachment) -> Self {
        Attachment { network, container_id: &valid.container_id, ifname: &valid.ifname }
    }
}

impl<'a> From<&AddRequest<'a>> for Attachment<'a> {
    fn from(call: &AddRequest<'a>) -> Self {
        Attachment { network: call.config.name(), container_id: call.container_id, ifname: call.ifname }
    }
}

impl<'a> From<&DelRequest<'a>> for Attachment<'a> {
    fn from(call: &DelRequest<'a>) -> Self {
        Attachment { network: call.config.name(), container_id: call.container_id, ifname: call.ifname }
    }
}
