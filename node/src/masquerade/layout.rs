//! What the table contains. Pure.
//!
//! ```text
//! set cluster4, cluster6      the networks of the cluster
//! set exclude4, exclude6      other networks whose hosts see the pods' own addresses
//! chain postrouting           nat, priority 110; for each own podCIDR, here of IPv4:
//!   ip saddr PODCIDR ip daddr != @cluster4 ip daddr != @exclude4 ip daddr != 224.0.0.0/4 masquerade fully-random
//! ```
//!
//! The first nat chain that translates wins. At 110 those of host ports (99) and of kube-proxy (100) come before this one.

use std::collections::{BTreeMap, BTreeSet};

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{End, address, family, read_address};
use ferrule_kernel::nftables::{
    Batch, ChainType, CmpOp, DataType, Element, Expr, FULLY_RANDOM, Family, Hook, HookPoint, Policy,
    Register, Table,
};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::plan::Masquerade;

pub(super) const TABLE: Table<'static> = Table::new(Family::Inet, "ferrule_node");
const COMMENT: &str = "ferrule-node: what leaves the cluster gets the node's address";
pub(super) const POSTROUTING: &str = "postrouting";
pub(super) const HOOK: Hook =
    Hook { chain_type: ChainType::Nat, point: HookPoint::Postrouting, priority: 110, policy: Policy::Accept };

/// The sets: name and family. Those of `cluster` come first.
pub(super) const SETS: [(&str, IpFamily); 4] = [
    ("cluster4", IpFamily::V4),
    ("cluster6", IpFamily::V6),
    ("exclude4", IpFamily::V4),
    ("exclude6", IpFamily::V6),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The rules of [`POSTROUTING`].
    pub(super) rules: Vec<Vec<Expr>>,
    /// The networks of each of [`SETS`]. None contains another one.
    pub(super) sets: [BTreeSet<IpNetwork>; 4],
}

impl Layout {
    pub(super) fn of(wanted: &Masquerade) -> Self {
        // Packets between two pods of this node pass the chain if the node filters bridged packets.
        let cluster: Vec<IpNetwork> = wanted.cluster.iter().chain(&wanted.own).copied().collect();
        let of = |networks: &[IpNetwork], of: IpFamily| {
            disjoint(networks.iter().copied().filter(|network| IpFamily::of(network.ip()) == of))
        };
        let [cluster4, cluster6, exclude4, exclude6] = SETS.map(|(_, family)| family);
        Layout {
            rules: wanted.own.iter().map(|own| rule(*own)).collect(),
            sets: [
                of(&cluster, cluster4),
                of(&cluster, cluster6),
                of(&wanted.exclude, exclude4),
                of(&wanted.exclude, exclude6),
            ],
        }
    }

    /// Makes the table, in place of an existing one.
    pub(super) fn make(&self) -> Batch {
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).delete_table(TABLE).add_table(TABLE, Some(COMMENT));
        batch.add_chain(TABLE, POSTROUTING, Some(HOOK), None);
        for (id, ((name, family), networks)) in (1..).zip(SETS.iter().zip(&self.sets)) {
            let key = if *family == IpFamily::V4 { DataType::Ipv4Addr } else { DataType::Ipv6Addr };
            batch.add_interval_set(TABLE, name, id, key);
            batch.add_elements(TABLE, name, &elements(networks));
        }
        for rule in &self.rules {
            batch.add_rule(TABLE, POSTROUTING, rule, None);
        }
        batch
    }

    /// Changes the sets of a table with the same rules. Elements of networks that stay are not touched.
    pub(super) fn change_to(&self, wanted: &Layout) -> Batch {
        let mut batch = Batch::new();
        for ((name, _), (old, new)) in SETS.iter().zip(self.sets.iter().zip(&wanted.sets)) {
            // Deletes first: a former network may contain a new one.
            batch.delete(TABLE, name, &elements(old.difference(new)));
            batch.add_elements(TABLE, name, &elements(new.difference(old)));
        }
        batch
    }
}

/// The elements of a set with these networks.
pub(super) fn elements<'a>(networks: impl IntoIterator<Item = &'a IpNetwork>) -> Vec<Element> {
    networks.into_iter().flat_map(|network| Element::of_network(*network)).collect()
}

fn rule(own: IpNetwork) -> Vec<Expr> {
    let of = IpFamily::of(own.ip());
    let multicast = match of {
        IpFamily::V4 => Ipv4Network::new_checked(Ipv4Addr::new(224, 0, 0, 0), 4).map(IpNetwork::V4),
        IpFamily::V6 => {
            Ipv6Network::new_checked(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8).map(IpNetwork::V6)
        }
    };
    let mut rule = [family(of).to_vec(), address(End::Source, CmpOp::Eq, own)].concat();
    for (set, _) in SETS.iter().filter(|(_, family)| *family == of) {
        let (set, from) = ((*set).to_owned(), Register::R1);
        rule.extend([read_address(End::Destination, of), Expr::NotIn { set, from }]);
    }
    rule.extend(multicast.into_iter().flat_map(|multicast| address(End::Destination, CmpOp::Neq, multicast)));
    rule.push(Expr::Masquerade { flags: FULLY_RANDOM });
    rule
}

/// The networks without those that others contain: the kernel refuses intervals that overlap.
fn disjoint(networks: impl Iterator<Item = IpNetwork>) -> BTreeSet<IpNetwork> {
    // A network comes before those that it contains.
    let sorted: BTreeMap<_, _> =
        networks.map(|network| ((network.network(), network.prefix()), network)).collect();
    let mut kept: Vec<IpNetwork> = Vec::new();
    for (first, prefix) in sorted.into_keys() {
        if kept.last().is_none_or(|last| !last.contains(first)) {
            kept.extend(IpNetwork::new(first, prefix));
        }
    }
    kept.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Vec<IpNetwork> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn networks_within_others_are_left_out() {
        for (given, kept) in [
            (
                &["10.1.1.0/24", "10.1.0.0/16", "10.1.1.0/24", "10.2.0.0/24"][..],
                &["10.1.0.0/16", "10.2.0.0/24"][..],
            ),
            (&["10.1.0.7/24", "10.1.0.0/24", "10.1.1.0/24"], &["10.1.0.0/24", "10.1.1.0/24"]),
            (&["10.1.0.0/24", "0.0.0.0/0", "255.255.255.255/32"], &["0.0.0.0/0"]),
            (&["fd00::/64", "fd00::/48", "fd00:0:1::/64"], &["fd00::/48", "fd00:0:1::/64"]),
            (&[], &[]),
        ] {
            assert_eq!(
                disjoint(networks(given).into_iter()),
                networks(kept).into_iter().collect(),
                "{given:?}"
            );
        }
    }

    #[test]
    fn one_node_is_one_element_in_each_family() {
        let mut wanted = Masquerade {
            own: networks(&["10.1.0.0/24", "fd00::/64"]),
            cluster: networks(&["10.1.1.0/24", "fd00:0:0:1::/64"]),
            exclude: networks(&["10.0.0.0/8"]),
        };
        let before = Layout::of(&wanted);
        assert_eq!(before.rules.len(), 2);
        assert!(before.sets[0].contains(&wanted.own[0]), "pods of this node reach each other");
        assert!(before.change_to(&before).is_empty());
        wanted.cluster.extend(networks(&["10.1.2.0/24", "fd00:0:0:2::/64"]));
        assert_eq!(before.change_to(&Layout::of(&wanted)).len(), 2);
        assert_eq!(Layout::of(&wanted).change_to(&before).len(), 2);
    }
}
