//! Names and rules of the reference's `macspoofchk`. Nothing here touches the kernel.
//!
//! ```text
//! table bridge nat {
//!   chain PREROUTING { type filter hook prerouting priority dstnat; policy accept;
//!     iifname "vethX" jump cni-br-iface-ID-IFNAME }
//!   chain cni-br-iface-ID-IFNAME { jump cni-br-iface-ID-IFNAME-mac }
//!   chain cni-br-iface-ID-IFNAME-mac { ether saddr MAC return; drop }
//! }
//! ```

use cni_common::plugin::Attachment;
use ferrule_kernel::netlink::Mac;
use ferrule_kernel::nftables::matches::{input_interface, source_mac};
use ferrule_kernel::nftables::{ChainType, CmpOp, Expr, Family, Hook, HookPoint, Policy, Table, Verdict};
use ferrule_kit::hash::sha512_hex;

/// The table. It is the table of `ebtables-nft` too.
pub const TABLE: Table<'static> = Table::new(Family::Bridge, "nat");
/// The base chain, with one rule for each attachment.
pub const PREROUTING: &str = "PREROUTING";
/// The base chain's netfilter hook.
pub const HOOK: Hook = Hook {
    chain_type: ChainType::Filter,
    point: HookPoint::Prerouting,
    priority: -300,
    policy: Policy::Accept,
};
/// The prefix of the names of all chains of attachments.
const CHAIN: &str = "cni-br-iface-";

/// The longest name of a chain in bytes: `NFT_NAME_MAXLEN` minus the terminating zero.
const NAME_MAX: usize = 255;

/// The chains of an attachment. The network is not part of their names, as with the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chains {
    /// The chain for the attachment's interface.
    pub interface: String,
    /// The chain that checks the source address.
    pub mac: String,
}

impl Chains {
    /// The chains of this attachment.
    pub fn of(attachment: &Attachment<'_>) -> Chains {
        let key = format!("{}-{}", attachment.container_id, attachment.ifname);
        let chains = Chains::named(format!("{CHAIN}{key}"));
        if chains.mac.len() <= NAME_MAX {
            return chains;
        }
        // The reference's ADD fails with such a container ID.
        Chains::named(format!("{CHAIN}{}", sha512_hex(&key, 64)))
    }

    /// The chains whose first one has this name. `None` for a chain of another program.
    pub fn from_name(interface: &str) -> Option<Chains> {
        interface.starts_with(CHAIN).then(|| Chains::named(interface.to_owned()))
    }

    fn named(interface: String) -> Chains {
        let mac = format!("{interface}-mac");
        Chains { interface, mac }
    }

    /// The rule of the base chain: frames that arrive at the port go to the attachment's chain.
    pub fn jump(&self, port: &str) -> Vec<Expr> {
        let jump = Expr::Verdict(Verdict::Jump(self.interface.clone()));
        input_interface(CmpOp::Eq, port).into_iter().chain([jump]).collect()
    }

    /// The rule of the attachment's chain.
    pub fn interface_rule(&self) -> Vec<Expr> {
        vec![Expr::Verdict(Verdict::Jump(self.mac.clone()))]
    }
}

/// The rules of the second chain: frames from this address pass, all others are dropped.
pub fn mac_rules(mac: Mac) -> [Vec<Expr>; 2] {
    let pass = source_mac(mac).into_iter().chain([Expr::Verdict(Verdict::Return)]).collect();
    [pass, vec![Expr::Verdict(Verdict::Drop)]]
}

/// The comment of each of the attachment's rules.
pub fn comment(attachment: &Attachment<'_>) -> String {
    format!("macspoofchk-{}-{}", attachment.container_id, attachment.ifname)
}

/// The containers and interfaces that the comment may name, one for each hyphen: both names may contain hyphens.
pub fn owners_in(comment: &str) -> impl Iterator<Item = (&str, &str)> {
    let names = comment.strip_prefix("macspoofchk-").unwrap_or_default();
    names.match_indices('-').map(move |(at, _)| (&names[..at], &names[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_reference() {
        let attachment = Attachment { network: "net", container_id: "dummy-0", ifname: "eth0" };
        let chains = Chains::of(&attachment);
        assert_eq!(chains.interface, "cni-br-iface-dummy-0-eth0");
        assert_eq!(chains.mac, "cni-br-iface-dummy-0-eth0-mac");
        assert_eq!(comment(&attachment), "macspoofchk-dummy-0-eth0");
        let owners: Vec<_> = owners_in("macspoofchk-dummy-0-eth0").collect();
        assert_eq!(owners, [("dummy", "0-eth0"), ("dummy-0", "eth0")]);
        assert_eq!(owners_in("another program's-rule").count(), 0);
        assert_eq!(Chains::from_name(&chains.interface), Some(chains));
        assert_eq!(Chains::from_name("libvirt-J-vnet0"), None);
        let long =
            |length: usize| Chains::of(&Attachment { container_id: &"x".repeat(length), ..attachment });
        assert_eq!((long(233).mac.len(), long(234).mac.len()), (255, 81));
        assert_ne!(long(234), long(235));
    }
}
