//! Why a packet passes or not: which policy decides at each end, and which of its entries.

use std::net::IpAddr;

use crate::cluster::{Cluster, KnownPod};
use crate::model::{ClusterNetworkPolicy, Direction, NetworkPolicy, Port, Rule};

use super::tier::{Entry, Ruling};
use super::{Packet, Selecting, Side};

/// The most entries of NetworkPolicies that are looked at to say what does not match in them: a namespace may have millions.
pub const EXPLAINED: usize = 50;

/// Both ends of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation<'a> {
    pub egress: Why<'a>,
    pub ingress: Why<'a>,
}

/// One end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why<'a> {
    /// The pods that have the address, by namespace and name: one, but for moments.
    pub pods: Vec<(&'a str, &'a str)>,
    /// The rules of ClusterNetworkPolicies that match and pass the packet on to the next tier.
    pub passed: Vec<Entry<'a>>,
    pub reason: Reason<'a>,
    /// Rules that no packet reaches because of the reason, and that would decide otherwise, in their order.
    pub unreached: Vec<Reason<'a>>,
    /// The pod's mode is dry: what the reason denies passes, and is counted.
    pub is_dry: bool,
}

/// What decides at one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason<'a> {
    /// Source and destination are the same address: never judged.
    Itself,
    /// No pod of this node that policies are for has the address. If a pod of another node has it, that node decides.
    NotHere,
    /// No policy decides: it passes.
    NoPolicy,
    /// By an entry of a NetworkPolicy.
    Allowed(Place<'a>),
    /// NetworkPolicies isolate the pod, and no entry of them matches.
    NothingAllows(Vec<Missed<'a>>),
    /// By a rule of a ClusterNetworkPolicy.
    Accepted(Entry<'a>),
    /// By a rule of a ClusterNetworkPolicy, perhaps because it is not understood.
    Refused(Entry<'a>),
    /// Two pods say that they have the address, their policies or ports differ, and one of them is isolated: nothing passes.
    TwoPods,
    /// The object of the pod cannot be read, and policies may deny something to it: nothing passes.
    Closed,
}

/// An entry of a NetworkPolicy: its number in `ingress` or `egress`, and which of its peers and ports match. `None` if it names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub policy: &'a NetworkPolicy,
    pub entry: usize,
    pub peer: Option<usize>,
    pub port: Option<usize>,
}

/// A NetworkPolicy that isolates, and what does not match in each of its entries of this direction; of all policies in the first [`EXPLAINED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed<'a> {
    pub policy: &'a NetworkPolicy,
    pub entries: Vec<Miss>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// A port matches, no peer does.
    Peer,
    /// A peer matches, no port does.
    Port,
    Both,
    /// Both match, but not together: the port is that of another peer.
    Pair,
    /// The policy is not understood as a whole, or has too many entries: this one allows nothing.
    Void,
}

impl Explanation<'_> {
    pub fn is_allowed(&self) -> bool {
        self.egress.is_allowed() && self.ingress.is_allowed()
    }
}

impl Reason<'_> {
    pub fn denies(&self) -> bool {
        matches!(self, Reason::NothingAllows(_) | Reason::Refused(_) | Reason::TwoPods | Reason::Closed)
    }
}

impl Why<'_> {
    pub fn is_allowed(&self) -> bool {
        self.is_dry || !self.reason.denies()
    }
}

/// Why a packet from one address to another passes, or not. As for [`super::judge`], the destination is that after its translation, and packets
/// that the node itself makes are not judged.
pub fn why<'a>(cluster: &'a Cluster, from: IpAddr, to: IpAddr, port: u16, protocol: u8) -> Explanation<'a> {
    let packet = Packet { source: from, destination: to, protocol, destination_port: port };
    let side = |direction| Side { cluster, packet: &packet, direction }.why();
    Explanation { egress: side(Direction::Egress), ingress: side(Direction::Ingress) }
}

