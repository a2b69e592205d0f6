//! Whether policies allow a packet that begins a connection. Written from the API's documentation, apart from the compiler: it knows
//! no sets and no chains, and reads each policy as it stands.

mod tier;
mod unlike;
mod why;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::{Cluster, KnownPod, label};
use crate::model::{
    ClusterNetworkPolicy, Direction, Directions, Expression, IpBlock, LabelSelector, NetworkPolicy, Peer,
    Port, PortValue, Protocol, Rule,
};

pub use tier::Entry;
use tier::Ruling;
pub use unlike::{Unlike, Want, unlike};
pub use why::{EXPLAINED, Explanation, Miss, Missed, Place, Reason, Why, why};

/// The first packet of a connection: after the translation of its destination, before that of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The protocol's number.
    pub protocol: u8,
    /// Of TCP, UDP and SCTP.
    pub destination_port: u16,
}

/// What both ends say that this node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<'a> {
    pub egress: Decision<'a>,
    pub ingress: Decision<'a>,
    /// The directions in which a denial is only counted: the pod's mode is dry.
    pub dry: Directions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// No pod of this node that a policy isolates in this direction.
    NotIsolated,
    /// By this policy.
    Allowed(&'a NetworkPolicy),
    /// No policy allows it. These isolate the pod.
    Denied(Vec<&'a NetworkPolicy>),
    /// By a rule of this ClusterNetworkPolicy.
    Accepted(&'a ClusterNetworkPolicy),
    /// By a rule of this ClusterNetworkPolicy.
    Refused(&'a ClusterNetworkPolicy),
}

impl Verdict<'_> {
    pub fn is_allowed(&self) -> bool {
        (self.dry.egress || self.egress.is_allowed()) && (self.dry.ingress || self.ingress.is_allowed())
    }
}

impl Decision<'_> {
    pub fn is_allowed(&self) -> bool {
        !matches!(self, Decision::Denied(_) | Decision::Refused(_))
    }
}

/// Judges the ends of the packet that are pods of this node. Packets that the node itself makes are not for the judge.
pub fn judge<'a>(cluster: &'a Cluster, packet: &Packet) -> Verdict<'a> {
    // A pod always reaches itself.
    if packet.source == packet.destination {
        let dry = Directions::default();
        return Verdict { egress: Decision::NotIsolated, ingress: Decision::NotIsolated, dry };
    }
    let side = |direction| Side { cluster, packet, direction }.decide();
    let dry =
        Directions { ingress: cluster.is_dry(packet.destination), egress: cluster.is_dry(packet.source) };
    Verdict { egress: side(Direction::Egress), ingress: side(Direction::Ingress), dry }
}

/// The names of the policies that may deny something in this direction to the pod of this node with the address, in the order in which they are
/// asked. That of a ClusterNetworkPolicy has no namespace.
pub fn denying(cluster: &Cluster, pod: IpAddr, direction: Direction) -> Vec<PolicyName<'_>> {
    let packet = Packet { source: pod, destination: pod, protocol: 0, destination_port: 0 };
    let side = Side { cluster, packet: &packet, direction };
    let mut all = Vec::new();
    for pod in cluster.at(pod).filter(|pod| pod.is_local()) {
        let Selecting { mut admin, isolating, mut baseline, .. } = side.selecting(pod);
        admin.retain(|policy| side.may_deny(policy));
        baseline.retain(|policy| side.may_deny(policy));
        all.extend(admin.into_iter().map(PolicyName::of_cluster));
        all.extend(isolating.into_iter().map(PolicyName::of));
        all.extend(baseline.into_iter().map(PolicyName::of_cluster));
    }
    all
}

