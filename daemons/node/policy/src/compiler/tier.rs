//! One ClusterNetworkPolicy: the pods that it is for, and its rules in their order. A rule that is not understood fails closed: one that
//! accepts matches nothing, every other one denies everything.

use crate::cluster::{Cluster, KnownPod, Labels};
use crate::model::{
    ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject, Direction, Directions,
    IpBlock, IpFamily, NamespacedPods, Protocol,
};
use crate::ruleset::Ports;

use super::block;
use super::definition::{Peers, Scope};
use super::parts::{Allow, MOST_PAIRS, PortMatch, pairs_of, port_number};
use super::selector::Selector;

/// The label of each namespace that has its name; the API server sets it.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// Before NetworkPolicies.
    Admin,
    /// For what no NetworkPolicy isolates.
    Baseline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Accept,
    Deny,
    Pass,
}

#[derive(Debug)]
pub(crate) struct TierParts {
    /// Tells this state of the policy from all others.
    pub(crate) id: u64,
    pub(crate) tier: Tier,
    pub(crate) priority: i32,
    /// The directions in which it has rules.
    pub(crate) has: Directions,
    pub(crate) faults: Vec<String>,
    namespaces: Scope,
    pods: Selector,
    steps: [[Vec<Step>; 2]; 2],
}

/// What happens to a pair of a peer and a port.
type Step = (Action, Allow);

/// The peers of each family, and the ports, of one rule.
type Matches = ([Vec<Peers>; 2], Vec<PortMatch>);

impl TierParts {
    /// In the order in which they are asked.
    pub(crate) fn steps(&self, direction: Direction, family: IpFamily) -> &[Step] {
        &self.steps[direction as usize][family as usize]
    }

    /// The directions in which it may deny.
    pub(crate) fn denies(&self) -> Directions {
        let has = |direction: Direction| {
            let mut all = self.steps[direction as usize].iter().flatten();
            all.any(|(action, _)| *action == Action::Deny)
        };
        Directions { ingress: has(Direction::Ingress), egress: has(Direction::Egress) }
    }

    pub(crate) fn is_for(&self, cluster: &Cluster, pod: &KnownPod) -> bool {
        pod.is_closed
            || self.pods.matches(&pod.labels)
                && self.is_for_namespace(&pod.namespace, cluster.namespace_labels(&pod.namespace))
    }

    /// Whether it may be for a pod of the namespace with these labels.
    pub(crate) fn is_for_namespace(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        self.namespaces.matches(namespace, labels)
    }

    /// The names of all namespaces that it may be for; `None` if any may be.
    pub(crate) fn named_namespaces(&self) -> Option<impl Iterator<Item = &str>> {
        match &self.namespaces {
            Scope::Matching(selector) => selector.values_of(NAME_LABEL),
            Scope::Namespace(_) => None,
        }
    }

    pub(crate) fn read(policy: &ClusterNetworkPolicy, id: u64) -> TierParts {
        let mut faults = Vec::new();
        let mut is_broken = false;
        let mut broken = |error: String| {
            is_broken = true;
            faults.push(format!("{error}; its rules that accept match nothing, the others deny everything"));
        };
        let tier = match policy.tier.as_str() {
            "Admin" => Tier::Admin,
            "Baseline" => Tier::Baseline,
            other => {
                broken(format!("the tier {other:?} is not known"));
                Tier::Admin
            }
        };
        let subject = match &policy.subject {
            ClusterSubject::Pods(pods) => selectors(pods),
            ClusterSubject::Unknown(error) => Err(error.clone()),
        };
        let (namespaces, pods) = subject.unwrap_or_else(|error| {
            broken(format!("subject: {error}: it is for all pods"));
            (Scope::Matching(Selector::default()), Selector::default())
        });
        let mut steps = <[[Vec<Step>; 2]; 2]>::default();
        for direction in Direction::ALL {
            let (word, rules) = match direction {
                Direction::Ingress => ("ingress", &policy.ingress),
                Direction::Egress => ("egress", &policy.egress),
            };
            let mut pairs = 0_usize;
            for (number, rule) in rules.iter().enumerate() {
                let into = &mut steps[direction as usize];
                let Err(error) = push(rule, direction, is_broken, &mut pairs, into) else { continue };
                let is_accept = action(&rule.action) == Ok(Action::Accept);
                if !is_accept {
                    into.iter_mut().for_each(|steps| steps.push((Action::Deny, Allow::EVERYTHING)));
                }
                if !is_broken {
                    let effect = if is_accept { "it matches nothing" } else { "it denies everything" };
                    faults.push(format!("{word}[{number}]: {error}: {effect}"));
                }
            }
        }
        let has = Directions { ingress: !policy.ingress.is_empty(), egress: !policy.egress.is_empty() };
        TierParts { id, tier, priority: policy.priority, has, faults, namespaces, pods, steps }
    }
}

