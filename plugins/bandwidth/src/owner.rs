//! Whose an IFB is: its names, and the alias that says so.
//!
//! The reference names the IFB after network and container alone, so that a container's second interface on the network
//! collides with its first, and a leftover tells nothing about its owner. Here the first interface to come gets that name, so
//! that either implementation finds what the other one made; the next gets a name of its own; and the alias tells them apart:
//!
//! ```text
//! bandwidth network=pods container=0123456789ab ifname=eth0 veth=12 hook=made
//! ```

use std::fmt;

use cni_common::hash::sha512_hex;
use cni_common::netlink::{Link, ifb};
use cni_common::plugin::Attachment;

/// What an alias begins with.
const TAG: &str = "bandwidth";
/// A name longer than this goes into the alias as a hash: the whole has to fit into [`ifb::MAX_ALIAS`] bytes.
const MAX_TEXT: usize = 80;

/// The reference's name for the IFB, the same for all interfaces of a container on a network.
pub fn shared_name(owner: &Attachment<'_>) -> String {
    name(&format!("{}{}", owner.network, owner.container_id))
}

/// The name for the IFB of an interface that comes second.
pub fn own_name(owner: &Attachment<'_>) -> String {
    name(&format!("{}\0{}\0{}", owner.network, owner.container_id, owner.ifname))
}

/// The alias of the attachment's IFB.
pub fn alias(owner: &Attachment<'_>, veth: u32, hook: Hook) -> Alias {
    Alias {
        network: text(owner.network),
        container_id: text(owner.container_id),
        ifname: owner.ifname.to_owned(),
        veth,
        hook,
    }
}

/// Whose the IFB is, judging by its alias.
pub fn claim(owner: &Attachment<'_>, link: &Link) -> Claim {
    match Alias::parse(&link.alias) {
        None if link.alias.is_empty() => Claim::Nobodys,
        Some(alias) if alias.is_of(owner) => Claim::Own(alias),
        _ => Claim::Anothers,
    }
}

/// Whose an IFB is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It has the attachment's alias.
    Own(Alias),
    /// It has none: the reference made it, or an ADD was killed.
    Nobodys,
    /// It has another one.
    Anothers,
}

/// Where the hook came from that the filter is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// ADD made it.
    Made,
    /// It was there.
    Found,
}

/// What is written down at an IFB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    network: String,
    container_id: String,
    ifname: String,
    /// The index of the container's link on the host.
    pub veth: u32,
    /// Where the hook on that link came from.
    pub hook: Hook,
}

impl Alias {
    /// Reads an alias, `None` if it is none of these.
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
            hook: if value("hook")? == "made" { Hook::Made } else { Hook::Found },
        })
    }

    /// Whether it names this attachment.
    pub fn is_of(&self, owner: &Attachment<'_>) -> bool {
        self.is_on(owner.network)
            && self.container_id == text(owner.container_id)
            && self.ifname == owner.ifname
    }

    /// Whether it names an attachment to this network.
    pub fn is_on(&self, network: &str) -> bool {
        self.network == text(network)
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alias { network, container_id, ifname, veth, hook } = self;
        let hook = if *hook == Hook::Made { "made" } else { "found" };
        write!(f, "{TAG} network={network} container={container_id} ifname={ifname} veth={veth} hook={hook}")
    }
}

/// A name as the alias has it: as it is, or if it is too long a hash, which a `#` tells from any name.
fn text(name: &str) -> String {
    if name.len() <= MAX_TEXT { name.to_owned() } else { format!("#{}", sha512_hex(name, 32)) }
}

fn name(identity: &str) -> String {
    format!("bwp{}", sha512_hex(identity, 12))
}

/// Whether a link's name is of the form that IFBs get, from here or from the reference.
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
    fn names_of_the_reference() {
        let name = |network, container_id| shared_name(&Attachment { network, container_id, ifname: "eth0" });
        assert_eq!(name("cni-plugin-bandwidth-test", "dummy"), "bwpa8eda89404b7");
        assert_eq!(name("bwnet", "bw-1"), "bwp42a787ed8bd2");
        assert_eq!(name("ab", "c"), name("a", "bc"));
    }

    #[test]
    fn own_names_differ_where_shared_ones_do_not() {
        let own = |network, container_id, ifname| own_name(&Attachment { network, container_id, ifname });
        assert_ne!(own("ab", "c", "eth0"), own("a", "bc", "eth0"));
        assert_ne!(own("a", "b", "eth0"), own("a", "b", "eth1"));
        assert!(is_ifb_name(&own("a", "b", "eth0")) && is_ifb_name("bwpa8eda89404b7"));
        assert!(!is_ifb_name("bwpa8eda89404bz") && !is_ifb_name("bwpa8eda89404") && !is_ifb_name("ifb0"));
    }

    #[test]
    fn an_alias_says_whose_it_is() {
        let alias = alias(&OWNER, 12, Hook::Made);
        let text = alias.to_string();
        assert_eq!(text, "bandwidth network=pods container=0123 ifname=eth0 veth=12 hook=made");
        assert_eq!(Alias::parse(&text), Some(alias.clone()));
        assert_eq!(claim(&OWNER, &link(&text)), Claim::Own(alias));
        assert_eq!(claim(&Attachment { ifname: "eth1", ..OWNER }, &link(&text)), Claim::Anothers);
        assert_eq!(claim(&OWNER, &link("")), Claim::Nobodys);
        for other in [
            "uplink of the rack",
            "bandwidth",
            "bandwidth network=pods container=0123 ifname=eth0 veth=x hook=made",
        ] {
            assert_eq!(claim(&OWNER, &link(other)), Claim::Anothers, "{other}");
        }
    }

    #[test]
    fn long_names_fit() {
        let (network, container_id) = ("n".repeat(300), "c".repeat(300));
        let owner = Attachment { network: &network, container_id: &container_id, ifname: "0123456789abcde" };
        let text = alias(&owner, u32::MAX, Hook::Found).to_string();
        assert!(text.len() <= ifb::MAX_ALIAS, "{text}");
        assert!(matches!(claim(&owner, &link(&text)), Claim::Own(_)));
        let other = Attachment { network: &network[1..], ..owner };
        assert_eq!(claim(&other, &link(&text)), Claim::Anothers);
    }
}
