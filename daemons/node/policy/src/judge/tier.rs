//! ClusterNetworkPolicies, read as they stand.

use std::sync::Arc;

use crate::cluster::{KnownPod, label};
use crate::model::{
    ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject, Direction,
    LabelSelector, NamespacedPods,
};

use super::{Side, holds, in_cidr, selects};

/// What a rule does with a packet that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ruling {
    Accept,
    Deny,
    Pass,
}

/// A rule of a ClusterNetworkPolicy, by its number in `ingress` or `egress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub policy: &'a ClusterNetworkPolicy,
    pub rule: usize,
    /// Otherwise it denies everything.
    pub is_understood: bool,
}

impl<'a> Side<'a, '_> {
    /// The policies of a tier for this pod that have rules of this direction, in the order in which they are asked.
    pub(super) fn of_tier(&self, tier: &str, pod: &KnownPod) -> Vec<&'a ClusterNetworkPolicy> {
        let all = self.cluster.cluster_policies().map(Arc::as_ref);
        // A tier that is not known counts as the first one.
        let is_of_tier = |policy: &ClusterNetworkPolicy| (policy.tier == "Baseline") == (tier == "Baseline");
        let is_selected = |policy: &ClusterNetworkPolicy| match &policy.subject {
            ClusterSubject::Pods(pods) => self.selects_pod(pods, pod).unwrap_or(true),
            ClusterSubject::Unknown(_) => true,
        };
        let is_selected = |policy: &ClusterNetworkPolicy| pod.is_closed || is_selected(policy);
        let mut all: Vec<_> = all
            .filter(|policy| {
                is_of_tier(policy) && !policy.rules(self.direction).is_empty() && is_selected(policy)
            })
            .collect();
        all.sort_by(|one, other| (one.priority, &one.name).cmp(&(other.priority, &other.name)));
        all
    }

    /// The first rule that decides.
    pub(super) fn first_ruling(
        &self,
        policies: &[&'a ClusterNetworkPolicy],
        pod: &KnownPod,
    ) -> Option<(Entry<'a>, Ruling)> {
        policies.iter().find_map(|policy| {
            self.understood(policy).enumerate().find_map(|(number, (rule, is_understood))| {
                let ruling = match (rule.action.as_str(), is_understood) {
                    ("Accept", false) => return None,
                    (_, false) => Ruling::Deny,
                    _ if !self.matches(rule, pod) => return None,
                    ("Accept", _) => Ruling::Accept,
                    ("Deny", _) => Ruling::Deny,
                    _ => Ruling::Pass,
                };
                Some((Entry { policy, rule: number, is_understood }, ruling))
            })
        })
    }

    /// Whether the policy could deny a packet of this direction.
    pub(super) fn may_deny(&self, policy: &'a ClusterNetworkPolicy) -> bool {
        self.understood(policy)
            .any(|(rule, is_understood)| rule.action == "Deny" || rule.action != "Accept" && !is_understood)
    }

    /// The rules, and whether each is understood.
    fn understood(&self, policy: &'a ClusterNetworkPolicy) -> impl Iterator<Item = (&'a ClusterRule, bool)> {
        let is_understood = ["Admin", "Baseline"].contains(&policy.tier.as_str())
            && matches!(&policy.subject, ClusterSubject::Pods(pods) if is_sound(pods));
        let mut pairs = 0;
        policy.rules(self.direction).iter().map(move |rule| {
            pairs += rule.peers.len().max(1) * rule.protocols.len().max(1);
            (rule, is_understood && pairs <= 10_000 && self.is_understood(rule))
        })
    }

    fn is_understood(&self, rule: &ClusterRule) -> bool {
        let is_peer = |peer: &ClusterPeer| match peer {
            ClusterPeer::Pods(pods) => is_sound(pods),
            ClusterPeer::Networks(all) => {
                let is_cidr = |cidr: &String| in_cidr(cidr, self.other()).is_some();
                self.direction == Direction::Egress && !all.is_empty() && all.iter().all(is_cidr)
            }
            ClusterPeer::Unknown(_) => false,
        };
        let is_protocol = |protocol: &ClusterProtocol| match protocol {
            ClusterProtocol::Ports { first, last, .. } => 1 <= *first && first <= last && *last <= 65535,
            ClusterProtocol::Named(_) => true,
            ClusterProtocol::Unknown(_) => false,
        };
        ["Accept", "Deny", "Pass"].contains(&rule.action.as_str())
            && !rule.peers.is_empty()
            && rule.peers.iter().all(is_peer)
            && rule.protocols.iter().all(is_protocol)
    }

    pub(super) fn matches(&self, rule: &ClusterRule, pod: &KnownPod) -> bool {
        let other = self.other();
        let with = |candidate: Option<&KnownPod>| {
            let receiver = if self.direction == Direction::Ingress { Some(pod) } else { candidate };
            let is_peer = |peer: &ClusterPeer| match peer {
                ClusterPeer::Pods(pods) => candidate.is_some_and(|pod| {
                    let may_be = !pod.is_closed || rule.action == "Deny";
                    may_be && self.selects_pod(pods, pod).unwrap_or(false)
                }),
                ClusterPeer::Networks(all) => all.iter().any(|cidr| in_cidr(cidr, other) == Some(true)),
                ClusterPeer::Unknown(_) => false,
            };
            rule.peers.iter().any(is_peer)
                && (rule.protocols.is_empty()
                    || rule.protocols.iter().any(|protocol| self.is_of_protocol(protocol, receiver)))
        };
        with(None) || self.cluster.at(other).any(|candidate| with(Some(candidate)))
    }

    fn is_of_protocol(&self, protocol: &ClusterProtocol, receiver: Option<&KnownPod>) -> bool {
        let (number, port) = (self.packet.protocol, self.packet.destination_port);
        match protocol {
            ClusterProtocol::Ports { protocol, first, last } => {
                number == protocol.number() && (*first..=*last).contains(&i32::from(port))
            }
            ClusterProtocol::Named(name) => receiver.is_some_and(|pod| {
                let mut own = pod.ports.iter().filter(|own| own.name == *name);
                own.any(|own| own.protocol.number() == number && own.port == port)
            }),
            ClusterProtocol::Unknown(_) => false,
        }
    }

    /// `None` if a selector is not understood.
    fn selects_pod(&self, pods: &NamespacedPods, pod: &KnownPod) -> Option<bool> {
        let LabelSelector { labels, expressions } = &pods.namespaces;
        let is_every = labels.is_empty() && expressions.is_empty();
        let in_namespace = match self.cluster.namespace_labels(&pod.namespace) {
            _ if is_every => true,
            Some(labels) => holds(&pods.namespaces, |key| label(labels, key))?,
            None => {
                holds(&pods.namespaces, |_| None)?;
                false
            }
        };
        Some(selects(&pods.pods, pod)? && in_namespace)
    }
}

fn is_sound(pods: &NamespacedPods) -> bool {
    [&pods.namespaces, &pods.pods].iter().all(|selector| holds(selector, |_| None).is_some())
}
