//! Names, comments and rules of the reference's backends. Nothing here touches the kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni_common::plugin::Attachment;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{End, address, family_of, is_address};
use ferrule_kernel::nftables::{
    ChainType, CmpOp, Expr, Family, Hook, HookPoint, Policy, Table, Verdict, cut_comment,
};
use ferrule_kit::hash::sha512_hex;
use ipnetwork::IpNetwork;

use crate::config::Masquerade;

/// The table. All plugins that use the reference's masquerading library share it.
pub const TABLE: Table<'static> = Table::new(Family::Inet, "cni_plugins_masquerade");
/// The table's comment.
pub const TABLE_COMMENT: &str = "Masquerading for plugins from github.com/containernetworking/plugins";
/// The chain with one rule for each address.
pub const CHECKS: &str = "masq_checks";
/// That chain's comment.
pub const CHECKS_COMMENT: &str =
    "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet";
/// The base chain. It ends with a `goto` to [`CHECKS`].
pub const POSTROUTING: &str = "postrouting";
/// The base chain's netfilter hook. Priority 100 is `srcnat`.
pub const POSTROUTING_HOOK: Hook =
    Hook { chain_type: ChainType::Nat, point: HookPoint::Postrouting, priority: 100, policy: Policy::Accept };
/// The number of rules that [`postrouting`] returns.
pub const POSTROUTING_RULES: u32 = 3;

/// The multicast addresses of a family, which are not masqueraded.
pub fn multicast(family: IpFamily) -> IpNetwork {
    let (ip, prefix): (IpAddr, u8) = match family {
        IpFamily::V4 => (Ipv4Addr::new(224, 0, 0, 0).into(), 4),
        IpFamily::V6 => (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
    };
    // This cannot fail: the family has such a prefix.
    IpNetwork::new(ip, prefix).unwrap_or_else(|_| ip.into())
}

/// The length of [`prefix`] in bytes.
pub const PREFIX_LENGTH: usize = 33;

/// The prefix that all comments of the attachment's rules share: hashes of network, and of ifname and
/// container ID.
pub fn prefix(attachment: &Attachment<'_>) -> String {
    let Attachment { network, ifname, container_id } = attachment;
    network_prefix(network) + &sha512_hex(&format!("{ifname}:{container_id}"), 16)
}

/// The comment of each of the attachment's rules: [`prefix`], then the plain names. Cut to the kernel's
/// limit.
pub fn comment(attachment: &Attachment<'_>) -> String {
    let plain = |text: &str| text.replace('"', "");
    let comment = format!(
        "{}, net: {}, if: {}, id: {}",
        prefix(attachment),
        plain(attachment.network),
        plain(attachment.ifname),
        plain(attachment.container_id),
    );
    cut_comment(&comment).to_owned()
}

/// The prefix that all comments of the network's rules share.
pub fn network_prefix(network: &str) -> String {
    sha512_hex(network, 16) + "-"
}

/// The chain of the reference's iptables backend. Its name depends on network and container, not on the
/// interface.
pub fn chain_of(network: &str, container_id: &str) -> String {
    format!("CNI-{}", sha512_hex(&format!("{network}{container_id}"), 24))
}

/// The attachment in a comment of the nftables backend. `None` if the comment was cut, or is another program's.
pub fn owner_in(comment: &str) -> Option<Attachment<'_>> {
    let (prefix, rest) = comment.split_once(", net: ")?;
    let (network, rest) = rest.split_once(", if: ")?;
    let (ifname, container_id) = rest.split_once(", id: ")?;
    let attachment = Attachment { network, ifname, container_id };
    (self::prefix(&attachment) == prefix).then_some(attachment)
}

/// Network and container ID in a comment of the reference's iptables backend, if `chain` is the chain of that container.
pub fn chain_owner_in<'c>(comment: &'c str, chain: &str) -> Option<(&'c str, &'c str)> {
    // Neither name can contain a character that iptables would escape.
    let names = comment.strip_prefix("name: \"")?.strip_suffix('"')?;
    let (network, container_id) = names.split_once("\" id: \"")?;
    (chain == chain_of(network, container_id)).then_some((network, container_id))
}

/// The chain to delete: `target`, if `comment` and `target` both name the same container of this network, and
/// that container has no valid attachment. Requiring both protects chains of other programs.
pub fn dead_chain(comment: &str, target: &str, network: &str, valid: &BTreeSet<String>) -> Option<String> {
    let (named, container) = chain_owner_in(comment, target)?;
    (named == network && !valid.contains(container)).then(|| target.to_owned())
}

/// The rules of the base chain: multicast returns, all other traffic goes to [`CHECKS`].
pub fn postrouting() -> [Vec<Expr>; POSTROUTING_RULES as usize] {
    let unchanged = |multicast: IpNetwork| {
        let mut exprs = family_of(multicast.ip()).to_vec();
        exprs.extend(address(End::Destination, CmpOp::Eq, multicast));
        exprs.push(Expr::Verdict(Verdict::Return));
        exprs
    };
    [
        unchanged(multicast(IpFamily::V4)),
        unchanged(multicast(IpFamily::V6)),
        vec![Expr::Verdict(Verdict::Goto(CHECKS.to_owned()))],
    ]
}

