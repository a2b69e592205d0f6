//! Names of IFBs, and the alias that names the attachment an IFB belongs to.
//!
//! The reference names an IFB after network and container only. A container's second interface on the network
//! therefore collides with its first, and a leftover IFB does not tell its attachment. Here the first
//! interface gets the reference's name, so that either implementation finds the other's IFB, and the second
//! interface gets a name of its own. The alias tells the attachments apart:
//!
//! ```text
//! bandwidth network=pods container=0123456789ab ifname=eth0 veth=12 hook=made
//! ```

use std::fmt;

use cni_common::plugin::Attachment;
use ferrule_kernel::netlink::{Link, ifb};
use ferrule_kit::hash::{identity, sha512_hex};

/// The first word of an alias.
const TAG: &str = "bandwidth";
/// Longer names are hashed in the alias, which must fit into [`ifb::MAX_ALIAS`] bytes.
const MAX_TEXT: usize = 80;

/// The reference's name for the IFB. It is the same for all interfaces of a container on a network.
pub fn shared_name(owner: &Attachment<'_>) -> String {
    name(&format!("{}{}", owner.network, owner.container_id))
}

/// The IFB's name if the shared name is taken; unique to the interface.
pub fn own_name(owner: &Attachment<'_>) -> String {
    name(&identity(owner))
}

/// The alias of the attachment's IFB.
pub fn alias(owner: &Attachment<'_>, veth: u32, has_own_qdisc: bool) -> Alias {
    let (network, container_id) = (text(owner.network), text(owner.container_id));
    Alias { network, container_id, ifname: owner.ifname.to_owned(), veth, has_own_qdisc }
}

/// What tells the attachments of a network apart in an alias.
pub fn key(owner: &Attachment<'_>) -> String {
    format!("{} {}", text(owner.container_id), owner.ifname)
}

/// Compares the alias of `link` with the attachment.
pub fn whose(owner: &Attachment<'_>, link: &Link) -> Whose {
    match Alias::parse(&link.alias) {
        None if link.alias.is_empty() => Whose::Nobodys,
        Some(alias) if alias.is_of(owner) => Whose::Own(alias),
        _ => Whose::Other,
    }
}

/// Which attachment an IFB belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// It has this attachment's alias.
    Own(Alias),
    /// It has no alias: the reference made it, or an ADD was killed.
    Nobodys,
    /// It has another alias.
    Other,
}

/// The alias of an IFB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    network: String,
    container_id: String,
    ifname: String,
    /// The index of the host's veth.
    pub veth: u32,
    /// Whether ADD created the ingress qdisc of that veth. Otherwise it existed before.
    pub has_own_qdisc: bool,
}

impl Alias {
    /// Parses an alias; `None` if it does not have this format.
    pub fn parse(alias: &str) -> Option<Alias> {
        let mut words = alias.split(' ');
        if words.next() != Some(TAG) {
            return None;
        }
        let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
        Some(Alias {
            network: value("network")?,
            container_id: value("container")?,
            ifname: value("ifname")?,
            veth: value("veth")?.parse().ok()?,
            has_own_qdisc: value("hook")? == "made",
        })
    }

    /// The attachment that the alias names. `None` if it has the hash of a long name.
    pub fn attachment(&self) -> Option<Attachment<'_>> {
        let Alias { network, container_id, ifname, .. } = self;
        let is_hashed = network.starts_with('#') || container_id.starts_with('#');
        (!is_hashed).then_some(Attachment { network, container_id, ifname })
    }

    /// Whether the alias names this attachment.
    pub fn is_of(&self, owner: &Attachment<'_>) -> bool {
        self.is_on(owner.network) && self.key() == key(owner)
    }

    /// The [`key`] of its attachment.
    pub fn key(&self) -> String {
        format!("{} {}", self.container_id, self.ifname)
    }

    /// Whether the alias names an attachment to this network.
    pub fn is_on(&self, network: &str) -> bool {
        self.network == text(network)
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alias { network, container_id, ifname, veth, has_own_qdisc } = self;
        let hook = if *has_own_qdisc { "made" } else { "found" };
        write!(f, "{TAG} network={network} container={container_id} ifname={ifname} veth={veth} hook={hook}")
    }
}

