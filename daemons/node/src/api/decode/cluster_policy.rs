//! ClusterNetworkPolicies, `v1alpha2`. A part that cannot be read stays in its rule, as a text: the compiler lets the rule fail closed.

use ferrule_node_policy::model::{
    ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject, Direction,
    NamespacedPods, Protocol,
};
use serde::Deserialize;
use serde_json::Value;

use super::selector::{Selector, Unknown, selector};
use super::{Metadata, Read, bounded};
use crate::policy::objects::{Kind, Told};

/// The longest name of a rule in the CRD.
const MAX_NAME: usize = 100;
/// The most characters of an error: it has text of the object.
const MAX_ERROR: usize = 200;

#[derive(Debug, Deserialize)]
pub(in super::super) struct ClusterPolicy {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    tier: String,
    priority: Option<i32>,
    #[serde(default)]
    subject: Subject,
    /// Each rule is read by itself, so that an error in one is its own.
    ingress: Option<Vec<Value>>,
    egress: Option<Vec<Value>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Default, Deserialize)]
struct Subject {
    namespaces: Option<Selector>,
    pods: Option<Pods>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Pods {
    #[serde(rename = "namespaceSelector")]
    namespaces: Option<Selector>,
    #[serde(rename = "podSelector")]
    pods: Option<Selector>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Rule {
    name: Option<String>,
    action: String,
    from: Option<Vec<Peer>>,
    to: Option<Vec<Peer>>,
    protocols: Option<Vec<Ports>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Peer {
    namespaces: Option<Selector>,
    pods: Option<Pods>,
    networks: Option<Vec<String>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// One entry of `protocols`.
#[derive(Debug, Deserialize)]
struct Ports {
    tcp: Option<Transport>,
    udp: Option<Transport>,
    sctp: Option<Transport>,
    #[serde(rename = "destinationNamedPort")]
    named: Option<String>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Transport {
    #[serde(rename = "destinationPort")]
    port: Option<Port>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Port {
    number: Option<i32>,
    range: Option<Range>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Range {
    start: i32,
    end: i32,
    #[serde(flatten)]
    unknown: Unknown,
}

impl Read for ClusterPolicy {
    const KIND: Kind = Kind::ClusterPolicies;
    const PATH: &'static str = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies";
    const COST: u32 = 1;
    const CRD: Option<&'static str> = Some("clusternetworkpolicies.policy.networking.k8s.io");

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn told(self, _: &str) -> Result<Told, String> {
        let Spec { tier, priority, subject, ingress, egress, unknown } = self.spec;
        let mut parts = 0;
        let Subject { namespaces, pods, unknown: of_subject } = subject;
        let subject = match of_subject.why() {
            Some(why) => Err(why),
            None => selected(namespaces, pods, &mut parts),
        };
        let mut rules = |direction, all: Option<Vec<Value>>| -> Vec<ClusterRule> {
            all.into_iter().flatten().map(|one| rule(one, direction, &mut parts)).collect()
        };
        let policy = ClusterNetworkPolicy {
            name: self.metadata.name,
            tier,
            priority: priority.unwrap_or_default(),
            subject: subject.map_or_else(ClusterSubject::Unknown, ClusterSubject::Pods),
            ingress: rules(Direction::Ingress, ingress),
            egress: rules(Direction::Egress, egress),
        };
        bounded(parts)?;
        let no_priority = || priority.is_none().then(|| "it has no priority".to_owned());
        Ok(Told::ClusterPolicy(match unknown.why().or_else(no_priority) {
            Some(why) => policy.refuse(&why),
            None => policy,
        }))
    }
}

/// Why a part that must have one field is not understood: a new version of the CRD may have another one.
fn not_one(count: usize) -> String {
    format!("it has {count} fields that are known, not one")
}

/// The pods that a subject or a peer names: either of both fields must be there.
fn selected(
    namespaces: Option<Selector>,
    pods: Option<Pods>,
    parts: &mut usize,
) -> Result<NamespacedPods, String> {
    let (namespaces, pods, mut unread) = match (namespaces, pods) {
        (Some(namespaces), None) => (Some(namespaces), None, None),
        (None, Some(Pods { pods: None, .. })) => return Err("it has no podSelector".to_owned()),
        (None, Some(Pods { namespaces, pods, unknown })) => (namespaces, pods, unknown.why()),
        (namespaces, _) => return Err(not_one(if namespaces.is_some() { 2 } else { 0 })),
    };
    let mut read = |from: Option<Selector>| selector(from.unwrap_or_default(), &mut unread, parts);
    let found = NamespacedPods { namespaces: read(namespaces), pods: read(pods) };
    unread.map_or(Ok(found), Err)
}

fn rule(from: Value, direction: Direction, parts: &mut usize) -> ClusterRule {
    *parts += 1;
    let action = from["action"].as_str().unwrap_or_default().to_owned();
    let refused = |why| ClusterRule { peers: vec![ClusterPeer::Unknown(why)], ..ClusterRule::default() };
    let Rule { name, action, from, to, protocols, unknown } = match Rule::deserialize(from) {
        Ok(rule) => rule,
        Err(error) => {
            return ClusterRule { action, ..refused(error.to_string().chars().take(MAX_ERROR).collect()) };
        }
    };
    let name = name.unwrap_or_default().chars().take(MAX_NAME).collect();
    let (peers, other, word) = match direction {
        Direction::Ingress => (from, to, "to"),
        Direction::Egress => (to, from, "from"),
    };
    let why =
        unknown.why().or_else(|| other.map(|_| format!("the field {word:?} is of the other direction")));
    if let Some(why) = why {
        return ClusterRule { name, action, ..refused(why) };
    }
    let peers = peers.into_iter().flatten().map(|one| peer(one, parts)).collect();
    let protocols = match protocols {
        // Not the same as none at all.
        Some(all) if all.is_empty() => vec![ClusterProtocol::Unknown("the list is empty".to_owned())],
        all => all.into_iter().flatten().map(|one| ports(one, parts)).collect(),
    };
    ClusterRule { name, action, peers, protocols }
}

fn peer(from: Peer, parts: &mut usize) -> ClusterPeer {
    *parts += 1;
    let Peer { namespaces, pods, networks, unknown } = from;
    let read = match (unknown.why(), networks) {
        (Some(why), _) => Err(why),
        (None, None) => selected(namespaces, pods, parts).map(ClusterPeer::Pods),
        (None, Some(networks)) if namespaces.is_none() && pods.is_none() => {
            *parts += networks.len();
            Ok(ClusterPeer::Networks(networks))
        }
        (None, Some(_)) => Err(not_one(1 + usize::from(namespaces.is_some()) + usize::from(pods.is_some()))),
    };
    read.unwrap_or_else(ClusterPeer::Unknown)
}

fn ports(from: Ports, parts: &mut usize) -> ClusterProtocol {
    *parts += 1;
    let Ports { tcp, udp, sctp, named, unknown } = from;
    let all = [(Protocol::Tcp, tcp), (Protocol::Udp, udp), (Protocol::Sctp, sctp)];
    let mut all: Vec<_> =
        all.into_iter().filter_map(|(protocol, of)| Some(transport(protocol, of?))).collect();
    let name = |name: String| match name.is_empty() {
        true => Err("the name of the port is empty".to_owned()),
        false => Ok(ClusterProtocol::Named(name)),
    };
    all.extend(named.map(name));
    let read = match (unknown.why(), all.len()) {
        (Some(why), _) => Err(why),
        (None, 1) => all.remove(0),
        (None, count) => Err(not_one(count)),
    };
    read.unwrap_or_else(ClusterProtocol::Unknown)
}

fn transport(protocol: Protocol, Transport { port, unknown }: Transport) -> Result<ClusterProtocol, String> {
    let none = Port { number: None, range: None, unknown: Unknown::default() };
    let Port { number, range, unknown: of_port } = port.unwrap_or(none);
    let (first, last, of_range) = match (number, range) {
        (Some(number), None) => (number, number, Unknown::default()),
        (None, Some(Range { start, end, unknown })) => (start, end, unknown),
        (number, _) => return Err(not_one(if number.is_some() { 2 } else { 0 })),
    };
    let why = unknown.why().or_else(|| of_port.why()).or_else(|| of_range.why());
    why.map_or(Ok(ClusterProtocol::Ports { protocol, first, last }), Err)
}

#[cfg(test)]
mod tests;