/// The names of the policies that deny a packet in this direction, for one that is denied: it looks at no entry of a NetworkPolicy.
/// Empty if it is not known.
pub fn deniers<'a>(cluster: &'a Cluster, packet: &Packet, direction: Direction) -> Vec<PolicyName<'a>> {
    let side = Side { cluster, packet, direction };
    let pods: Vec<_> = cluster.at(side.own()).filter(|pod| pod.is_local()).collect();
    let selecting: Vec<_> = pods.iter().map(|pod| side.selecting(pod)).collect();
    let (Some(pod), Some(of_pod)) = (pods.first(), selecting.first()) else { return Vec::new() };
    if !side.is_sure(&pods, &selecting) {
        return Vec::new();
    }
    let Selecting { admin, isolating, baseline, .. } = of_pod;
    for policies in [admin, baseline] {
        match side.rulings(policies, pod).next() {
            Some((Entry { policy, .. }, Ruling::Deny)) => return vec![PolicyName::of_cluster(policy)],
            Some((_, Ruling::Accept)) => return Vec::new(),
            Some((_, Ruling::Pass)) | None => {}
        }
    }
    // With one of these the tier Baseline is empty.
    isolating.iter().map(|policy| PolicyName::of(policy)).collect()
}

/// The name of a policy; without a namespace that of a ClusterNetworkPolicy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyName<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

impl<'a> PolicyName<'a> {
    fn of(policy: &'a NetworkPolicy) -> PolicyName<'a> {
        PolicyName { namespace: &policy.namespace, name: &policy.name }
    }

    fn of_cluster(policy: &'a ClusterNetworkPolicy) -> PolicyName<'a> {
        PolicyName { namespace: "", name: &policy.name }
    }
}

impl fmt::Display for PolicyName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            "" => write!(f, "ClusterNetworkPolicy {}", self.name),
            namespace => write!(f, "NetworkPolicy {namespace}/{}", self.name),
        }
    }
}

/// The policies that decide for a pod.
#[derive(PartialEq)]
struct Selecting<'a> {
    admin: Vec<&'a ClusterNetworkPolicy>,
    isolating: Vec<&'a NetworkPolicy>,
    baseline: Vec<&'a ClusterNetworkPolicy>,
    may_deny: bool,
}

struct Side<'a, 'p> {
    cluster: &'a Cluster,
    packet: &'p Packet,
    direction: Direction,
}

