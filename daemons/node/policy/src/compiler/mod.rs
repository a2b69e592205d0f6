//! From policies, namespaces and pods to the rules of this node. The cost of a change depends on the objects that it touches.

mod applied;
mod block;
mod chain;
mod definition;
mod doubts;
mod live;
mod parts;
mod selected;
mod selector;
mod tier;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::{Cluster, KnownPod};
use crate::model::{Addresses, ClusterNetworkPolicy, Direction, Directions, Namespace, NetworkPolicy, Pod};
use crate::name::Name;
use crate::ruleset::{Change, Entry, MapChange, Ruleset};

pub use applied::{Applied, Named};
use chain::Built;
pub use doubts::Doubt;
use live::Live;
use parts::Parts;
use selected::Cache;
use tier::TierParts;

/// The most names of unreadable pods that are kept.
const MOST_UNREAD: usize = 1000;

/// Takes what the watches say, and makes the rules of it.
#[derive(Debug, Default)]
pub struct Compiler {
    cluster: Cluster,
    parts: BTreeMap<Box<str>, BTreeMap<Box<str>, Parts>>,
    /// ClusterNetworkPolicies.
    tiers: BTreeMap<Box<str>, TierParts>,
    /// The next policy's [`Parts::id`] or [`TierParts::id`].
    next: u64,
    live: Live,
    /// Pods that cannot be read and were never known, by namespace and name.
    unread: BTreeSet<(Box<str>, Box<str>)>,
    /// How many entries of maps, and other chains, lead to a chain.
    users: HashMap<Name, u32>,
    /// How many chains may deny by a set.
    denying: HashMap<Name, u32>,
    /// Addresses of local pods whose policies may have changed.
    dirty: BTreeSet<IpAddr>,
    ruleset: Ruleset,
}

/// Something in a policy that is not understood. The policy isolates, and this part of it allows nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault<'a> {
    /// Empty for a ClusterNetworkPolicy.
    pub namespace: &'a str,
    /// Empty for the Namespace itself.
    pub policy: &'a str,
    /// Has text of the object, in quotation marks with escapes.
    pub what: &'a str,
}

impl Compiler {
    /// With `is_dry` nothing is denied in any namespace.
    pub fn new(is_dry: bool) -> Compiler {
        Compiler { cluster: Cluster::new(is_dry), ..Compiler::default() }
    }

    /// A pod is new or has changed.
    pub fn set_pod(&mut self, pod: &Pod) {
        let known = self.cluster.known(pod);
        self.forget_unread(&pod.namespace, &pod.name);
        self.replace_pod(&pod.namespace, &pod.name, known);
    }

    /// The addresses of a pod that is known, from another source than its object. [`Compiler::set_pod`] sets the object's again.
    pub fn set_addresses(&mut self, namespace: &str, name: &str, addresses: Addresses) {
        let Some(mut pod) = self.cluster.pod(namespace, name).cloned() else { return };
        pod.addresses = addresses;
        self.replace_pod(namespace, name, Some(pod));
    }

    /// The object of a pod cannot be read any more. It keeps its addresses, each policy of its namespace isolates it, and nothing is
    /// allowed; it is no peer.
    pub fn close_pod(&mut self, namespace: &str, name: &str) {
        if self.cluster.pod(namespace, name).is_none() && self.unread.len() < MOST_UNREAD {
            self.unread.insert((namespace.into(), name.into()));
        }
        let closed = self.cluster.closed(namespace, name);
        self.replace_pod(namespace, name, closed);
    }

    /// Pods that cannot be read and were never known: it is unknown on which node they are. No policy isolates them.
    pub fn unread_pods(&self) -> impl Iterator<Item = (&str, &str)> {
        self.unread.iter().map(|(namespace, name)| (&**namespace, &**name))
    }

