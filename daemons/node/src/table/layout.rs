//! What a table contains. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::{Batch, DataType, Element, Expr, Hook, Table};
use ipnetwork::IpNetwork;

/// Chains and sets. The daemon changes elements where chains and kinds of sets stay, else it makes the table anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) comment: &'static str,
    pub(crate) chains: Vec<Chain>,
    pub(crate) sets: Vec<Set>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    /// `None` for a chain that only rules call.
    pub(crate) hook: Option<Hook>,
    pub(crate) rules: Vec<Vec<Expr>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) items: BTreeSet<Item>,
}

/// What a set may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Names of links.
    Names,
    /// Single addresses.
    Addresses(IpFamily),
    /// Networks of which none contains another one: see [`disjoint`].
    Networks(IpFamily),
    /// Pairs: a source of this family, and a network in the bytes (offset, length) of the transport header.
    Pairs(IpFamily, (u32, u32)),
    /// Names of links that rules add, at most so many, each for so many milliseconds. It has no items here.
    Counts(u32, u64),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Item {
    Name(String),
    /// A single address has the whole prefix.
    Network(IpNetwork),
    Pair(IpAddr, IpNetwork),
}

impl Layout {
    /// Makes the table, in place of an existing one.
    pub(super) fn make(&self, table: Table<'_>) -> Batch {
        let mut batch = Batch::new();
        batch.add_table(table, None).delete_table(table).add_table(table, Some(self.comment));
        for Chain { name, hook, .. } in &self.chains {
            batch.add_chain(table, name, *hook, None);
        }
        for (id, set) in (1..).zip(&self.sets) {
            set.make(&mut batch, table, id);
        }
        for Chain { name, rules, .. } in &self.chains {
            for rule in rules {
                batch.add_rule(table, name, rule, None);
            }
        }
        batch
    }

    /// Whether only elements differ.
    pub(crate) fn is_like(&self, other: &Layout) -> bool {
        let kinds =
            |layout: &Layout| -> Vec<_> { layout.sets.iter().map(|set| (set.name, set.kind)).collect() };
        self.chains == other.chains && kinds(self) == kinds(other)
    }

    /// Changes the sets of a table like the wanted one. Elements that stay are not touched.
    pub(crate) fn change_to(&self, wanted: &Layout, table: Table<'_>) -> Batch {
        let mut batch = Batch::new();
        for (old, new) in self.sets.iter().zip(&wanted.sets) {
            // Deletes first: a former network may contain a new one.
            batch.delete(table, old.name, &old.elements(old.items.difference(&new.items)));
            batch.add_elements(table, new.name, &new.elements(new.items.difference(&old.items)));
        }
        batch
    }
}

impl Set {
    fn make(&self, batch: &mut Batch, table: Table<'_>, id: u32) {
        match self.kind {
            Kind::Names => batch.add_set(table, self.name, id, &[DataType::IfName], None),
            Kind::Addresses(family) => batch.add_set(table, self.name, id, &[type_of(family)], None),
            Kind::Networks(family) => batch.add_interval_set(table, self.name, id, type_of(family)),
            Kind::Pairs(family, bytes) => batch.add_pair_set(table, self.name, id, family, bytes),
            Kind::Counts(size, time) => {
                batch.add_counting_set(table, self.name, id, DataType::IfName, (size, time))
            }
        };
        batch.add_elements(table, self.name, &self.elements(&self.items));
    }

    /// The elements of these items.
    pub(super) fn elements<'a>(&self, items: impl IntoIterator<Item = &'a Item>) -> Vec<Element> {
        items.into_iter().flat_map(|item| self.elements_of(item)).collect()
    }

    fn elements_of(&self, item: &Item) -> Vec<Element> {
        match (item, self.kind) {
            (Item::Name(name), _) => vec![Element::new(name_key(name))],
            (Item::Network(network), Kind::Addresses(_)) => vec![Element::new(octets(network.ip()))],
            (Item::Network(network), _) => Element::of_network(*network),
            (Item::Pair(source, network), _) => vec![Element::of_pair(*source, *network)],
        }
    }
}

fn type_of(family: IpFamily) -> DataType {
    if family == IpFamily::V4 { DataType::Ipv4Addr } else { DataType::Ipv6Addr }
}

/// The name of a link as a key.
fn name_key(name: &str) -> Vec<u8> {
    let mut key = name.as_bytes().to_vec();
    key.resize(16, 0);
    key
}

/// The networks without those that others contain: the kernel refuses intervals that overlap.
pub(crate) fn disjoint(networks: impl Iterator<Item = IpNetwork>) -> BTreeSet<IpNetwork> {
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
}
