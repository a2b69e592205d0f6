//! What in policies is understood and allowed, and is probably not meant.

use std::collections::{BTreeSet, HashSet};

use crate::cluster::KnownPod;
use crate::model::{Direction, IpFamily, Protocol};
use crate::ruleset::Ports;

use super::Compiler;
use super::parts::{AllowPorts, Parts};
use super::tier::Tier;

const DNS: u16 = 53;

/// Something in a policy that is probably not meant. The policy holds as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Doubt {
    pub namespace: String,
    pub policy: String,
    /// Has text of the object, in quotation marks with escapes.
    pub what: String,
}

impl Compiler {
    /// Probable mistakes: a named port that no pod has, and pods of this node that can ask no DNS server. `looks`: the most pairs of
    /// a policy and a pod that are looked at; the policies beyond are passed over.
    pub fn doubts(&self, mut looks: usize) -> BTreeSet<Doubt> {
        let mut all = BTreeSet::new();
        self.without_dns(&mut looks, &mut all);
        for (namespace, policies) in &self.parts {
            for (policy, parts) in policies {
                let mut add = |what| {
                    let (namespace, policy) = (namespace.to_string(), policy.to_string());
                    all.insert(Doubt { namespace, policy, what });
                };
                self.own_ports(namespace, parts, &mut looks, &mut add);
                self.ports_of_peers(parts, &mut looks, &mut add);
            }
        }
        all
    }

    /// Ports of the pods that the policy selects.
    fn own_ports(&self, namespace: &str, parts: &Parts, looks: &mut usize, add: &mut impl FnMut(String)) {
        let named = allows(parts, Direction::Ingress).filter_map(|ports| match ports {
            AllowPorts::Named(protocol, name) => Some((*protocol, &**name)),
            AllowPorts::Are(_) | AllowPorts::In(_) => None,
        });
        for (protocol, name) in named.collect::<BTreeSet<_>>() {
            let is_own = |pod: &KnownPod| pod.has_part && !pod.is_closed && parts.is_for(pod);
            let has = |pod: &KnownPod| {
                pod.ports.iter().any(|port| port.protocol == protocol && *port.name == *name)
            };
            if lack(self.cluster.pods_in(namespace), looks, is_own, has) {
                let protocol = protocol.word();
                add(format!("ingress: none of its pods has a {protocol} port with the name {name:?}"));
            }
        }
    }

    /// Ports of the pods that egress rules allow.
    fn ports_of_peers(&self, parts: &Parts, looks: &mut usize, add: &mut impl FnMut(String)) {
        let sets = allows(parts, Direction::Egress).filter_map(|ports| match ports {
            AllowPorts::In(set) => Some((set.name, set)),
            AllowPorts::Are(_) | AllowPorts::Named(..) => None,
        });
        let mut seen = HashSet::new();
        for (_, set) in sets.filter(|(name, _)| seen.insert(*name)) {
            let Some((protocol, name)) = set.named() else { continue };
            let is_peer = |pod: &KnownPod| set.is_peer(&self.cluster, pod);
            let has = |pod: &KnownPod| !set.elements_if_in(pod).is_empty();
            let do_lack = match set.anchor().0 {
                Some(namespace) => lack(self.cluster.pods_in(namespace), looks, is_peer, has),
                None => lack(self.cluster.pods(), looks, is_peer, has),
            };
            if do_lack {
                let protocol = protocol.word();
                add(format!("egress: none of the peers has a {protocol} port with the name {name:?}"));
            }
        }
    }

    /// Pods of this node whose policies let no packet to a DNS server.
    fn without_dns(&self, looks: &mut usize, all: &mut BTreeSet<Doubt>) {
        let is_judged = |parts: &&super::TierParts, pod| {
            parts.tier == Tier::Admin && parts.has.has(Direction::Egress) && parts.is_for(&self.cluster, pod)
        };
        let mut seen = HashSet::new();
        for pod in self.cluster.locals().filter(|pod| !pod.is_closed) {
            let Some(policies) = self.parts.get(&*pod.namespace) else { continue };
            *looks = looks.saturating_sub(policies.len());
            let own = policies
                .iter()
                .filter(|(_, parts)| parts.isolates.has(Direction::Egress) && parts.is_for(pod));
            let own: Vec<_> = own.collect();
            let ids: Vec<u64> = own.iter().map(|(_, parts)| parts.id).collect();
            let is_open = |(_, parts): &(_, &Parts)| allows(parts, Direction::Egress).any(may_be_dns);
            // ClusterNetworkPolicies that come first may allow it.
            if *looks == 0 || !seen.insert(ids) || own.iter().any(is_open) {
                continue;
            }
            if let Some((policy, _)) = own.first()
                && !self.tiers.values().any(|parts| is_judged(&parts, pod))
            {
                let what =
                    "egress: no policy of these pods allows port 53, so they resolve no names".to_owned();
                let namespace = pod.namespace.to_string();
                all.insert(Doubt { namespace, policy: policy.to_string(), what });
            }
        }
    }
}

/// Whether such pods exist and all of them lack it. False if not all could be looked at.
fn lack<'p>(
    pods: impl Iterator<Item = &'p KnownPod>,
    looks: &mut usize,
    is_one: impl Fn(&KnownPod) -> bool,
    has: impl Fn(&KnownPod) -> bool,
) -> bool {
    let mut is_there = false;
    for pod in pods {
        *looks = looks.saturating_sub(1);
        let is_such = is_one(pod);
        if *looks == 0 || is_such && has(pod) {
            return false;
        }
        is_there |= is_such;
    }
    is_there
}

fn allows(parts: &Parts, direction: Direction) -> impl Iterator<Item = &AllowPorts> {
    IpFamily::ALL
        .into_iter()
        .flat_map(move |family| parts.allows(direction, family))
        .map(|allow| &allow.ports)
}

/// Whether a question to a DNS server may pass, by UDP or TCP.
fn may_be_dns(ports: &AllowPorts) -> bool {
    let is_of = |protocol| matches!(protocol, Protocol::Udp | Protocol::Tcp);
    match ports {
        AllowPorts::Are(Ports::Any) | AllowPorts::Named(..) => true,
        AllowPorts::Are(Ports::Protocol(protocol)) => is_of(*protocol),
        AllowPorts::Are(Ports::Range { protocol, first, last }) => {
            is_of(*protocol) && (*first..=*last).contains(&DNS)
        }
        AllowPorts::Are(Ports::In(_)) => true,
        AllowPorts::In(set) => set.named().is_none_or(|(protocol, _)| is_of(protocol)),
    }
}