/// Adds what a rule says, for each family.
fn push(
    rule: &ClusterRule,
    direction: Direction,
    is_broken: bool,
    pairs: &mut usize,
    into: &mut [Vec<Step>; 2],
) -> Result<(), String> {
    if is_broken {
        return Err("the policy is not understood".to_owned());
    }
    let action = action(&rule.action)?;
    let (peers, ports) = matches(rule, direction, action == Action::Deny, pairs)?;
    for (family, peers) in IpFamily::ALL.into_iter().zip(&peers) {
        let mut all = Vec::new();
        pairs_of(direction, family, peers, &ports, &mut all);
        into[family as usize].extend(all.into_iter().map(|allow| (action, allow)));
    }
    Ok(())
}

fn action(word: &str) -> Result<Action, String> {
    match word {
        "Accept" => Ok(Action::Accept),
        "Deny" => Ok(Action::Deny),
        "Pass" => Ok(Action::Pass),
        other => Err(format!("the action {other:?} is not known")),
    }
}

fn selectors(pods: &NamespacedPods) -> Result<(Scope, Selector), String> {
    Ok((Scope::Matching(Selector::read(&pods.namespaces)?), Selector::read(&pods.pods)?))
}

/// `pairs` counts those of the rules before, too.
fn matches(
    rule: &ClusterRule,
    direction: Direction,
    is_denial: bool,
    pairs: &mut usize,
) -> Result<Matches, String> {
    *pairs = pairs.saturating_add(rule.peers.len().max(1).saturating_mul(rule.protocols.len().max(1)));
    if *pairs > MOST_PAIRS {
        return Err(format!("more than {MOST_PAIRS} pairs of a peer and a port"));
    }
    if rule.peers.is_empty() {
        return Err("no peer".to_owned());
    }
    let mut all = <[Vec<Peers>; 2]>::default();
    let mut blocks = <[Vec<_>; 2]>::default();
    for (number, peer) in rule.peers.iter().enumerate() {
        let at = |error: String| format!("peer {number}: {error}");
        match peer {
            ClusterPeer::Pods(pods) => {
                let (scope, selector) = selectors(pods).map_err(at)?;
                all.iter_mut()
                    .for_each(|all| all.push(Peers::Pods(scope.clone(), selector.clone(), is_denial)));
            }
            ClusterPeer::Networks(networks) if direction == Direction::Egress && !networks.is_empty() => {
                for cidr in networks {
                    let block = IpBlock { cidr: cidr.clone(), except: Vec::new() };
                    let (family, intervals) = block::read(&block).map_err(at)?;
                    blocks[family as usize].extend(intervals);
                }
            }
            ClusterPeer::Networks(_) => return Err(at("networks are no peer here".to_owned())),
            ClusterPeer::Unknown(error) => return Err(at(error.clone())),
        }
    }
    for (family, blocks) in IpFamily::ALL.into_iter().zip(blocks) {
        Peers::push_blocks(&mut all[family as usize], family, blocks);
    }
    Ok((all, ports(rule)?))
}

fn ports(rule: &ClusterRule) -> Result<Vec<PortMatch>, String> {
    if rule.protocols.is_empty() {
        return Ok(vec![PortMatch::Are(Ports::Any)]);
    }
    let mut all = Vec::new();
    for (number, protocol) in rule.protocols.iter().enumerate() {
        let at = |error: String| format!("protocol {number}: {error}");
        match protocol {
            ClusterProtocol::Ports { protocol, first, last } => {
                let (first, last) = (port_number(*first).map_err(at)?, port_number(*last).map_err(at)?);
                if last < first {
                    return Err(at(format!("the range ends at {last}, below {first}")));
                }
                all.push(PortMatch::Are(Ports::Range { protocol: *protocol, first, last }));
            }
            ClusterProtocol::Named(name) => {
                let of = |protocol| PortMatch::Named(protocol, name.as_str().into());
                all.extend([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(of));
            }
            ClusterProtocol::Unknown(error) => return Err(at(error.clone())),
        }
    }
    Ok(all)
}