/// The rule for one address: masquerade its traffic to outside its subnet and the excluded networks.
pub fn masquerade(source: IpNetwork, wanted: &Masquerade) -> Vec<Expr> {
    let mut exprs = family_of(source.ip()).to_vec();
    exprs.extend(address(End::Source, CmpOp::Eq, source.ip().into()));
    for network in wanted.unchanged(source) {
        exprs.extend(address(End::Destination, CmpOp::Neq, network));
    }
    exprs.push(Expr::Masquerade { flags: 0 });
    exprs
}

/// Whether the rule masquerades traffic from the address as [`masquerade()`] does, with the conditions in any order.
pub fn masquerades(rule: &[Expr], source: IpNetwork, wanted: &Masquerade) -> bool {
    let Some((Expr::Masquerade { .. }, conditions)) = rule.split_last() else { return false };
    let conditions: Vec<&[Expr]> =
        conditions.split_inclusive(|expr| matches!(expr, Expr::Cmp { .. })).collect();
    let has = |end, op, network| conditions.iter().any(|condition| is_address(condition, end, op, network));
    // The first condition is the family.
    conditions.len() == 2 + wanted.unchanged(source).count()
        && has(End::Source, CmpOp::Eq, source.ip().into())
        && wanted.unchanged(source).all(|network| has(End::Destination, CmpOp::Neq, network))
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::nftables::Register;

    use super::*;

    const ONE: Attachment<'_> = Attachment { network: "unit-test", ifname: "eth0", container_id: "one" };

    #[test]
    fn names_and_comments_match_the_references() {
        assert_eq!(prefix(&ONE), "6fd94d501e58f0aa-287fc69eff0574a2");
        assert_eq!(comment(&ONE), "6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one");
        assert!(prefix(&ONE).starts_with(&network_prefix("unit-test")));
        // printf test1234 | sha512sum
        assert_eq!(chain_of("test", "1234"), "CNI-2bbe0c48b91a7d1b8a6753a8");
    }

    #[test]
    fn owners_in_comments() {
        assert_eq!(owner_in(&comment(&ONE)), Some(ONE));
        assert_eq!(owner_in(&comment(&Attachment { container_id: &"x".repeat(200), ..ONE })), None);
        assert_eq!(owner_in("0123-4567, net: unit-test, if: eth0, id: one"), None);
        let comment = "name: \"net\" id: \"one\"";
        assert_eq!(chain_owner_in(comment, &chain_of("net", "one")), Some(("net", "one")));
        assert_eq!(chain_owner_in(comment, "KUBE-SEP"), None);
    }

    #[test]
    fn comment_is_unquoted_and_cut() {
        let long = "x".repeat(200);
        let key = Attachment { network: "a\"b", ifname: "e", container_id: &long };
        let comment = comment(&key);
        assert_eq!(comment.len(), 128);
        assert!(comment.contains(", net: ab, if: e, id: xxx"));
        assert_eq!(comment[..PREFIX_LENGTH], prefix(&key));
    }

    #[test]
    fn container_of_an_iptables_comment() {
        let chain = chain_of("net", "one");
        assert_eq!(chain_owner_in("name: \"net\" id: \"one\"", &chain), Some(("net", "one")));
        assert_eq!(chain_owner_in("name: \"net2\" id: \"one\"", &chain), None);
        assert_eq!(chain_owner_in("6fd94d501e58f0aa", &chain), None);
    }

    #[test]
    fn chain_is_dead_without_a_valid_attachment() {
        let comment = "name: \"net\" id: \"one\"";
        let chain = chain_of("net", "one");
        let valid = |id: &str| BTreeSet::from([id.to_owned()]);
        assert_eq!(dead_chain(comment, &chain, "net", &valid("two")), Some(chain.clone()));
        assert_eq!(dead_chain(comment, &chain, "net", &valid("one")), None);
        assert_eq!(dead_chain(comment, &chain, "other", &BTreeSet::new()), None);
        assert_eq!(dead_chain(comment, "KUBE-POSTROUTING", "net", &BTreeSet::new()), None);
    }

    #[test]
    fn rule_masquerades_one_address_outside_its_subnet() {
        let (source, plain) = ("10.0.0.2/24".parse().unwrap(), Masquerade::default());
        let rule = masquerade(source, &plain);
        assert_eq!(rule.len(), 7);
        assert_eq!(rule[..2], family_of("10.0.0.2".parse().unwrap()));
        assert_eq!(rule[6], Expr::Masquerade { flags: 0 });
        let cmp = |op, value: &[u8]| Expr::Cmp { register: Register::R1, op, value: value.to_vec() };
        assert_eq!(rule[3], cmp(CmpOp::Eq, &[10, 0, 0, 2]));
        assert_eq!(rule[5], cmp(CmpOp::Neq, &[10, 0, 0]));
        let exclude = ["172.16.0.0/12", "fd00::/8"].map(|text| text.parse().unwrap()).into();
        let excluding = Masquerade { exclude, ..Masquerade::default() };
        let within = Masquerade { within_subnet: true, ..excluding.clone() };
        let all = [plain, excluding, within];
        for (at, wanted) in all.iter().enumerate() {
            let rule = masquerade(source, wanted);
            let matching = all.iter().map(|other| masquerades(&rule, source, other));
            assert!(matching.eq((0..all.len()).map(|other| other == at)), "{wanted:?}");
            assert!(!masquerades(&rule, "10.0.0.3/24".parse().unwrap(), wanted));
        }
    }
}
