//! Which policies are for a pod of this node, and the chain that they make.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::cluster::{KnownPod, Labels};
use crate::model::{Direction, IpFamily, NamedPort};
use crate::ruleset::{Entry, Verdict};

use super::Compiler;
use super::chain::{self, Built};
use super::parts::Parts;
use super::tier::{Tier, TierParts};

/// Chains that this update has built: by direction, family, policies, the pod's named ports, and the verdict of a denial.
pub(super) type Cache =
    HashMap<(Direction, IpFamily, [Vec<u64>; 3], Arc<[NamedPort]>, Verdict), Option<Rc<Built>>>;

/// The policies of a pod in one direction, as they are asked: of the tier Admin, NetworkPolicies, and without these of the tier Baseline.
struct Selected<'c> {
    admin: Vec<&'c TierParts>,
    policies: Vec<&'c Parts>,
    baseline: Vec<&'c TierParts>,
    /// Whether one of them may deny.
    is_isolated: bool,
}

impl Selected<'_> {
    fn ids(&self) -> [Vec<u64>; 3] {
        let of_tier = |tier: &[&TierParts]| tier.iter().map(|policy| policy.id).collect();
        let policies = self.policies.iter().map(|policy| policy.id).collect();
        [of_tier(&self.admin), policies, of_tier(&self.baseline)]
    }
}

impl Compiler {
    pub(super) fn touch_pod(&mut self, pod: &KnownPod) {
        if pod.is_local() {
            self.dirty.extend(pod.addresses.all());
        }
    }

    /// The policies of the pods that this one selects may have changed.
    pub(super) fn touch(&mut self, namespace: &str, parts: &Parts) {
        let is_selected = |pod: &&KnownPod| *pod.namespace == *namespace && parts.is_for(pod);
        self.dirty.extend(self.cluster.locals().filter(is_selected).flat_map(|pod| pod.addresses.all()));
    }

    /// The policies of the pods that this one is for may have changed.
    pub(super) fn touch_tier(&mut self, parts: &TierParts) {
        let is_selected = |pod: &&KnownPod| parts.is_for(&self.cluster, pod);
        self.dirty.extend(self.cluster.locals().filter(is_selected).flat_map(|pod| pod.addresses.all()));
    }

    /// The labels of a namespace were `old`: other ClusterNetworkPolicies may be for its pods.
    pub(super) fn touch_namespace(&mut self, namespace: &str, old: Option<&Labels>) {
        let now = self.cluster.namespace_labels(namespace);
        let differs = |parts: &TierParts| {
            parts.is_for_namespace(namespace, old) != parts.is_for_namespace(namespace, now)
        };
        if self.tiers.values().any(differs) {
            self.touch_pods_in(namespace);
        }
    }

    pub(super) fn touch_pods_in(&mut self, namespace: &str) {
        let is_in = |pod: &&KnownPod| *pod.namespace == *namespace;
        self.dirty.extend(self.cluster.locals().filter(is_in).flat_map(|pod| pod.addresses.all()));
    }

    /// The chain of a local pod, if a policy isolates it.
    pub(super) fn chain_of(&self, entry: Entry, cache: &mut Cache) -> Option<Rc<Built>> {
        let Entry { direction, pod } = entry;
        let family = IpFamily::of(pod);
        let claimants: Vec<_> = self.cluster.at(pod).filter(|pod| pod.is_local()).collect();
        let selected: Vec<_> = claimants.iter().map(|pod| self.selected(pod, direction)).collect();
        let (one, of_one) = (claimants.first()?, selected.first()?);
        let deny = if self.cluster.is_dry(pod) { Verdict::Dry } else { Verdict::Deny };
        // Two pods say that they have the address, and it is unknown which one is right: each gets only what both may.
        let is_sure = |(pod, selected): (&&KnownPod, &Selected<'_>)| {
            pod.ports == one.ports && selected.ids() == of_one.ids() && !pod.is_closed
        };
        if !claimants.iter().zip(&selected).all(is_sure) {
            let is_isolated = selected.iter().any(|selected| selected.is_isolated);
            return is_isolated.then(|| Rc::new(chain::build(direction, family, &[], &[], deny)));
        }
        let key = (direction, family, of_one.ids(), one.ports.clone(), deny);
        let build = || {
            let Selected { admin, policies, baseline, .. } = of_one;
            let next = match policies.is_empty() {
                true => chain::build_tier(direction, family, baseline, &one.ports, deny, None),
                false => Some(Rc::new(chain::build(direction, family, policies, &one.ports, deny))),
            };
            chain::build_tier(direction, family, admin, &one.ports, deny, next)
        };
        cache.entry(key).or_insert_with(build).clone()
    }

    fn selected(&self, pod: &KnownPod, direction: Direction) -> Selected<'_> {
        let policies = self.policies_of(pod, direction);
        let of_tier = |tier| {
            let is_own = |parts: &&TierParts| {
                parts.tier == tier && parts.has.has(direction) && parts.is_for(&self.cluster, pod)
            };
            let mut all: Vec<_> = self.tiers.values().filter(is_own).collect();
            // Those of one priority stay in the order of their names.
            all.sort_by_key(|parts| parts.priority);
            all
        };
        let admin = of_tier(Tier::Admin);
        let baseline = if policies.is_empty() { of_tier(Tier::Baseline) } else { Vec::new() };
        let mut tiers = admin.iter().chain(&baseline);
        // A closed pod may have any labels, also as a peer.
        let is_isolated = !policies.is_empty()
            || tiers.any(|parts| parts.denies().has(direction))
            || pod.is_closed && self.tiers.values().any(|parts| !parts.denies().is_empty());
        Selected { admin, policies, baseline, is_isolated }
    }

    fn policies_of(&self, pod: &KnownPod, direction: Direction) -> Vec<&Parts> {
        let all = self.parts.get(&*pod.namespace).into_iter().flat_map(|policies| policies.values());
        all.filter(|parts| parts.isolates.has(direction) && parts.is_for(pod)).collect()
    }
}
