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

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{End, address, family, read_address};
use ferrule_kernel::nftables::{
    ChainType, CmpOp, Expr, FULLY_RANDOM, Family, Hook, HookPoint, Policy, Register, Table,
};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::plan::Masquerade;
use crate::table::{Chain, Item, Kind, Layout, Set, disjoint};

pub(super) const TABLE: Table<'static> = Table::new(Family::Inet, "ferrule_node");
const HOOK: Hook =
    Hook { chain_type: ChainType::Nat, point: HookPoint::Postrouting, priority: 110, policy: Policy::Accept };

/// The sets: name and family.
const CLUSTER: [(&str, IpFamily); 2] = [("cluster4", IpFamily::V4), ("cluster6", IpFamily::V6)];
const EXCLUDE: [(&str, IpFamily); 2] = [("exclude4", IpFamily::V4), ("exclude6", IpFamily::V6)];

pub(super) fn of(wanted: &Masquerade) -> Layout {
    // Packets between two pods of this node pass the chain if the node filters bridged packets.
    let cluster: Vec<IpNetwork> = wanted.cluster.iter().chain(&wanted.own).copied().collect();
    let set = |(name, family): (&'static str, IpFamily), networks: &[IpNetwork]| {
        let of_family = networks.iter().copied().filter(|network| IpFamily::of(network.ip()) == family);
        Set {
            name,
            kind: Kind::Networks(family),
            items: disjoint(of_family).into_iter().map(Item::Network).collect(),
        }
    };
    let cluster = CLUSTER.iter().map(|name| set(*name, &cluster));
    let rules = wanted.own.iter().map(|own| rule(*own)).collect();
    Layout {
        comment: "ferrule-node: what leaves the cluster gets the node's address",
        chains: vec![Chain { name: "postrouting", hook: Some(HOOK), rules }],
        sets: cluster.chain(EXCLUDE.iter().map(|name| set(*name, &wanted.exclude))).collect(),
    }
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
    for (set, _) in CLUSTER.iter().chain(&EXCLUDE).filter(|(_, family)| *family == of) {
        let (set, from) = ((*set).to_owned(), Register::R1);
        rule.extend([read_address(End::Destination, of), Expr::NotIn { set, from }]);
    }
    rule.extend(multicast.into_iter().flat_map(|multicast| address(End::Destination, CmpOp::Neq, multicast)));
    rule.push(Expr::Masquerade { flags: FULLY_RANDOM });
    rule
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Vec<IpNetwork> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn one_node_is_one_element_in_each_family() {
        let mut wanted = Masquerade {
            own: networks(&["10.1.0.0/24", "fd00::/64"]),
            cluster: networks(&["10.1.1.0/24", "fd00:0:0:1::/64"]),
            exclude: networks(&["10.0.0.0/8"]),
        };
        let before = of(&wanted);
        assert_eq!(before.chains[0].rules.len(), 2);
        assert!(
            before.sets[0].items.contains(&Item::Network(wanted.own[0])),
            "pods of this node reach each other"
        );
        assert!(before.change_to(&before, TABLE).is_empty());
        wanted.cluster.extend(networks(&["10.1.2.0/24", "fd00:0:0:2::/64"]));
        assert!(before.is_like(&of(&wanted)));
        assert_eq!(before.change_to(&of(&wanted), TABLE).len(), 2);
        assert_eq!(of(&wanted).change_to(&before, TABLE).len(), 2);
    }
}
