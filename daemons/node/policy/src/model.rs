//! What the API server says of policies, namespaces and pods, as plain values.
//!
//! Texts that may be wrong (CIDRs, protocols, operators, types) stay texts here: [`crate::Compiler`] judges them, so that a bad one
//! isolates and is reported.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use ferrule_kernel::ip::IpFamily;
pub use ferrule_policy_kit::{Direction, Directions};

/// The protocols that a port of a policy may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The protocol of a name in the API.
    pub fn named(name: &str) -> Option<Protocol> {
        match name {
            "TCP" => Some(Protocol::Tcp),
            "UDP" => Some(Protocol::Udp),
            "SCTP" => Some(Protocol::Sctp),
            _ => None,
        }
    }

    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }

    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

/// A NetworkPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkPolicy {
    pub namespace: String,
    pub name: String,
    /// `podSelector`: the pods of the namespace that it is for.
    pub pods: LabelSelector,
    /// `policyTypes`; empty if the object has none.
    pub types: Vec<String>,
    pub ingress: Vec<Rule>,
    pub egress: Vec<Rule>,
    /// What in the object as a whole could not be read: it isolates `pods` in both directions, and allows nothing.
    pub unread: Option<String>,
}

impl NetworkPolicy {
    /// The entries of a direction.
    pub fn rules(&self, direction: Direction) -> &[Rule] {
        if direction == Direction::Ingress { &self.ingress } else { &self.egress }
    }

    /// A policy that could not be read, except its name. `why`: the error.
    pub fn unread(namespace: &str, name: &str, why: String) -> NetworkPolicy {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        NetworkPolicy { namespace, name, unread: Some(why), ..NetworkPolicy::default() }
    }
}

/// One entry of `ingress` or `egress`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// `from` or `to`; empty: everybody.
    pub peers: Vec<Peer>,
    /// Empty: all traffic.
    pub ports: Vec<Port>,
}

/// A LabelSelector. Without requirements it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// `matchLabels`.
    pub labels: BTreeMap<String, String>,
    /// `matchExpressions`.
    pub expressions: Vec<Expression>,
}

/// One entry of `matchExpressions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    pub values: Vec<String>,
}

/// One entry of `from` or `to`: pods, namespaces, both, or a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub pods: Option<LabelSelector>,
    pub namespaces: Option<LabelSelector>,
    pub block: Option<IpBlock>,
    /// What in it could not be read: it allows nothing.
    pub unread: Option<String>,
}

/// An `ipBlock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpBlock {
    pub cidr: String,
    pub except: Vec<String>,
}

/// One entry of `ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// `None` is TCP.
    pub protocol: Option<String>,
    /// `None`: all ports of the protocol.
    pub port: Option<PortValue>,
    pub end_port: Option<i32>,
    /// What in it could not be read: it allows nothing.
    pub unread: Option<String>,
}

/// A number, or the name of a port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortValue {
    Number(i32),
    Name(String),
}

/// A Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// The annotation [`MODE_ANNOTATION`].
    pub mode: Option<String>,
}

/// On a Namespace: `dry` for its pods to be denied nothing; what would be denied is counted. Without it, and with `enforce`, policies hold.
pub const MODE_ANNOTATION: &str = "ferrule.dev/policy";

/// A Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The annotation `kubernetes.io/config.mirror`: the UID under which the kubelet runs a static pod, whose mirror this object is.
    pub mirror_of: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub addresses: Addresses,
    /// The ports with a name of all its containers.
    pub ports: Vec<NamedPort>,
    /// Its phase is Succeeded or Failed: its address may be another pod's already.
    pub ended: bool,
    /// It runs on this node.
    pub local: bool,
    pub host_network: bool,
    /// Why labels and ports could not be read: each policy may be for it, no rule allows it anything, and rules that deny take it for a pod
    /// without labels.
    pub unread: Option<String>,
}

/// At most one address of each family, as Kubernetes gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    pub v4: Option<Ipv4Addr>,
    pub v6: Option<Ipv6Addr>,
}

impl Addresses {
    pub fn all(self) -> impl Iterator<Item = IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

/// A port of a container that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub port: u16,
}

/// A ClusterNetworkPolicy (`policy.networking.k8s.io/v1alpha2`). A part with an error stays a text: [`crate::Compiler`] reports it,
/// and its rule denies everything, or accepts nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterNetworkPolicy {
    pub name: String,
    /// `Admin` or `Baseline`.
    pub tier: String,
    /// The lowest one is asked first.
    pub priority: i32,
    pub subject: ClusterSubject,
    pub ingress: Vec<ClusterRule>,
    pub egress: Vec<ClusterRule>,
}

impl ClusterNetworkPolicy {
    /// The rules of a direction.
    pub fn rules(&self, direction: Direction) -> &[ClusterRule] {
        if direction == Direction::Ingress { &self.ingress } else { &self.egress }
    }

    /// A policy that could not be read, except its name: it denies everything to all pods. `why`: the error.
    pub fn unread(name: &str, why: &str) -> ClusterNetworkPolicy {
        let (name, tier, subject) =
            (name.to_owned(), "Admin".to_owned(), ClusterSubject::Unknown(why.to_owned()));
        ClusterNetworkPolicy { name, tier, subject, ..ClusterNetworkPolicy::default() }.refuse(why)
    }

    /// With rules that cannot be read: it denies everything to its subject, in both directions.
    pub fn refuse(self, why: &str) -> ClusterNetworkPolicy {
        let rule = ClusterRule {
            action: "Deny".to_owned(),
            peers: vec![ClusterPeer::Unknown(why.to_owned())],
            ..ClusterRule::default()
        };
        ClusterNetworkPolicy { ingress: vec![rule.clone()], egress: vec![rule], ..self }
    }
}

/// The pods that a ClusterNetworkPolicy is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterSubject {
    Pods(NamespacedPods),
    /// Why it is not understood.
    Unknown(String),
}

impl Default for ClusterSubject {
    fn default() -> Self {
        ClusterSubject::Pods(NamespacedPods::default())
    }
}

/// Pods of namespaces: both selectors must match. `namespaces` of the API alone has no `pods`, so that all of them match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespacedPods {
    pub namespaces: LabelSelector,
    pub pods: LabelSelector,
}

/// One entry of `ingress` or `egress` of a ClusterNetworkPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterRule {
    /// Empty if it has none.
    pub name: String,
    /// `Accept`, `Deny` or `Pass`.
    pub action: String,
    /// `from` or `to`: at least one.
    pub peers: Vec<ClusterPeer>,
    /// Empty: all traffic.
    pub protocols: Vec<ClusterProtocol>,
}

/// One entry of `from` or `to` of a ClusterNetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterPeer {
    Pods(NamespacedPods),
    /// CIDRs; only in `to`.
    Networks(Vec<String>),
    /// Why it is not understood: `nodes` and `domainNames` of the experimental channel, for example.
    Unknown(String),
}

/// One entry of `protocols`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterProtocol {
    /// `destinationPort`: from the first to the last one.
    Ports { protocol: Protocol, first: i32, last: i32 },
    /// `destinationNamedPort`, of each protocol.
    Named(String),
    /// Why it is not understood.
    Unknown(String),
}
