//! The rules of one node as a value: named sets, chains, and the maps that lead from a pod's address to its chain.
//!
//! How a packet walks it: the entry of [`Direction::Egress`] of its source, then the entry of [`Direction::Ingress`] of its
//! destination. Without an entry the pod is not isolated in that direction. The first rule of a chain that matches decides, else
//! [`Chain::otherwise`]. "Allows" ends this direction only: the other one is still to be asked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::{Direction, IpFamily, Protocol};
use crate::name::Name;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    pub sets: BTreeMap<Name, Set>,
    pub chains: BTreeMap<Name, Chain>,
    pub maps: BTreeMap<Entry, Name>,
    /// Those of `maps` whose chains deny nothing: [`Verdict::Dry`] stands in place of [`Verdict::Deny`].
    pub dry: BTreeSet<IpAddr>,
}

/// The key of a map's element: the pod's address in the map of its direction (and family).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub direction: Direction,
    pub pod: IpAddr,
}

/// A named set. Which kind it is, and the intervals of blocks, never change under one name; addresses and ports do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub family: IpFamily,
    pub contents: Contents,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The addresses of pods.
    Addresses(BTreeSet<IpAddr>),
    /// Addresses with a protocol and a port: pods by a named port of theirs.
    Ports(BTreeSet<(IpAddr, Protocol, u16)>),
    /// The first and the last address of intervals, in order, neither overlapping nor adjacent. Needs a set with intervals.
    Blocks(Vec<(IpAddr, IpAddr)>),
}

/// What happens to a packet. A chain never changes: another content has another name. Without ClusterNetworkPolicies the rules of each chain
/// allow, and `otherwise` denies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub direction: Direction,
    pub family: IpFamily,
    /// In the order in which they are asked.
    pub rules: Vec<Rule>,
    /// What no rule matches.
    pub otherwise: Verdict,
}

/// Both parts must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    pub peer: Peer,
    pub ports: Ports,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Allow,
    Deny,
    /// Would be denied, and is allowed: the pod's mode is dry.
    Dry,
    /// The chain of this name decides. Only one chain is behind another one, and that one has none.
    Goto(Name),
}

/// The other end: the source in a chain of [`Direction::Ingress`], else the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    Any,
    /// Its address is in this set of addresses or blocks.
    In(Name),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// Every packet, also ICMP and other protocols.
    Any,
    /// Every packet of this protocol.
    Protocol(Protocol),
    /// A destination port from the first to the last one.
    Range { protocol: Protocol, first: u16, last: u16 },
    /// The destination's address, the protocol and the destination port are in this set of [`Contents::Ports`]. Only for egress.
    In(Name),
}

/// The changes from one [`Ruleset`] to the next. An order in which one transaction can make them: new sets with their elements, new
/// chains, their rules, elements, maps (an entry that has a chain already is deleted first), then the rules of chains that are gone, these
/// chains, and sets that are gone. Rules of one chain may lead to another one, so that all chains come before and go after all rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub new_sets: BTreeMap<Name, Set>,
    pub new_chains: BTreeMap<Name, Chain>,
    /// Of sets that stay.
    pub elements: BTreeMap<Name, Elements>,
    /// Those of these sets whose new elements may deny flows: a rule with another verdict than [`Verdict::Allow`] asks them.
    pub denying: BTreeSet<Name>,
    pub maps: BTreeMap<Entry, MapChange>,
    /// The addresses of `maps` that enter or leave [`Ruleset::dry`], and whether they are in it now.
    pub dry: BTreeMap<IpAddr, bool>,
    pub gone_chains: BTreeSet<Name>,
    pub gone_sets: BTreeSet<Name>,
}

/// The chain of a map's entry before and after: never the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapChange {
    pub from: Option<Name>,
    pub to: Option<Name>,
}

/// The changes of one set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    pub added: BTreeSet<Element>,
    pub removed: BTreeSet<Element>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    Address(IpAddr),
    Port(IpAddr, Protocol, u16),
}

impl Element {
    pub fn address(self) -> IpAddr {
        match self {
            Element::Address(address) | Element::Port(address, ..) => address,
        }
    }
}

impl Rule {
    fn sets(&self) -> impl Iterator<Item = Name> + use<> {
        let peer = if let Peer::In(name) = self.peer { Some(name) } else { None };
        let ports = if let Ports::In(name) = self.ports { Some(name) } else { None };
        peer.into_iter().chain(ports)
    }
}

impl Chain {
    /// The sets that its rules use.
    pub fn sets(&self) -> BTreeSet<Name> {
        self.rules.iter().flat_map(Rule::sets).collect()
    }

    /// The sets whose elements may deny.
    pub fn denying(&self) -> BTreeSet<Name> {
        let may_deny = |rule: &&Rule| !matches!(rule.verdict, Verdict::Allow | Verdict::Dry);
        self.rules.iter().filter(may_deny).flat_map(Rule::sets).collect()
    }

    /// The chain that decides what this one does not.
    pub fn next(&self) -> Option<Name> {
        let all = self.rules.iter().map(|rule| rule.verdict).chain([self.otherwise]);
        all.into_iter().find_map(|verdict| if let Verdict::Goto(name) = verdict { Some(name) } else { None })
    }
}