impl<'a> Side<'a, '_> {
    fn why(&self) -> Why<'a> {
        let mut passed = Vec::new();
        let (reason, mut unreached) = self.reason(&mut passed);
        unreached.retain(|other| other.denies() != reason.denies());
        let is_dry = reason.denies() && self.cluster.is_dry(self.own());
        Why { pods: self.cluster.names_at(self.own()).collect(), passed, reason, unreached, is_dry }
    }

    /// The reason, and the rules behind it that no packet reaches.
    fn reason(&self, passed: &mut Vec<Entry<'a>>) -> (Reason<'a>, Vec<Reason<'a>>) {
        let alone = |reason| (reason, Vec::new());
        if self.packet.source == self.packet.destination {
            return alone(Reason::Itself);
        }
        let pods: Vec<_> = self.cluster.at(self.own()).filter(|pod| pod.is_local()).collect();
        let selecting: Vec<_> = pods.iter().map(|pod| self.selecting(pod)).collect();
        let (Some(pod), Some(of_pod)) = (pods.first(), selecting.first()) else {
            return alone(Reason::NotHere);
        };
        if !self.is_sure(&pods, &selecting) {
            let is_closed = pods.iter().any(|pod| pod.is_closed);
            return alone(match selecting.iter().any(|of| of.may_deny) {
                false => Reason::NoPolicy,
                true if is_closed => Reason::Closed,
                true => Reason::TwoPods,
            });
        }
        let Selecting { admin, isolating, .. } = of_pod;
        let (by_admin, mut behind) = self.of_rulings(admin, pod, passed);
        let by_policies = (!isolating.is_empty()).then(|| self.of_policies(isolating, pod));
        let baseline = match (&by_admin, &by_policies) {
            // Without the tier Admin these policies would decide.
            (Some(_), Some(_)) => Vec::new(),
            _ => self.of_tier("Baseline", pod),
        };
        let is_decided = by_admin.is_some() || by_policies.is_some();
        let passed = if is_decided { &mut Vec::new() } else { passed };
        let (by_baseline, rest) = self.of_rulings(&baseline, pod, passed);
        let mut all = by_admin.into_iter().chain(by_policies).chain(by_baseline);
        let reason = all.next().unwrap_or(Reason::NoPolicy);
        behind.extend(all.chain(rest));
        (reason, behind)
    }

    /// The first rule of a tier that matches, unless it passes the packet on, and the others, up to one that passes it on.
    fn of_rulings(
        &self,
        policies: &[&'a ClusterNetworkPolicy],
        pod: &KnownPod,
        passed: &mut Vec<Entry<'a>>,
    ) -> (Option<Reason<'a>>, Vec<Reason<'a>>) {
        let mut rulings = self.rulings(policies, pod).map(|(entry, ruling)| match ruling {
            Ruling::Accept => Ok(Reason::Accepted(entry)),
            Ruling::Deny => Ok(Reason::Refused(entry)),
            Ruling::Pass => Err(entry),
        });
        let first = match rulings.next() {
            Some(Err(entry)) => {
                passed.push(entry);
                None
            }
            first => first.and_then(Result::ok),
        };
        (first, rulings.map_while(Result::ok).collect())
    }

    fn of_policies(&self, isolating: &[&'a NetworkPolicy], pod: &KnownPod) -> Reason<'a> {
        if let Some(place) = isolating.iter().find_map(|policy| self.place(policy, pod)) {
            return Reason::Allowed(place);
        }
        let mut left = EXPLAINED;
        let missed = isolating.iter().map(|policy| {
            let missed = self.missed(policy, pod, left);
            left -= missed.entries.len();
            missed
        });
        Reason::NothingAllows(missed.collect())
    }

    /// The first entry that allows the packet, with its first peer and port that do.
    fn place(&self, policy: &'a NetworkPolicy, pod: &KnownPod) -> Option<Place<'a>> {
        if !self.allows(policy, pod) {
            return None;
        }
        let entries = policy.rules(self.direction).iter().enumerate();
        entries.into_iter().find_map(|(entry, rule)| {
            one_by_one(&rule.peers).find_map(|(peer, peers)| {
                one_by_one(&rule.ports).find_map(|(port, ports)| {
                    let pair = Rule { peers: peers.to_vec(), ports: ports.to_vec() };
                    self.rule_allows(&pair, policy, pod).then_some(Place { policy, entry, peer, port })
                })
            })
        })
    }

    fn missed(&self, policy: &'a NetworkPolicy, pod: &KnownPod, most: usize) -> Missed<'a> {
        let is_unread = super::selects(&policy.pods, pod).is_none() || policy.unread.is_some();
        let mut pairs = 0;
        let of = |rule: &Rule| {
            pairs += rule.peers.len().max(1) * rule.ports.len().max(1);
            // Alone it would allow, if it is this entry that matches.
            let is_void = is_unread || pairs > 10_000;
            let is_peer = self.rule_allows(&Rule { ports: Vec::new(), ..rule.clone() }, policy, pod);
            let is_port = self.is_some_port(&rule.ports, pod);
            match (is_peer, is_port) {
                _ if is_void => Miss::Void,
                (true, true) => Miss::Pair,
                (true, false) => Miss::Port,
                (false, true) => Miss::Peer,
                (false, false) => Miss::Both,
            }
        };
        Missed { policy, entries: policy.rules(self.direction).iter().take(most).map(of).collect() }
    }

    /// Whether one of the ports matches, of any peer.
    fn is_some_port(&self, ports: &[Port], pod: &KnownPod) -> bool {
        let receivers: Vec<_> = match self.direction {
            Direction::Ingress => vec![pod],
            Direction::Egress => self.cluster.at(self.other()).collect(),
        };
        let matches = |port: &Port| {
            self.matches_port(port, None)
                || receivers.iter().any(|receiver| self.matches_port(port, Some(receiver)))
        };
        ports.is_empty() || ports.iter().any(matches)
    }
}

/// Each element alone with its number; the empty list once.
fn one_by_one<T>(all: &[T]) -> impl Iterator<Item = (Option<usize>, &[T])> {
    let none = all.is_empty().then_some((None, all));
    none.into_iter().chain(all.chunks(1).enumerate().map(|(number, one)| (Some(number), one)))
}
