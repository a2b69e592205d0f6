//! Whose a mapping is: what the comment of everything in the table says.

use cni_common::nftables::{COMMENT_MAX, cut_comment};
use cni_common::plugin::{Attach, Detach};
use cni_common::spec::ValidAttachment;
use sha2::{Digest, Sha512};

/// The identity of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    /// The network's name.
    pub network: &'a str,
    /// The interface in the container.
    pub ifname: &'a str,
    /// The container's ID.
    pub container_id: &'a str,
}

impl<'a> From<&Attach<'a>> for Owner<'a> {
    fn from(call: &Attach<'a>) -> Self {
        Owner { network: call.config.name(), ifname: call.ifname, container_id: call.container_id }
    }
}

impl<'a> From<&Detach<'a>> for Owner<'a> {
    fn from(call: &Detach<'a>) -> Self {
        Owner { network: call.config.name(), ifname: call.ifname, container_id: call.container_id }
    }
}

impl<'a> Owner<'a> {
    /// One that GC lists as alive.
    pub fn valid(network: &'a str, valid: &'a ValidAttachment) -> Self {
        Owner { network, ifname: &valid.ifname, container_id: &valid.container_id }
    }

    /// The comment of everything that is the owner's: `network/ifname/container`, none of which can hold a slash. One
    /// that is too long for a comment is cut and begins with hashes of the network and of all of it, `~HASH-HASH/`.
    pub fn label(&self) -> String {
        let plain = format!("{}/{}/{}", self.network, self.ifname, self.container_id);
        if plain.len() <= COMMENT_MAX {
            return plain;
        }
        let label = format!("{}{}/{plain}", network_mark(self.network), hash(&plain, 16));
        cut_comment(&label).to_owned()
    }

    /// The attachment's key in the set of owners: 15 hexadecimal digits that stand for an interface's name.
    pub fn key(&self) -> Vec<u8> {
        key_of(&self.label())
    }

    /// The identity in a label; none in one that was cut.
    pub fn parse(label: &'a str) -> Option<Self> {
        let mut parts = label.split('/');
        let (network, ifname, container_id) = (parts.next()?, parts.next()?, parts.next()?);
        let is_whole = parts.next().is_none() && !network.starts_with('~');
        is_whole.then_some(Owner { network, ifname, container_id })
    }
}

/// [`Owner::key`] by the label.
pub fn key_of(label: &str) -> Vec<u8> {
    let mut key = hash(label, 15).into_bytes();
    key.push(0);
    key
}

/// Whether the label is of an attachment to the network.
pub fn is_on(label: &str, network: &str) -> bool {
    match label.split_once('/') {
        Some((first, _)) if first == network => true,
        _ => label.starts_with(&network_mark(network)),
    }
}

/// A holder in words, for an error.
pub fn describe(label: &str) -> String {
    match Owner::parse(label) {
        Some(Owner { network, ifname, container_id }) => {
            format!("container {container_id} (interface {ifname} on network {network})")
        }
        None => label.to_owned(),
    }
}

fn network_mark(network: &str) -> String {
    format!("~{}-", hash(network, 16))
}

/// The first `len` hexadecimal digits of the text's SHA-512.
pub(crate) fn hash(text: &str, len: usize) -> String {
    let digest = Sha512::digest(text.as_bytes());
    let mut digits: String = digest.iter().take(len.div_ceil(2)).map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(len);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Owner<'_> = Owner { network: "pods", ifname: "eth0", container_id: "one" };

    #[test]
    fn a_label_says_all_and_is_read_again() {
        assert_eq!(ONE.label(), "pods/eth0/one");
        assert_eq!(Owner::parse("pods/eth0/one"), Some(ONE));
        assert_eq!(describe("pods/eth0/one"), "container one (interface eth0 on network pods)");
        assert_eq!(ONE.key().len(), 16);
        assert_eq!(Owner::parse("somebody's"), None);
    }

    #[test]
    fn long_labels_differ_where_they_were_cut() {
        let id = "f".repeat(128);
        let long = Owner { container_id: &id, ..ONE };
        let label = long.label();
        assert_eq!(label.len(), COMMENT_MAX);
        let other = id.clone() + "0";
        let other = Owner { container_id: &other, ..ONE }.label();
        assert_ne!(label, other);
        assert_eq!(Owner::parse(&label), None);
        assert!(is_on(&label, "pods") && !is_on(&label, "pod"));
        assert_ne!(key_of(&label), key_of(&other));
    }

    #[test]
    fn a_network_is_not_its_prefix() {
        assert!(is_on("pods/eth0/one", "pods"));
        assert!(!is_on("pods2/eth0/one", "pods") && !is_on("pods/eth0/one", "pods2"));
    }
}
