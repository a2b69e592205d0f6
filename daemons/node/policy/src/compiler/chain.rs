//! The chain of a pod: the union of what its policies allow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{Direction, IpFamily, NamedPort};
use crate::name::{Kind, Maker, Name};
use crate::ruleset::{Chain, Peer, Ports, Rule};

use super::definition::Definition;
use super::parts::{AllowPeer, AllowPorts, Parts};

/// A chain, its name, and the sets that it uses.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) name: Name,
    pub(crate) chain: Chain,
    pub(crate) sets: BTreeMap<Name, Arc<Definition>>,
}

/// Without policies the chain allows nothing.
pub(crate) fn build(
    direction: Direction,
    family: IpFamily,
    policies: &[&Parts],
    ports: &[NamedPort],
) -> Built {
    let mut rules = BTreeSet::new();
    let mut definitions = BTreeMap::new();
    for allow in policies.iter().flat_map(|policy| policy.allows(direction, family)) {
        let peer = match &allow.peer {
            AllowPeer::Any => Peer::Any,
            AllowPeer::In(set) => {
                definitions.insert(set.name, set);
                Peer::In(set.name)
            }
        };
        match &allow.ports {
            AllowPorts::Are(ports) => drop(rules.insert(Rule { peer, ports: *ports })),
            AllowPorts::In(set) => {
                definitions.insert(set.name, set);
                rules.insert(Rule { peer, ports: Ports::In(set.name) });
            }
            AllowPorts::Named(protocol, name) => {
                let own = ports.iter().filter(|port| port.protocol == *protocol && *port.name == **name);
                rules.extend(own.map(|own| {
                    let ports = Ports::Range { protocol: *protocol, first: own.port, last: own.port };
                    Rule { peer, ports }
                }));
            }
        }
    }
    let rules: Vec<_> = rules.iter().filter(|rule| !is_covered(rule, &rules)).copied().collect();
    let mut sets = BTreeMap::new();
    let mut maker = Maker::new(Kind::Chain);
    maker.number(direction as u64).number(family as u64);
    for Rule { peer, ports } in &rules {
        let mut uses = |name: &Name| {
            if let Some(definition) = definitions.get(name) {
                sets.insert(*name, Arc::clone(definition));
            }
        };
        match peer {
            Peer::Any => drop(maker.number(0)),
            Peer::In(name) => {
                uses(name);
                maker.number(1).name(*name);
            }
        }
        match ports {
            Ports::Any => drop(maker.number(0)),
            Ports::Protocol(protocol) => drop(maker.number(1).number(protocol.number().into())),
            Ports::Range { protocol, first, last } => {
                maker
                    .number(2)
                    .number(protocol.number().into())
                    .number((*first).into())
                    .number((*last).into());
            }
            Ports::In(name) => {
                uses(name);
                maker.number(3).name(*name);
            }
        }
    }
    Built { name: maker.finish(), chain: Chain { direction, family, rules }, sets }
}

/// Whether another rule allows all that this one does.
fn is_covered(rule: &Rule, all: &BTreeSet<Rule>) -> bool {
    let wider = [
        Rule { peer: Peer::Any, ports: Ports::Any },
        Rule { peer: rule.peer, ports: Ports::Any },
        Rule { peer: Peer::Any, ports: rule.ports },
    ];
    wider.iter().any(|wider| wider != rule && all.contains(wider))
}
