//! The identity of an attachment.

use std::collections::BTreeSet;

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

    /// What `key` makes of each attachment in the list of a GC request, such as the label of its objects. So GC finds
    /// in one step whether it must keep an object.
    pub fn keys(
        network: &str,
        valid: &[ValidAttachment],
        key: impl Fn(&Attachment<'_>) -> String,
    ) -> BTreeSet<String> {
        // Not `collect`, whose sort adds 3 kB to the program for each type.
        let mut keys = BTreeSet::new();
        keys.extend(valid.iter().map(|one| key(&Attachment::valid(network, one))));
        keys
    }

    /// The IDs of the containers in the list of a GC request.
    pub fn containers(valid: &[ValidAttachment]) -> BTreeSet<String> {
        Attachment::keys("", valid, |one| one.container_id.to_owned())
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
