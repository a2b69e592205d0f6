//! One policy: the pods that it isolates, and the traffic that its rules allow. A part with an error allows nothing.

use std::sync::Arc;

use crate::cluster::KnownPod;
use crate::model::{Direction, Directions, IpFamily, NetworkPolicy, Peer, Port, PortValue, Protocol, Rule};
use crate::ruleset;

use super::block;
use super::definition::{Definition, Peers, Scope};
use super::selector::Selector;

/// The most pairs of a peer and a port that the rules of one policy may have in one direction. Peers times ports of a small object
/// could fill the node's memory.
pub(crate) const MOST_PAIRS: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Parts {
    /// Tells this state of the policy from all others.
    pub(crate) id: u64,
    pub(crate) subject: Selector,
    pub(crate) isolates: Directions,
    pub(crate) faults: Vec<String>,
    allows: [[Vec<Allow>; 2]; 2],
}

/// One pair of a peer and a port.
#[derive(Clone, Debug)]
pub(crate) struct Allow {
    pub(crate) peer: AllowPeer,
    pub(crate) ports: AllowPorts,
}

impl Allow {
    pub(crate) const EVERYTHING: Allow =
        Allow { peer: AllowPeer::Any, ports: AllowPorts::Are(ruleset::Ports::Any) };
}

#[derive(Clone, Debug)]
pub(crate) enum AllowPeer {
    Any,
    In(Arc<Definition>),
}

#[derive(Clone, Debug)]
pub(crate) enum AllowPorts {
    Are(ruleset::Ports),
    /// The ports of the isolated pod that have this name.
    Named(Protocol, Box<str>),
    /// Those in the set, with the peer's address.
    In(Arc<Definition>),
}

pub(crate) enum PortMatch {
    Are(ruleset::Ports),
    Named(Protocol, Box<str>),
}

impl Parts {
    pub(crate) fn allows(&self, direction: Direction, family: IpFamily) -> &[Allow] {
        &self.allows[direction as usize][family as usize]
    }

    /// Whether it selects the pod of its namespace.
    pub(crate) fn is_for(&self, pod: &KnownPod) -> bool {
        pod.is_closed || self.subject.matches(&pod.labels)
    }

    pub(crate) fn read(policy: &NetworkPolicy, id: u64) -> Parts {
        let mut faults = Vec::new();
        let isolates = directions(policy, &mut faults);
        let subject = Selector::read(&policy.pods);
        let mut allows = <[[Vec<Allow>; 2]; 2]>::default();
        if let Err(error) = &subject {
            faults.push(format!(
                "podSelector: {error}: it isolates each pod of the namespace and allows nothing"
            ));
        } else if let Some(error) = &policy.unread {
            faults.push(format!("{error}: it isolates its pods in both directions and allows nothing"));
        } else {
            for direction in Direction::ALL.into_iter().filter(|direction| isolates.has(*direction)) {
                let (word, rules) = match direction {
                    Direction::Ingress => ("ingress", &policy.ingress),
                    Direction::Egress => ("egress", &policy.egress),
                };
                let mut pairs = 0_usize;
                for (number, rule) in rules.iter().enumerate() {
                    let of = rule.peers.len().max(1).saturating_mul(rule.ports.len().max(1));
                    pairs = pairs.saturating_add(of);
                    let place = format!("{word}[{number}]");
                    if pairs > MOST_PAIRS {
                        faults.push(format!(
                            "{place}: more than {MOST_PAIRS} pairs of a peer and a port: it allows nothing"
                        ));
                        continue;
                    }
                    let ports = ports(rule, &place, &mut faults);
                    let peers = peers(&policy.namespace, rule, &place, &mut faults);
                    for family in IpFamily::ALL {
                        let allowed = &mut allows[direction as usize][family as usize];
                        pairs_of(direction, family, &peers[family as usize], &ports, allowed);
                    }
                }
            }
        }
        Parts { id, subject: subject.unwrap_or_default(), isolates, faults, allows }
    }
}

/// The directions in which a policy isolates.
fn directions(policy: &NetworkPolicy, faults: &mut Vec<String>) -> Directions {
    if policy.unread.is_some() {
        return Directions::BOTH;
    }
    if policy.types.is_empty() {
        return Directions { ingress: true, egress: !policy.egress.is_empty() };
    }
    let mut all = Directions::default();
    for word in &policy.types {
        match word.as_str() {
            "Ingress" => all.ingress = true,
            "Egress" => all.egress = true,
            other => {
                faults.push(format!("policyTypes: {other:?} is not known: it isolates in both directions"));
                all = Directions::BOTH;
            }
        }
    }
    all
}