/// A name as the alias contains it. A long one is replaced by `#` and its hash; no valid name starts with
/// `#`.
fn text(name: &str) -> String {
    if name.len() <= MAX_TEXT { name.to_owned() } else { format!("#{}", sha512_hex(name, 32)) }
}

fn name(identity: &str) -> String {
    format!("bwp{}", sha512_hex(identity, 12))
}

/// Whether the name has the form of our and the reference's IFB names.
pub fn is_ifb_name(name: &str) -> bool {
    let digits = name.strip_prefix("bwp").unwrap_or_default();
    digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

const _: () = assert!(
    "bandwidth network= container= ifname= veth=4294967295 hook=found".len() + 2 * MAX_TEXT + 15
        <= ifb::MAX_ALIAS
);

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Attachment<'_> = Attachment { network: "pods", container_id: "0123", ifname: "eth0" };

    fn link(alias: &str) -> Link {
        Link { alias: alias.to_owned(), ..Link::default() }
    }

    #[test]
    fn shared_name_equals_the_references() {
        let name = |network, container_id| shared_name(&Attachment { network, container_id, ifname: "eth0" });
        assert_eq!(name("cni-plugin-bandwidth-test", "dummy"), "bwpa8eda89404b7");
        assert_eq!(name("bwnet", "bw-1"), "bwp42a787ed8bd2");
        assert_eq!(name("ab", "c"), name("a", "bc"));
    }

    #[test]
    fn own_names_are_unique() {
        let own = |network, container_id, ifname| own_name(&Attachment { network, container_id, ifname });
        assert_ne!(own("ab", "c", "eth0"), own("a", "bc", "eth0"));
        assert_ne!(own("a", "b", "eth0"), own("a", "b", "eth1"));
        assert!(is_ifb_name(&own("a", "b", "eth0")) && is_ifb_name("bwpa8eda89404b7"));
        assert!(!is_ifb_name("bwpa8eda89404bz") && !is_ifb_name("bwpa8eda89404") && !is_ifb_name("ifb0"));
    }

    #[test]
    fn alias_names_the_attachment() {
        let alias = alias(&OWNER, 12, true);
        let text = alias.to_string();
        assert_eq!(text, "bandwidth network=pods container=0123 ifname=eth0 veth=12 hook=made");
        assert_eq!(Alias::parse(&text), Some(alias.clone()));
        assert_eq!(alias.attachment(), Some(OWNER));
        assert_eq!(whose(&OWNER, &link(&text)), Whose::Own(alias));
        assert_eq!(whose(&Attachment { ifname: "eth1", ..OWNER }, &link(&text)), Whose::Other);
        assert_eq!(whose(&OWNER, &link("")), Whose::Nobodys);
        for other in [
            "uplink of the rack",
            "bandwidth",
            "bandwidth network=pods container=0123 ifname=eth0 veth=x hook=made",
        ] {
            assert_eq!(whose(&OWNER, &link(other)), Whose::Other, "{other}");
        }
    }

    #[test]
    fn long_names_are_hashed() {
        let (network, container_id) = ("n".repeat(300), "c".repeat(300));
        let owner = Attachment { network: &network, container_id: &container_id, ifname: "0123456789abcde" };
        let text = alias(&owner, u32::MAX, false).to_string();
        assert!(text.len() <= ifb::MAX_ALIAS, "{text}");
        assert!(matches!(whose(&owner, &link(&text)), Whose::Own(_)));
        let other = Attachment { network: &network[1..], ..owner };
        assert_eq!(whose(&other, &link(&text)), Whose::Other);
    }
}