impl Contents {
    /// Whether the element is new. A set of blocks takes none.
    pub(crate) fn insert(&mut self, element: Element) -> bool {
        match (self, element) {
            (Contents::Addresses(all), Element::Address(address)) => all.insert(address),
            (Contents::Ports(all), Element::Port(address, protocol, port)) => {
                all.insert((address, protocol, port))
            }
            _ => false,
        }
    }

    pub(crate) fn extend(&mut self, elements: impl IntoIterator<Item = Element>) {
        for element in elements {
            self.insert(element);
        }
    }

    /// Whether the element was there.
    pub(crate) fn remove(&mut self, element: Element) -> bool {
        match (self, element) {
            (Contents::Addresses(all), Element::Address(address)) => all.remove(&address),
            (Contents::Ports(all), Element::Port(address, protocol, port)) => {
                all.remove(&(address, protocol, port))
            }
            _ => false,
        }
    }

    fn difference(&self, next: &Contents) -> Elements {
        let (mut added, mut removed) = (BTreeSet::new(), BTreeSet::new());
        match (self, next) {
            (Contents::Addresses(old), Contents::Addresses(new)) => {
                added.extend(new.difference(old).map(|address| Element::Address(*address)));
                removed.extend(old.difference(new).map(|address| Element::Address(*address)));
            }
            (Contents::Ports(old), Contents::Ports(new)) => {
                let element = |(address, protocol, port): &_| Element::Port(*address, *protocol, *port);
                added.extend(new.difference(old).map(element));
                removed.extend(old.difference(new).map(element));
            }
            _ => {}
        }
        Elements { added, removed }
    }
}

impl Ruleset {
    /// How many addresses something may be denied to.
    pub fn isolated(&self) -> usize {
        let pods: BTreeSet<IpAddr> = self.maps.keys().map(|entry| entry.pod).collect();
        pods.difference(&self.dry).count()
    }

    /// What makes `next` of this one. From [`Ruleset::default`] it is everything.
    pub fn difference(&self, next: &Ruleset) -> Change {
        let mut change = Change::default();
        for (name, set) in &next.sets {
            match self.sets.get(name) {
                None => drop(change.new_sets.insert(*name, set.clone())),
                Some(old) => {
                    let elements = old.contents.difference(&set.contents);
                    if elements != Elements::default() {
                        change.elements.insert(*name, elements);
                    }
                }
            }
        }
        let denying: BTreeSet<_> = next.chains.values().flat_map(Chain::denying).collect();
        change.denying.extend(change.elements.keys().filter(|name| denying.contains(name)));
        let is_new = |(name, _): &(&Name, &Chain)| !self.chains.contains_key(name);
        change
            .new_chains
            .extend(next.chains.iter().filter(is_new).map(|(name, chain)| (*name, chain.clone())));
        for entry in self.maps.keys().chain(next.maps.keys()) {
            let (from, to) = (self.maps.get(entry).copied(), next.maps.get(entry).copied());
            if from != to {
                change.maps.insert(*entry, MapChange { from, to });
            }
        }
        change.dry.extend(self.dry.difference(&next.dry).map(|address| (*address, false)));
        change.dry.extend(next.dry.difference(&self.dry).map(|address| (*address, true)));
        change.gone_chains.extend(self.chains.keys().filter(|name| !next.chains.contains_key(name)));
        change.gone_sets.extend(self.sets.keys().filter(|name| !next.sets.contains_key(name)));
        change
    }

    /// Makes the changes.
    pub fn apply(&mut self, change: &Change) {
        self.sets.extend(change.new_sets.iter().map(|(name, set)| (*name, set.clone())));
        self.chains.extend(change.new_chains.iter().map(|(name, chain)| (*name, chain.clone())));
        for (name, elements) in &change.elements {
            if let Some(set) = self.sets.get_mut(name) {
                for element in &elements.removed {
                    set.contents.remove(*element);
                }
                for element in &elements.added {
                    set.contents.insert(*element);
                }
            }
        }
        for (entry, MapChange { to, .. }) in &change.maps {
            match to {
                Some(chain) => drop(self.maps.insert(*entry, *chain)),
                None => drop(self.maps.remove(entry)),
            }
        }
        for (address, is_dry) in &change.dry {
            if *is_dry {
                self.dry.insert(*address)
            } else {
                self.dry.remove(address)
            };
        }
        self.chains.retain(|name, _| !change.gone_chains.contains(name));
        self.sets.retain(|name, _| !change.gone_sets.contains(name));
    }
}

impl Change {
    /// Whether the pod's chains denied nothing before this change, or it had none. `after` is the ruleset with it.
    pub fn was_dry(&self, pod: IpAddr, after: &Ruleset) -> bool {
        self.dry.get(&pod).map_or_else(|| after.dry.contains(&pod), |is_dry| !is_dry)
    }

    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }

    /// The addresses of all flows that this change may deny: each of them has one of these at one end. They are those of local pods
    /// that get other rules, and those of peers that a set has lost, or got if it may deny.
    pub fn tightened(&self) -> BTreeSet<IpAddr> {
        let pods = self.maps.iter().filter(|(_, change)| change.to.is_some()).map(|(entry, _)| entry.pod);
        let lost = self.elements.values().flat_map(|set| &set.removed);
        let got = self.denying.iter().filter_map(|name| self.elements.get(name)).flat_map(|set| &set.added);
        pods.chain(lost.chain(got).map(|element| element.address())).collect()
    }
}