impl<'a> Side<'a, '_> {
    fn decide(&self) -> Decision<'a> {
        let own = self.own();
        let pods: Vec<_> = self.cluster.at(own).filter(|pod| pod.is_local()).collect();
        let selecting: Vec<_> = pods.iter().map(|pod| self.selecting(pod)).collect();
        let (Some(pod), Some(of_pod)) = (pods.first(), selecting.first()) else {
            return Decision::NotIsolated;
        };
        if !self.is_sure(&pods, &selecting) {
            let is_isolated = selecting.iter().any(|of| of.may_deny);
            let policies = selecting.into_iter().flat_map(|of| of.isolating).collect();
            return if is_isolated { Decision::Denied(policies) } else { Decision::NotIsolated };
        }
        match self.rulings(&of_pod.admin, pod).next() {
            Some((Entry { policy, .. }, Ruling::Accept)) => return Decision::Accepted(policy),
            Some((Entry { policy, .. }, Ruling::Deny)) => return Decision::Refused(policy),
            Some((_, Ruling::Pass)) | None => {}
        }
        if !of_pod.isolating.is_empty() {
            let allowing = of_pod.isolating.iter().find(|policy| self.allows(policy, pod));
            return allowing.map_or_else(
                || Decision::Denied(of_pod.isolating.clone()),
                |policy| Decision::Allowed(policy),
            );
        }
        match self.rulings(&of_pod.baseline, pod).next() {
            Some((Entry { policy, .. }, Ruling::Accept)) => Decision::Accepted(policy),
            Some((Entry { policy, .. }, Ruling::Deny)) => Decision::Refused(policy),
            Some((_, Ruling::Pass)) | None => Decision::NotIsolated,
        }
    }

    /// Whether it is known which policies decide: one pod has the address, or all that claim it are alike.
    fn is_sure(&self, pods: &[&KnownPod], selecting: &[Selecting<'_>]) -> bool {
        let is_same = |of: &Selecting<'_>| selecting.first().is_some_and(|first| first == of);
        let has_same_ports = |pod: &&KnownPod| pods.first().is_some_and(|first| first.ports == pod.ports);
        pods.iter().all(|pod| has_same_ports(pod) && !pod.is_closed) && selecting.iter().all(is_same)
    }

    fn own(&self) -> IpAddr {
        if self.direction == Direction::Ingress { self.packet.destination } else { self.packet.source }
    }

    fn other(&self) -> IpAddr {
        if self.direction == Direction::Ingress { self.packet.source } else { self.packet.destination }
    }

    /// All policies that decide for the pod in this direction. Those of the tier Baseline only if no NetworkPolicy does.
    fn selecting(&self, pod: &KnownPod) -> Selecting<'a> {
        let isolating = self.isolating(pod);
        let admin = self.of_tier("Admin", pod);
        let baseline = if isolating.is_empty() { self.of_tier("Baseline", pod) } else { Vec::new() };
        let mut tiers = admin.iter().chain(&baseline);
        let is_closed_by = |policy: &ClusterNetworkPolicy| {
            Direction::ALL.iter().any(|direction| Side { direction: *direction, ..*self }.may_deny(policy))
        };
        let may_deny = !isolating.is_empty()
            || tiers.any(|policy| self.may_deny(policy))
            || pod.is_closed && self.cluster.cluster_policies().any(|policy| is_closed_by(policy));
        Selecting { admin, isolating, baseline, may_deny }
    }

    /// The policies that isolate the pod in this direction.
    fn isolating(&self, pod: &KnownPod) -> Vec<&'a NetworkPolicy> {
        let all = self.cluster.policies_in(&pod.namespace).map(Arc::as_ref);
        all.filter(|policy| {
            self.is_of_direction(policy) && (pod.is_closed || selects(&policy.pods, pod).unwrap_or(true))
        })
        .collect()
    }

    fn is_of_direction(&self, policy: &NetworkPolicy) -> bool {
        let has = |word| policy.types.iter().any(|one| one == word);
        let has_unknown = policy.types.iter().any(|word| word != "Ingress" && word != "Egress");
        match self.direction {
            _ if has_unknown || policy.unread.is_some() => true,
            Direction::Ingress => policy.types.is_empty() || has("Ingress"),
            Direction::Egress => has("Egress") || policy.types.is_empty() && !policy.egress.is_empty(),
        }
    }

    fn allows(&self, policy: &NetworkPolicy, pod: &KnownPod) -> bool {
        if selects(&policy.pods, pod).is_none() || policy.unread.is_some() {
            return false;
        }
        let mut pairs = 0;
        policy.rules(self.direction).iter().any(|rule| {
            pairs += rule.peers.len().max(1) * rule.ports.len().max(1);
            pairs <= 10_000 && self.rule_allows(rule, policy, pod)
        })
    }

    fn rule_allows(&self, rule: &Rule, policy: &NetworkPolicy, pod: &KnownPod) -> bool {
        let other = self.other();
        let peers: Vec<Option<&Peer>> =
            if rule.peers.is_empty() { vec![None] } else { rule.peers.iter().map(Some).collect() };
        peers.into_iter().any(|peer| {
            let is_peer = |candidate: Option<&KnownPod>| {
                peer.is_none_or(|peer| self.is_peer(peer, policy, other, candidate))
            };
            let matches_port = |port: &Port, candidate: Option<&KnownPod>| {
                // A named port is that of the pod that gets the packet.
                self.matches_port(
                    port,
                    if self.direction == Direction::Ingress { Some(pod) } else { candidate },
                )
            };
            let with = |candidate: Option<&KnownPod>| {
                is_peer(candidate)
                    && (rule.ports.is_empty() || rule.ports.iter().any(|port| matches_port(port, candidate)))
            };
            with(None) || self.cluster.at(other).any(|candidate| with(Some(candidate)))
        })
    }

    /// Whether the address, and the pod that has it, are what the peer says.
    fn is_peer(&self, peer: &Peer, policy: &NetworkPolicy, address: IpAddr, pod: Option<&KnownPod>) -> bool {
        match (peer, pod) {
            (Peer { unread: Some(_), .. }, _) => false,
            (_, Some(pod)) if pod.is_closed && peer.block.is_none() => false,
            (Peer { block: Some(block), pods: None, namespaces: None, .. }, _) => {
                in_block(block, address).unwrap_or(false)
            }
            (Peer { block: None, pods: None, namespaces: None, .. } | Peer { block: Some(_), .. }, _)
            | (_, None) => false,
            (Peer { pods, namespaces, .. }, Some(pod)) => {
                let in_namespace = match namespaces {
                    None => *policy.namespace == *pod.namespace,
                    Some(LabelSelector { labels, expressions })
                        if labels.is_empty() && expressions.is_empty() =>
                    {
                        true
                    }
                    Some(selector) => self
                        .cluster
                        .namespace_labels(&pod.namespace)
                        .is_some_and(|labels| holds(selector, |key| label(labels, key)).unwrap_or(false)),
                };
                in_namespace && pods.as_ref().is_none_or(|selector| selects(selector, pod).unwrap_or(false))
            }
        }
    }

    fn matches_port(&self, port: &Port, receiver: Option<&KnownPod>) -> bool {
        let protocol = match port.protocol.as_deref() {
            None | Some("TCP") => Protocol::Tcp,
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            Some(_) => return false,
        };
        let wanted = self.packet.destination_port;
        let is_port = |number: i32| (1..=65535).contains(&number);
        port.unread.is_none()
            && self.packet.protocol == protocol.number()
            && match (&port.port, port.end_port) {
                (None, end) => end.is_none(),
                (Some(PortValue::Number(first)), None) => is_port(*first) && *first == i32::from(wanted),
                (Some(PortValue::Number(first)), Some(last)) => {
                    is_port(*first) && is_port(last) && (*first..=last).contains(&i32::from(wanted))
                }
                (Some(PortValue::Name(_)), Some(_)) => false,
                (Some(PortValue::Name(name)), None) => receiver.is_some_and(|pod| {
                    pod.ports
                        .iter()
                        .any(|own| own.name == *name && own.protocol == protocol && own.port == wanted)
                }),
            }
    }
}