    fn forget_unread(&mut self, namespace: &str, name: &str) {
        if !self.unread.is_empty() {
            self.unread.remove(&(namespace.into(), name.into()));
        }
    }

    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        self.forget_unread(namespace, name);
        self.replace_pod(namespace, name, None);
    }

    /// Removes the pods that are not to be kept, by namespace and name.
    pub fn retain_pods(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        self.unread.retain(|(namespace, name)| keep(namespace, name));
        for (namespace, name) in self.cluster.pod_keys() {
            if !keep(&namespace, &name) {
                self.remove_pod(&namespace, &name);
            }
        }
    }

    /// A namespace is new or has changed.
    pub fn set_namespace(&mut self, namespace: &Namespace) {
        let was_dry = self.cluster.is_dry_namespace(&namespace.name);
        let old = self.cluster.put_namespace(namespace);
        self.touch_mode(&namespace.name, was_dry);
        self.touch_namespace(&namespace.name, old.as_ref());
        self.live.relabel(&self.cluster, &namespace.name, old.as_ref(), &mut self.ruleset.sets);
    }

    pub fn remove_namespace(&mut self, name: &str) {
        let was_dry = self.cluster.is_dry_namespace(name);
        let old = self.cluster.take_namespace(name);
        self.touch_mode(name, was_dry);
        self.touch_namespace(name, old.as_ref());
        self.live.relabel(&self.cluster, name, old.as_ref(), &mut self.ruleset.sets);
    }

    pub fn retain_namespaces(&mut self, mut keep: impl FnMut(&str) -> bool) {
        for name in self.cluster.namespace_keys() {
            if !keep(&name) {
                self.remove_namespace(&name);
            }
        }
    }

    /// A policy is new or has changed.
    pub fn set_policy(&mut self, policy: NetworkPolicy) {
        if self.cluster.policy(&policy.namespace, &policy.name).is_some_and(|old| **old == policy) {
            return;
        }
        self.next += 1;
        let parts = Parts::read(&policy, self.next);
        self.touch(&policy.namespace, &parts);
        let (namespace, name) = (policy.namespace.as_str(), policy.name.as_str());
        let old = self.parts.entry(namespace.into()).or_default().insert(name.into(), parts);
        if let Some(old) = old {
            self.touch(namespace, &old);
        }
        self.cluster.put_policy(Arc::new(policy));
    }

    pub fn remove_policy(&mut self, namespace: &str, name: &str) {
        let Some(policies) = self.parts.get_mut(namespace) else { return };
        let old = policies.remove(name);
        if policies.is_empty() {
            self.parts.remove(namespace);
        }
        if let Some(old) = old {
            self.touch(namespace, &old);
        }
        self.cluster.take_policy(namespace, name);
    }

    /// Removes the policies that are not to be kept, by namespace and name.
    pub fn retain_policies(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        for (namespace, name) in self.cluster.policy_keys() {
            if !keep(&namespace, &name) {
                self.remove_policy(&namespace, &name);
            }
        }
    }

    /// A ClusterNetworkPolicy is new or has changed.
    pub fn set_cluster_policy(&mut self, policy: ClusterNetworkPolicy) {
        if self.cluster.cluster_policy(&policy.name).is_some_and(|old| **old == policy) {
            return;
        }
        self.next += 1;
        let parts = TierParts::read(&policy, self.next);
        self.touch_tier(&parts);
        if let Some(old) = self.tiers.insert(policy.name.as_str().into(), parts) {
            self.touch_tier(&old);
        }
        self.cluster.put_cluster_policy(Arc::new(policy));
    }

    pub fn remove_cluster_policy(&mut self, name: &str) {
        if let Some(old) = self.tiers.remove(name) {
            self.touch_tier(&old);
        }
        self.cluster.take_cluster_policy(name);
    }

    /// Removes the ClusterNetworkPolicies that are not to be kept, by their names.
    pub fn retain_cluster_policies(&mut self, mut keep: impl FnMut(&str) -> bool) {
        let gone: Vec<_> = self.tiers.keys().filter(|name| !keep(name)).cloned().collect();
        gone.iter().for_each(|name| self.remove_cluster_policy(name));
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The rules as of the last [`Compiler::update`].
    pub fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// How many NetworkPolicies there are.
    pub fn policies(&self) -> usize {
        self.parts.values().map(BTreeMap::len).sum()
    }

    /// How many ClusterNetworkPolicies there are.
    pub fn cluster_policies(&self) -> usize {
        self.tiers.len()
    }

    pub fn faults(&self) -> impl Iterator<Item = Fault<'_>> {
        let of_modes =
            self.cluster.strange_modes().map(|(namespace, what)| Fault { namespace, policy: "", what });
        let of_namespaces = self.parts.iter().flat_map(|(namespace, policies)| {
            policies.iter().flat_map(move |(policy, parts)| {
                parts.faults.iter().map(move |what| Fault { namespace, policy, what })
            })
        });
        of_modes.chain(of_namespaces).chain(self.tiers.iter().flat_map(|(policy, parts)| {
            parts.faults.iter().map(move |what| Fault { namespace: "", policy, what })
        }))
    }

    /// The namespaces with the directions in which a policy isolates: what the plugin must know. With [`Compiler::isolated_elsewhere`]
    /// also the known namespaces without such a direction.
    pub fn isolated(&self) -> BTreeMap<&str, Directions> {
        let of = |policies: &BTreeMap<_, Parts>| {
            policies.values().fold(Directions::default(), |all, parts| all.or(parts.isolates))
        };
        let mut all: BTreeMap<&str, Directions> =
            self.parts.iter().map(|(namespace, policies)| (&**namespace, of(policies))).collect();
        let mut add = |namespace, directions: Directions| {
            let own = all.entry(namespace).or_default();
            *own = own.or(directions);
        };
        let elsewhere = self.isolated_elsewhere();
        let is_all = !elsewhere.is_empty();
        for (namespace, labels) in self.cluster.namespaces() {
            let own = self.tiers.values().filter(|parts| parts.is_for_namespace(namespace, Some(labels)));
            let denied = own.fold(Directions::default(), |all, parts| all.or(parts.denies()));
            if is_all || !denied.is_empty() {
                add(namespace, denied);
            }
        }
        for parts in self.tiers.values() {
            let is_new = |name: &&str| self.cluster.namespace_labels(name).is_none();
            for namespace in parts.named_namespaces().into_iter().flatten().filter(is_new) {
                add(namespace, parts.denies());
            }
        }
        // Its pods are denied nothing.
        for (_, directions) in all.iter_mut().filter(|(name, _)| self.cluster.is_dry_namespace(name)) {
            *directions = Directions::default();
        }
        // A namespace that is not known yet may get any labels.
        for (_, directions) in
            all.iter_mut().filter(|(name, _)| self.cluster.namespace_labels(name).is_none())
        {
            *directions = directions.or(elsewhere);
        }
        all.retain(|_, directions| is_all || !directions.is_empty());
        all
    }

    /// The directions in which a ClusterNetworkPolicy may isolate pods of any namespace that [`Compiler::isolated`] does not name: one that is
    /// not known yet.
    pub fn isolated_elsewhere(&self) -> Directions {
        if self.cluster.is_dry_cluster() {
            return Directions::default();
        }
        let any = self.tiers.values().filter(|parts| parts.named_namespaces().is_none());
        any.fold(Directions::default(), |all, parts| all.or(parts.denies()))
    }

    /// Makes [`Compiler::ruleset`] current, and says what has changed since the last time.
    pub fn update(&mut self) -> Change {
        let mut change = Change::default();
        let (mut cache, mut former) = (Cache::new(), Vec::new());
        for pod in std::mem::take(&mut self.dirty) {
            for direction in Direction::ALL {
                let entry = Entry { direction, pod };
                let built = self.chain_of(entry, &mut cache);
                let (from, to) =
                    (self.ruleset.maps.get(&entry).copied(), built.as_ref().map(|built| built.name));
                if from == to {
                    continue;
                }
                former.extend(from);
                change.maps.insert(entry, MapChange { from, to });
                match built {
                    Some(built) => {
                        self.acquire(&built, &mut change);
                        self.ruleset.maps.insert(entry, built.name);
                    }
                    None => drop(self.ruleset.maps.remove(&entry)),
                }
            }
            let has_chain = |direction| self.ruleset.maps.contains_key(&Entry { direction, pod });
            let is_dry = self.cluster.is_dry(pod) && Direction::ALL.into_iter().any(has_chain);
            let is_new = if is_dry { self.ruleset.dry.insert(pod) } else { self.ruleset.dry.remove(&pod) };
            if is_new {
                change.dry.insert(pod, is_dry);
            }
        }
        former.into_iter().for_each(|chain| self.release(chain, &mut change));
        self.live.fill(&self.cluster, &mut change.new_sets);
        self.ruleset.sets.extend(change.new_sets.iter().map(|(name, set)| (*name, set.clone())));
        change.elements = self.live.take_pending();
        change.denying.extend(change.elements.keys().filter(|name| self.denying.contains_key(name)));
        change
    }

    /// The namespace's mode was this.
    fn touch_mode(&mut self, namespace: &str, was_dry: bool) {
        if self.cluster.is_dry_namespace(namespace) != was_dry {
            self.touch_pods_in(namespace);
        }
    }

    fn replace_pod(&mut self, namespace: &str, name: &str, new: Option<KnownPod>) {
        if self.cluster.pod(namespace, name) == new.as_ref() {
            return;
        }
        if let Some(old) = self.cluster.take_pod(namespace, name) {
            self.touch_pod(&old);
            self.live.leave(&self.cluster, &old, &mut self.ruleset.sets);
        }
        if let Some(new) = new {
            self.touch_pod(&new);
            self.cluster.put_pod(name, new.clone());
            self.live.enter(&self.cluster, &new, &mut self.ruleset.sets);
        }
    }

    fn acquire(&mut self, built: &Built, change: &mut Change) {
        let users = self.users.entry(built.name).or_default();
        *users += 1;
        if *users > 1 {
            return;
        }
        self.ruleset.chains.insert(built.name, built.chain.clone());
        change.new_chains.insert(built.name, built.chain.clone());
        for (name, definition) in &built.sets {
            if self.live.acquire(definition) {
                change.new_sets.insert(*name, definition.empty_set());
            }
        }
        for set in built.chain.denying() {
            *self.denying.entry(set).or_default() += 1;
        }
        if let Some(next) = &built.next {
            self.acquire(next, change);
        }
    }

    fn release(&mut self, chain: Name, change: &mut Change) {
        let Some(users) = self.users.get_mut(&chain) else { return };
        *users -= 1;
        if *users > 0 {
            return;
        }
        self.users.remove(&chain);
        change.gone_chains.insert(chain);
        let Some(chain) = self.ruleset.chains.remove(&chain) else { return };
        for set in chain.denying() {
            match self.denying.get_mut(&set) {
                Some(users) if *users > 1 => *users -= 1,
                _ => drop(self.denying.remove(&set)),
            }
        }
        for set in chain.sets() {
            if self.live.release(set) {
                self.ruleset.sets.remove(&set);
                change.gone_sets.insert(set);
            }
        }
        if let Some(next) = chain.next() {
            self.release(next, change);
        }
    }
}
