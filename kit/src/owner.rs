//! Owner labels: comments of nf_tables elements that name the attachment to which they belong.

use cni_common::plugin::Attachment;
use ferrule_kernel::nftables::COMMENT_MAX;

use crate::hash::sha512_hex;

/// The owner label of an attachment: `network/ifname/container`. The three names contain no slash. A label
/// that is too long for a comment is truncated and starts with two hashes, of the network and of the whole
/// label: `~HASH-HASH/`.
pub fn label(owner: &Attachment<'_>) -> String {
    label_within(owner, COMMENT_MAX)
}

/// As [`label`], for a place that has room for fewer bytes. The hashes need 35 of them.
pub fn label_within(owner: &Attachment<'_>, room: usize) -> String {
    let plain = format!("{}/{}/{}", owner.network, owner.ifname, owner.container_id);
    if plain.len() <= room {
        return plain;
    }
    let mut label = format!("{}{}/{plain}", network_prefix(owner.network), sha512_hex(&plain, 16));
    while label.len() > room {
        label.pop();
    }
    label
}

/// Decodes a label. Returns `None` for a truncated label and for a comment of another program.
pub fn parse(label: &str) -> Option<Attachment<'_>> {
    let mut parts = label.split('/');
    let (network, ifname, container_id) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !network.starts_with('~');
    is_whole.then_some(Attachment { network, ifname, container_id })
}

/// The key of a label in the set of owners: 15 hexadecimal digits, which fit into an interface name.
pub fn key_of(label: &str) -> Vec<u8> {
    let mut key = sha512_hex(label, 15).into_bytes();
    key.push(0);
    key
}

/// Whether the label names an attachment to the network.
pub fn is_on(label: &str, network: &str) -> bool {
    match label.split_once('/') {
        Some((first, _)) if first == network => true,
        _ => label.starts_with(&network_prefix(network)),
    }
}

/// Whether the label names an attachment of the container. False for a truncated label.
pub fn is_of(label: &str, container_id: &str) -> bool {
    parse(label).is_some_and(|owner| owner.container_id == container_id)
}

/// Describes an owner for error texts.
pub fn describe(label: &str) -> String {
    match parse(label) {
        Some(Attachment { network, ifname, container_id }) => {
            format!("container {container_id} (interface {ifname} on network {network})")
        }
        None => label.to_owned(),
    }
}

fn network_prefix(network: &str) -> String {
    format!("~{}-", sha512_hex(network, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Attachment<'_> = Attachment { network: "pods", ifname: "eth0", container_id: "one" };

    #[test]
    fn label_decodes_to_its_attachment() {
        assert_eq!(label(&ONE), "pods/eth0/one");
        assert_eq!(parse("pods/eth0/one"), Some(ONE));
        assert_eq!(describe("pods/eth0/one"), "container one (interface eth0 on network pods)");
        assert_eq!(key_of("pods/eth0/one").len(), 16);
        assert_eq!(parse("foreign"), None);
    }

    #[test]
    fn truncated_labels_differ() {
        let id = "f".repeat(128);
        let long = Attachment { container_id: &id, ..ONE };
        let truncated = label(&long);
        assert_eq!(truncated.len(), COMMENT_MAX);
        let other = id.clone() + "0";
        let other = label(&Attachment { container_id: &other, ..ONE });
        assert_ne!(truncated, other);
        assert_eq!(parse(&truncated), None);
        assert!(is_on(&truncated, "pods") && !is_on(&truncated, "pod"));
        assert_ne!(key_of(&truncated), key_of(&other));
        let short = label_within(&ONE, 12);
        assert!(short.len() == 12 && short.starts_with('~') && label_within(&ONE, 13) == label(&ONE));
    }

    #[test]
    fn network_names_are_compared_whole() {
        assert!(is_on("pods/eth0/one", "pods"));
        assert!(!is_on("pods2/eth0/one", "pods") && !is_on("pods/eth0/one", "pods2"));
    }
}
