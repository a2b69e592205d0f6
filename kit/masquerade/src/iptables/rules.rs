//! The rules of one container in one address family, byte for byte as the reference's iptables backend makes
//! them and `iptables-save` prints them. Nothing here touches the kernel.
//!
//! ```text
//! -A CNI-hash -d 10.1.2.0/24 -m comment --comment "name: \"net\" id: \"one\"" -j ACCEPT
//! -A CNI-hash ! -d 224.0.0.0/4 -m comment --comment "..." -j MASQUERADE
//! -A POSTROUTING -s 10.1.2.3/32 -m comment --comment "..." -j CNI-hash
//! ```
//!
//! Before MASQUERADE the chain has a RETURN for each network of `ipMasqExclude`: later rules of `POSTROUTING` may still masquerade
//! such traffic, as with the nftables backend. With `ipMasqWithinSubnet` there is no ACCEPT. For a family that `ipMasqFamilies`
//! leaves out, the chain is empty, because DEL of the reference fails without it.
//!
//! If a container has addresses in several subnets, the reference appends the second ACCEPT after MASQUERADE,
//! where no packet reaches it. Here all ACCEPT rules come first.

use cni_common::plugin::Attachment;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{Listing, Rule};
use ferrule_kernel::nftables::matches::{End, is_address};
use ferrule_kernel::nftables::{self, CmpOp, Expr, Verdict};
use ipnetwork::IpNetwork;

use super::POSTROUTING;
use crate::config::Masquerade;
use crate::plan::{chain_of, multicast};

/// The longest comment that iptables accepts, in bytes.
const COMMENT: usize = 255;

/// The rules of one container in one address family.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// The family.
    pub(super) family: IpFamily,
    /// The container's chain.
    pub(super) chain: String,
    /// For each subnet and each excluded network: leave its traffic unchanged.
    unchanged: Vec<Rule>,
    /// Masquerade all other traffic, if the family is wanted.
    masquerade: Option<Rule>,
    /// For each address: the jump to the chain.
    jumps: Vec<Rule>,
}

fn rule(chain: &str, condition: &[&str], comment: &str, target: &str) -> Rule {
    let comment = ["-m", "comment", "--comment", comment, "-j", target];
    Rule {
        chain: chain.to_owned(),
        args: condition.iter().chain(&comment).map(|&arg| arg.to_owned()).collect(),
    }
}

fn comment_of(attachment: &Attachment<'_>) -> String {
    // Neither name can contain a character that must be quoted.
    let mut comment = format!("name: \"{}\" id: \"{}\"", attachment.network, attachment.container_id);
    comment.truncate(COMMENT);
    comment
}

/// The rules for those of the addresses that are in the family.
pub(super) fn rules(
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    family: IpFamily,
    addresses: &[IpNetwork],
) -> Rules {
    let (chain, comment) = (chain_of(attachment.network, attachment.container_id), comment_of(attachment));
    let to = |network: &str, target| rule(&chain, &["-d", network], &comment, target);
    let (mut unchanged, mut jumps) = (Vec::new(), Vec::new());
    let is_wanted = wanted.family.is_none_or(|only| only == family);
    for address in addresses.iter().filter(|address| IpFamily::of(address.ip()) == family) {
        let rule_of_subnet = to(&format!("{}/{}", address.network(), address.prefix()), "ACCEPT");
        if is_wanted && !wanted.within_subnet && !unchanged.contains(&rule_of_subnet) {
            unchanged.push(rule_of_subnet);
        }
        let source = IpNetwork::from(address.ip()).to_string();
        jumps.push(rule(POSTROUTING, &["-s", &source], &comment, &chain));
    }
    let excluded = wanted.excluded(family).filter(|_| is_wanted);
    unchanged.extend(excluded.map(|network| to(&network.to_string(), "RETURN")));
    let masquerade =
        is_wanted.then(|| rule(&chain, &["!", "-d", &multicast(family).to_string()], &comment, "MASQUERADE"));
    Rules { family, chain, unchanged, masquerade, jumps }
}

