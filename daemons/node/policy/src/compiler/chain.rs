//! The chains of a pod: the union of what its NetworkPolicies allow, and before or instead of it the rules of its ClusterNetworkPolicies.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use crate::model::{Direction, IpFamily, NamedPort};
use crate::name::{Kind, Maker, Name};
use crate::ruleset::{Chain, Peer, Ports, Rule, Verdict};

use super::definition::Definition;
use super::parts::{Allow, AllowPeer, AllowPorts, Parts};
use super::tier::{Action, TierParts};

/// Different from both directions, with which the name of a chain of NetworkPolicies begins.
const OF_TIER: u64 = 2;

/// A chain, its name, the sets that it uses, and the next chain.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) name: Name,
    pub(crate) chain: Chain,
    pub(crate) sets: BTreeMap<Name, Arc<Definition>>,
    pub(crate) next: Option<Rc<Built>>,
}

type Definitions<'p> = BTreeMap<Name, &'p Arc<Definition>>;

/// The chain of NetworkPolicies. Without policies it allows nothing. `deny`: [`Verdict::Deny`], or [`Verdict::Dry`].
pub(crate) fn build(
    direction: Direction,
    family: IpFamily,
    policies: &[&Parts],
    ports: &[NamedPort],
    deny: Verdict,
) -> Built {
    let mut rules = BTreeSet::new();
    let mut definitions = Definitions::new();
    for allow in policies.iter().flat_map(|policy| policy.allows(direction, family)) {
        rules.extend(resolve(allow, ports, Verdict::Allow, &mut definitions));
    }
    let rules = rules.iter().filter(|rule| !is_covered(rule, &rules)).copied().collect();
    let mut maker = Maker::new(Kind::Chain);
    maker.number(direction as u64).number(family as u64);
    if deny == Verdict::Dry {
        name_verdict(deny, &mut maker);
    }
    let chain = Chain { direction, family, rules, otherwise: deny };
    finish(chain, maker, &definitions, None)
}

/// The chain of the ClusterNetworkPolicies of one tier, in their order, and of `next` behind them, if they or it restrict anything.
pub(crate) fn build_tier(
    direction: Direction,
    family: IpFamily,
    policies: &[&TierParts],
    ports: &[NamedPort],
    deny: Verdict,
    next: Option<Rc<Built>>,
) -> Option<Rc<Built>> {
    let passed = next.as_ref().map_or(Verdict::Allow, |next| Verdict::Goto(next.name));
    let mut definitions = Definitions::new();
    let (mut rules, mut otherwise) = (Vec::new(), passed);
    for (action, allow) in policies.iter().flat_map(|policy| policy.steps(direction, family)) {
        let verdict = match action {
            Action::Accept => Verdict::Allow,
            Action::Deny => deny,
            Action::Pass => passed,
        };
        let of = resolve(allow, ports, verdict, &mut definitions);
        let is_last = |rule: &Rule| (rule.peer, rule.ports) == (Peer::Any, Ports::Any);
        if of.iter().any(is_last) {
            otherwise = verdict;
            break;
        }
        rules.extend(of);
    }
    while rules.last().is_some_and(|rule| rule.verdict == otherwise) {
        rules.pop();
    }
    if rules.is_empty() && otherwise == passed {
        return next;
    }
    let mut maker = Maker::new(Kind::Chain);
    maker.number(OF_TIER).number(direction as u64).number(family as u64);
    name_verdict(otherwise, &mut maker);
    rules.iter().for_each(|rule| name_verdict(rule.verdict, &mut maker));
    Some(Rc::new(finish(Chain { direction, family, rules, otherwise }, maker, &definitions, next)))
}

/// The rules of a pair: several, or none, for a named port of the pod itself.
fn resolve<'p>(
    allow: &'p Allow,
    ports: &[NamedPort],
    verdict: Verdict,
    definitions: &mut Definitions<'p>,
) -> Vec<Rule> {
    let peer = match &allow.peer {
        AllowPeer::Any => Peer::Any,
        AllowPeer::In(set) => {
            definitions.insert(set.name, set);
            Peer::In(set.name)
        }
    };
    match &allow.ports {
        AllowPorts::Are(ports) => vec![Rule { peer, ports: *ports, verdict }],
        AllowPorts::In(set) => {
            definitions.insert(set.name, set);
            vec![Rule { peer, ports: Ports::In(set.name), verdict }]
        }
        AllowPorts::Named(protocol, name) => {
            let own = ports.iter().filter(|port| port.protocol == *protocol && *port.name == **name);
            own.map(|own| {
                let ports = Ports::Range { protocol: *protocol, first: own.port, last: own.port };
                Rule { peer, ports, verdict }
            })
            .collect()
        }
    }
}

/// The chain with its sets and its name, of which the maker has the start.
fn finish(chain: Chain, mut maker: Maker, definitions: &Definitions<'_>, next: Option<Rc<Built>>) -> Built {
    chain.rules.iter().for_each(|rule| name_rule(rule, &mut maker));
    let definition = |name: Name| definitions.get(&name).map(|definition| (name, Arc::clone(definition)));
    let sets = chain.sets().into_iter().filter_map(definition).collect();
    let next = next.filter(|next| chain.next() == Some(next.name));
    Built { name: maker.finish(), chain, sets, next }
}

fn name_verdict(verdict: Verdict, maker: &mut Maker) {
    match verdict {
        Verdict::Allow => drop(maker.number(0)),
        Verdict::Deny => drop(maker.number(1)),
        Verdict::Goto(name) => drop(maker.number(2).name(name)),
        Verdict::Dry => drop(maker.number(3)),
    }
}

fn name_rule(Rule { peer, ports, .. }: &Rule, maker: &mut Maker) {
    match peer {
        Peer::Any => drop(maker.number(0)),
        Peer::In(name) => drop(maker.number(1).name(*name)),
    }
    match ports {
        Ports::Any => drop(maker.number(0)),
        Ports::Protocol(protocol) => drop(maker.number(1).number(protocol.number().into())),
        Ports::Range { protocol, first, last } => {
            maker.number(2).number(protocol.number().into()).number((*first).into()).number((*last).into());
        }
        Ports::In(name) => drop(maker.number(3).name(*name)),
    }
}

/// Whether another rule allows all that this one does.
fn is_covered(rule: &Rule, all: &BTreeSet<Rule>) -> bool {
    let wider = [
        Rule { peer: Peer::Any, ports: Ports::Any, ..*rule },
        Rule { ports: Ports::Any, ..*rule },
        Rule { peer: Peer::Any, ..*rule },
    ];
    wider.iter().any(|wider| wider != rule && all.contains(wider))
}
