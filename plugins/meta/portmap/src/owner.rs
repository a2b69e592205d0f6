//! Whose a mapping is: what the comment of everything in the table says.

use cni_common::plugin::Attachment;
use ferrule_kernel::nftables::{COMMENT_MAX, cut_comment};
use ferrule_kit::hash::sha512_hex;

/// The comment of everything that is the attachment's: `network/ifname/container`, none of which can hold a slash. One that
/// is too long for a comment is cut and begins with hashes of the network and of all of it, `~HASH-HASH/`.
pub fn label(owner: &Attachment<'_>) -> String {
    let plain = format!("{}/{}/{}", owner.network, owner.ifname, owner.container_id);
    if plain.len() <= COMMENT_MAX {
        return plain;
    }
    let label = format!("{}{}/{plain}", network_mark(owner.network), sha512_hex(&plain, 16));
    cut_comment(&label).to_owned()
}

/// The identity in a label; none in one that was cut.
pub fn parse(label: &str) -> Option<Attachment<'_>> {
    let mut parts = label.split('/');
    let (network, ifname, container_id) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !network.starts_with('~');
    is_whole.then_some(Attachment { network, ifname, container_id })
}

/// A label's key in the set of owners: 15 hexadecimal digits that stand for an interface's name.
pub fn key_of(label: &str) -> Vec<u8> {
    let mut key = sha512_hex(label, 15).into_bytes();
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

/// Whether the label is of an attachment of the container.
pub fn is_of(label: &str, container_id: &str) -> bool {
    parse(label).is_some_and(|owner| owner.container_id == container_id)
}

/// A holder in words, for an error.
pub fn describe(label: &str) -> String {
    match parse(label) {
        Some(Attachment { network, ifname, container_id }) => {
            format!("container {container_id} (interface {ifname} on network {network})")
        }
        None => label.to_owned(),
    }
}

fn network_mark(network: &str) -> String {
    format!("~{}-", sha512_hex(network, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Attachment<'_> = Attachment { network: "pods", ifname: "eth0", container_id: "one" };

    #[test]
    fn a_label_says_all_and_is_read_again() {
        assert_eq!(label(&ONE), "pods/eth0/one");
        assert_eq!(parse("pods/eth0/one"), Some(ONE));
        assert_eq!(describe("pods/eth0/one"), "container one (interface eth0 on network pods)");
        assert_eq!(key_of("pods/eth0/one").len(), 16);
        assert_eq!(parse("somebody's"), None);
    }

    #[test]
    fn long_labels_differ_where_they_were_cut() {
        let id = "f".repeat(128);
        let long = Attachment { container_id: &id, ..ONE };
        let cut = label(&long);
        assert_eq!(cut.len(), COMMENT_MAX);
        let other = id.clone() + "0";
        let other = label(&Attachment { container_id: &other, ..ONE });
        assert_ne!(cut, other);
        assert_eq!(parse(&cut), None);
        assert!(is_on(&cut, "pods") && !is_on(&cut, "pod"));
        assert_ne!(key_of(&cut), key_of(&other));
    }

    #[test]
    fn a_network_is_not_its_prefix() {
        assert!(is_on("pods/eth0/one", "pods"));
        assert!(!is_on("pods2/eth0/one", "pods") && !is_on("pods/eth0/one", "pods2"));
    }
}