impl Rules {
    /// Whether there is no address to masquerade.
    pub(super) fn is_empty(&self) -> bool {
        self.jumps.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Rule> {
        self.unchanged.iter().chain(&self.masquerade).chain(&self.jumps)
    }

    /// The lines for `iptables-restore` that add everything. They fail if the chain exists.
    pub(super) fn lines(&self) -> Vec<String> {
        [format!("-N {}", self.chain)].into_iter().chain(self.all().map(|rule| rule.line("-A"))).collect()
    }

    /// The lines that add what the listing lacks. The chain may exist already: the container may have another
    /// interface on this network.
    pub(super) fn missing_lines(&self, listing: &Listing) -> Vec<String> {
        if !listing.has_chain(&self.chain) {
            return self.lines();
        }
        let missing = self.all().filter(|rule| !listing.rules.contains(rule));
        // These come before the MASQUERADE that is already there.
        missing.map(|rule| rule.line(if self.unchanged.contains(rule) { "-I" } else { "-A" })).collect()
    }

    /// Whether the listing has all rules, and leaves no other traffic unchanged.
    pub(super) fn are_in(&self, listing: &Listing) -> bool {
        let to = |target: &'static str| move |rule: &&Rule| rule.argument("-j") == Some(target);
        let chain = || listing.rules_of(&self.chain);
        self.all().all(|rule| listing.rules.contains(rule))
            && chain().filter(to("RETURN")).count() == self.unchanged.iter().filter(to("RETURN")).count()
            && chain().any(|rule| to("ACCEPT")(&rule))
                == self.unchanged.iter().any(|rule| to("ACCEPT")(&rule))
    }
}

/// Whether these rules of the chain, as iptables-nft stores them, masquerade traffic from the address as wanted, once
/// a jump has led it there.
pub(super) fn masquerades(chain: &[nftables::Rule], wanted: &Masquerade, address: &IpNetwork) -> bool {
    let rules: Vec<Vec<Expr>> = chain.iter().filter_map(nftables::Rule::effect).collect();
    let has = |op, network, is_action: fn(&Expr) -> bool| {
        rules.iter().any(|exprs| {
            let Some((action, condition)) = exprs.split_last() else { return false };
            is_action(action) && is_address(condition, End::Destination, op, network)
        })
    };
    let family = IpFamily::of(address.ip());
    let is_return = |action: &Expr| *action == Expr::Verdict(Verdict::Return);
    let returning = rules.iter().filter(|exprs| exprs.last().is_some_and(is_return)).count();
    has(CmpOp::Eq, *address, |action| *action == Expr::Verdict(Verdict::Accept)) != wanted.within_subnet
        && returning == wanted.excluded(family).count()
        && wanted.excluded(family).all(|network| has(CmpOp::Eq, network, is_return))
        && has(CmpOp::Neq, multicast(family), |action| match action {
            Expr::Xt(xt) => xt.is_target && xt.name == "MASQUERADE",
            action => matches!(action, Expr::Masquerade { .. }),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Attachment<'_> = Attachment { network: "mynet", ifname: "eth0", container_id: "c1" };

    fn nets(texts: &[&str]) -> Vec<IpNetwork> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// What `iptables-save` prints after an ADD of the reference.
    const SAVED: &str = r#"*nat
:POSTROUTING ACCEPT [0:0]
:CNI-f0bca4ac77cde1bf2f3da5df - [0:0]
-A POSTROUTING -s 10.1.2.3/32 -m comment --comment "name: \"mynet\" id: \"c1\"" -j CNI-f0bca4ac77cde1bf2f3da5df
-A CNI-f0bca4ac77cde1bf2f3da5df -d 10.1.2.0/24 -m comment --comment "name: \"mynet\" id: \"c1\"" -j ACCEPT
-A CNI-f0bca4ac77cde1bf2f3da5df ! -d 224.0.0.0/4 -m comment --comment "name: \"mynet\" id: \"c1\"" -j MASQUERADE
COMMIT
"#;

    #[test]
    fn lines_are_those_of_the_reference() {
        let rules = rules(&Masquerade::default(), &ONE, IpFamily::V4, &nets(&["10.1.2.3/24", "fd00::3/64"]));
        let mut expected: Vec<&str> = SAVED.lines().filter(|line| line.starts_with("-A")).collect();
        expected.rotate_left(1);
        let lines = rules.lines();
        assert_eq!(lines[0], "-N CNI-f0bca4ac77cde1bf2f3da5df");
        assert_eq!(lines[1..], expected);
        assert!(rules.are_in(&Listing::parse(SAVED)));
        assert_eq!(rules.missing_lines(&Listing::parse(SAVED)), Vec::<String>::new());
        assert_eq!(rules.missing_lines(&Listing::default()), lines);
    }

    #[test]
    fn ipv6_has_its_own_multicast_network() {
        let lines = rules(&Masquerade::default(), &ONE, IpFamily::V6, &nets(&["10.1.2.3/24", "fd00::3/64"]))
            .lines()
            .join("\n");
        for part in ["-d fd00::/64 ", "! -d ff00::/8 ", "POSTROUTING -s fd00::3/128 "] {
            assert!(lines.contains(part), "{lines}");
        }
        assert!(!lines.contains("10.1"), "{lines}");
    }

    #[test]
    fn addresses_of_one_subnet_share_accept_and_of_several_come_before_masquerade() {
        let addresses = nets(&["10.1.2.3/24", "10.1.2.4/24", "10.1.3.3/24"]);
        let lines = rules(&Masquerade::default(), &ONE, IpFamily::V4, &addresses).lines();
        let target = |line: &String| line.rsplit(' ').next().unwrap_or_default().to_owned();
        let targets: Vec<String> = lines[1..].iter().map(target).collect();
        assert_eq!(targets[..3], ["ACCEPT", "ACCEPT", "MASQUERADE"]);
        assert_eq!(targets.len(), 6);
    }

    #[test]
    fn excluded_networks_return_before_masquerade() {
        let exclude = nets(&["172.16.0.0/12", "fd00::/8"]);
        let wanted = Masquerade { exclude, within_subnet: true, ..Masquerade::default() };
        let of = |family| rules(&wanted, &ONE, family, &nets(&["10.1.2.3/24"]));
        let lines = of(IpFamily::V4).lines();
        assert!(lines.len() == 4 && lines[1].contains("-d 172.16.0.0/12 "), "{lines:?}");
        assert!(lines[1].ends_with("-j RETURN") && lines[2].ends_with("-j MASQUERADE"), "{lines:?}");
        assert!(of(IpFamily::V6).is_empty());
        let only_ipv6 = Masquerade { family: Some(IpFamily::V6), ..wanted };
        let lines = rules(&only_ipv6, &ONE, IpFamily::V4, &nets(&["10.1.2.3/24"])).lines();
        assert!(lines.len() == 2 && lines[1].starts_with("-A POSTROUTING -s 10.1.2.3/32 "), "{lines:?}");
    }

    #[test]
    fn an_existing_chain_gets_what_it_lacks() {
        let rules = rules(&Masquerade::default(), &ONE, IpFamily::V4, &nets(&["10.1.3.3/24"]));
        let missing = rules.missing_lines(&Listing::parse(SAVED));
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing[0].starts_with("-I CNI-f0bca4ac77cde1bf2f3da5df -d 10.1.3.0/24 "), "{missing:?}");
        assert!(missing[1].starts_with("-A POSTROUTING -s 10.1.3.3/32 "), "{missing:?}");
        assert!(!rules.are_in(&Listing::parse(SAVED)));
    }

    #[test]
    fn a_comment_has_at_most_the_length_that_iptables_accepts() {
        let id = "x".repeat(300);
        assert_eq!(comment_of(&Attachment { container_id: &id, ..ONE }).len(), COMMENT);
    }
}