pub(crate) fn pairs_of(
    direction: Direction,
    family: IpFamily,
    peers: &[Peers],
    ports: &[PortMatch],
    into: &mut Vec<Allow>,
) {
    for peer in peers {
        let allow_peer = match peer {
            Peers::Any => AllowPeer::Any,
            set => AllowPeer::In(Arc::new(Definition::new(family, set.clone(), None))),
        };
        into.extend(ports.iter().map(|ports| match ports {
            PortMatch::Are(ports) => Allow { peer: allow_peer.clone(), ports: AllowPorts::Are(*ports) },
            PortMatch::Named(protocol, name) if direction == Direction::Ingress => {
                Allow { peer: allow_peer.clone(), ports: AllowPorts::Named(*protocol, name.clone()) }
            }
            PortMatch::Named(protocol, name) => {
                let named = Definition::new(family, peer.clone(), Some((*protocol, name.clone())));
                Allow { peer: AllowPeer::Any, ports: AllowPorts::In(Arc::new(named)) }
            }
        }));
    }
}

/// The peers of each family. The blocks of one rule are one.
fn peers(namespace: &str, rule: &Rule, place: &str, faults: &mut Vec<String>) -> [Vec<Peers>; 2] {
    if rule.peers.is_empty() {
        return [vec![Peers::Any], vec![Peers::Any]];
    }
    let mut all = <[Vec<Peers>; 2]>::default();
    let mut blocks = <[Vec<_>; 2]>::default();
    for (number, peer) in rule.peers.iter().enumerate() {
        let read = match &peer.block {
            _ if let Some(error) = &peer.unread => Err(error.clone()),
            Some(block) if peer.pods.is_none() && peer.namespaces.is_none() => {
                block::read(block).map(|(family, intervals)| blocks[family as usize].extend(intervals))
            }
            Some(_) => Err("ipBlock beside a selector".into()),
            None => pods(namespace, peer).map(|pods| all.iter_mut().for_each(|all| all.push(pods.clone()))),
        };
        if let Err(error) = read {
            faults.push(format!("{place}, peer {number}: {error}: it allows nothing"));
        }
    }
    for (family, blocks) in IpFamily::ALL.into_iter().zip(blocks) {
        Peers::push_blocks(&mut all[family as usize], family, blocks);
    }
    all
}

fn pods(namespace: &str, peer: &Peer) -> Result<Peers, String> {
    let scope = match &peer.namespaces {
        Some(namespaces) => Scope::Matching(Selector::read(namespaces)?),
        None if peer.pods.is_some() => Scope::Namespace(namespace.into()),
        None => return Err("no peer".into()),
    };
    Ok(Peers::Pods(scope, peer.pods.as_ref().map(Selector::read).transpose()?.unwrap_or_default(), false))
}

fn ports(rule: &Rule, place: &str, faults: &mut Vec<String>) -> Vec<PortMatch> {
    if rule.ports.is_empty() {
        return vec![PortMatch::Are(ruleset::Ports::Any)];
    }
    let mut all = Vec::new();
    for (number, port) in rule.ports.iter().enumerate() {
        match one_port(port) {
            Ok(port) => all.push(port),
            Err(error) => faults.push(format!("{place}, port {number}: {error}: it allows nothing")),
        }
    }
    all
}

fn one_port(port: &Port) -> Result<PortMatch, String> {
    if let Some(error) = &port.unread {
        return Err(error.clone());
    }
    let word = port.protocol.as_deref().unwrap_or("TCP");
    let protocol = Protocol::named(word).ok_or_else(|| format!("the protocol {word:?} is not known"))?;
    match (&port.port, port.end_port) {
        (None, None) => Ok(PortMatch::Are(ruleset::Ports::Protocol(protocol))),
        (Some(PortValue::Name(name)), None) => Ok(PortMatch::Named(protocol, name.as_str().into())),
        (Some(PortValue::Number(first)), end) => {
            let (first, last) = (port_number(*first)?, port_number(end.unwrap_or(*first))?);
            if last < first {
                return Err(format!("endPort {last} is below {first}"));
            }
            Ok(PortMatch::Are(ruleset::Ports::Range { protocol, first, last }))
        }
        (None | Some(PortValue::Name(_)), Some(end)) => {
            Err(format!("endPort {end} without the number of a port"))
        }
    }
}

pub(crate) fn port_number(value: i32) -> Result<u16, String> {
    match u16::try_from(value) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{value} is no port")),
    }
}