/// `None` if the selector is not understood.
fn selects(selector: &LabelSelector, pod: &KnownPod) -> Option<bool> {
    holds(selector, |key| label(&pod.labels, key))
}

fn holds<'l>(selector: &LabelSelector, value: impl Fn(&str) -> Option<&'l str>) -> Option<bool> {
    let mut all = selector.labels.iter().all(|(key, wanted)| value(key) == Some(wanted));
    for expression in &selector.expressions {
        all &= meets(expression, value(&expression.key))?;
    }
    Some(all)
}

fn meets(Expression { operator, values, .. }: &Expression, value: Option<&str>) -> Option<bool> {
    let is_among = value.is_some_and(|value| values.iter().any(|one| one == value));
    match (operator.as_str(), values.is_empty()) {
        ("In", false) => Some(is_among),
        ("NotIn", false) => Some(!is_among),
        ("Exists", true) => Some(value.is_some()),
        ("DoesNotExist", true) => Some(value.is_none()),
        _ => None,
    }
}

/// `None` if the block is not understood.
fn in_block(block: &IpBlock, address: IpAddr) -> Option<bool> {
    let mut is_in = in_cidr(&block.cidr, address)?;
    for except in &block.except {
        if network(&block.cidr)?.0.is_ipv4() != network(except)?.0.is_ipv4() {
            return None;
        }
        is_in &= !in_cidr(except, address)?;
    }
    Some(is_in)
}

/// The address and the length. `::ffff:10.0.0.0/104` is 10.0.0.0/8, as for the API server.
fn network(cidr: &str) -> Option<(IpAddr, usize)> {
    let (network, length) = cidr.split_once('/')?;
    let length: usize = length.chars().all(|digit| digit.is_ascii_digit()).then(|| length.parse().ok())??;
    let network: IpAddr = network.parse().ok()?;
    Some(match network.to_canonical() {
        canonical if canonical != network && length >= 96 => (canonical, length - 96),
        _ => (network, length),
    })
}

fn in_cidr(cidr: &str, address: IpAddr) -> Option<bool> {
    let (network, length) = network(cidr)?;
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            begin_alike(&network.octets(), &address.octets(), length)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            begin_alike(&network.octets(), &address.octets(), length)
        }
        (IpAddr::V4(_), _) => (length <= 32).then_some(false),
        (IpAddr::V6(_), _) => (length <= 128).then_some(false),
    }
}

/// Whether the first `length` bits are the same. `None` if there are fewer.
fn begin_alike(one: &[u8], other: &[u8], length: usize) -> Option<bool> {
    let bit = |bytes: &[u8], at: usize| bytes.get(at / 8).map(|byte| byte >> (7 - at % 8) & 1);
    (length <= 8 * one.len()).then(|| (0..length).all(|at| bit(one, at) == bit(other, at)))
}
