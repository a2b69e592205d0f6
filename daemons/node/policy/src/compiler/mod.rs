//! From policies, namespaces and pods to the rules of this node. The cost of a change depends on the objects that it touches.

mod block;
mod chain;
mod definition;
mod live;
mod parts;
mod selector;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use crate::cluster::{Cluster, KnownPod};
use crate::model::{Addresses, Direction, Directions, IpFamily, NamedPort, Namespace, NetworkPolicy, Pod};
use crate::name::Name;
use crate::ruleset::{Change, Entry, MapChange, Ruleset};

use chain::Built;
use live::Live;
use parts::Parts;

/// Takes what the watches say, and makes the rules of it.
#[derive(Debug, Default)]
pub struct Compiler {
    cluster: Cluster,
    parts: BTreeMap<Box<str>, BTreeMap<Box<str>, Parts>>,
    /// The next policy's [`Parts::id`].
    next: u64,
    live: Live,
    /// How many entries of maps lead to a chain.
    users: HashMap<Name, u32>,
    /// Addresses of local pods whose policies may have changed.
    dirty: BTreeSet<IpAddr>,
    ruleset: Ruleset,
}

/// Something in a policy that is not understood. The policy isolates, and this part of it allows nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault<'a> {
    pub namespace: &'a str,
    pub policy: &'a str,
    /// Has text of the object, in quotation marks with escapes.
    pub what: &'a str,
}

/// Chains that this update has built: by direction, family, policies and the pod's named ports.
type Cache = HashMap<(Direction, IpFamily, Vec<u64>, Arc<[NamedPort]>), Rc<Built>>;

impl Compiler {
    /// A pod is new or has changed.
    pub fn set_pod(&mut self, pod: &Pod) {
        let known = self.cluster.known(pod);
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
        let closed = self.cluster.closed(namespace, name);
        self.replace_pod(namespace, name, closed);
    }

    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        self.replace_pod(namespace, name, None);
    }

    /// Removes the pods that are not to be kept, by namespace and name.
    pub fn retain_pods(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        for (namespace, name) in self.cluster.pod_keys() {
            if !keep(&namespace, &name) {
                self.remove_pod(&namespace, &name);
            }
        }
    }

    /// A namespace is new or has changed.
    pub fn set_namespace(&mut self, namespace: &Namespace) {
        let old = self.cluster.put_namespace(namespace);
        self.live.relabel(&self.cluster, &namespace.name, old.as_ref(), &mut self.ruleset.sets);
    }

    pub fn remove_namespace(&mut self, name: &str) {
        let old = self.cluster.take_namespace(name);
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

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The rules as of the last [`Compiler::update`].
    pub fn ruleset(&self) -> &Ruleset {
        &self.ruleset
    }

    /// How many policies there are.
    pub fn policies(&self) -> usize {
        self.parts.values().map(BTreeMap::len).sum()
    }

    pub fn faults(&self) -> impl Iterator<Item = Fault<'_>> {
        self.parts.iter().flat_map(|(namespace, policies)| {
            policies.iter().flat_map(move |(policy, parts)| {
                parts.faults.iter().map(move |what| Fault { namespace, policy, what })
            })
        })
    }

    /// The namespaces with the directions in which a policy isolates: what the plugin must know.
    pub fn isolated(&self) -> BTreeMap<&str, Directions> {
        let of = |policies: &BTreeMap<_, Parts>| {
            policies.values().fold(Directions::default(), |all, parts| all.or(parts.isolates))
        };
        self.parts.iter().map(|(namespace, policies)| (&**namespace, of(policies))).collect()
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
        }
        former.into_iter().for_each(|chain| self.release(chain, &mut change));
        self.live.fill(&self.cluster, &mut change.new_sets);
        self.ruleset.sets.extend(change.new_sets.iter().map(|(name, set)| (*name, set.clone())));
        change.elements = self.live.take_pending();
        change
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

    fn touch_pod(&mut self, pod: &KnownPod) {
        if pod.is_local() {
            self.dirty.extend(pod.addresses.all());
        }
    }

    /// The policies of the pods that this one selects may have changed.
    fn touch(&mut self, namespace: &str, parts: &Parts) {
        let is_selected = |pod: &&KnownPod| *pod.namespace == *namespace && parts.is_for(pod);
        self.dirty.extend(self.cluster.locals().filter(is_selected).flat_map(|pod| pod.addresses.all()));
    }

    /// The chain of a local pod, if a policy isolates it.
    fn chain_of(&self, entry: Entry, cache: &mut Cache) -> Option<Rc<Built>> {
        let Entry { direction, pod } = entry;
        let family = IpFamily::of(pod);
        let claimants: Vec<_> = self.cluster.at(pod).filter(|pod| pod.is_local()).collect();
        let policies: Vec<_> = claimants.iter().map(|pod| self.policies_of(pod, direction)).collect();
        if policies.iter().all(Vec::is_empty) {
            return None;
        }
        let ids = |policies: &[&Parts]| policies.iter().map(|policy| policy.id).collect::<Vec<_>>();
        let (one, of_one) = (claimants.first()?, policies.first()?);
        // Two pods say that they have the address, and it is unknown which one is right: each gets only what both may.
        let is_same = |(pod, policies): (&&KnownPod, &Vec<&Parts>)| {
            pod.ports == one.ports && ids(policies) == ids(of_one) && !pod.is_closed
        };
        if !claimants.iter().zip(&policies).all(is_same) {
            return Some(Rc::new(chain::build(direction, family, &[], &[])));
        }
        let key = (direction, family, ids(of_one), one.ports.clone());
        Some(
            cache
                .entry(key)
                .or_insert_with(|| Rc::new(chain::build(direction, family, of_one, &one.ports)))
                .clone(),
        )
    }

    fn policies_of(&self, pod: &KnownPod, direction: Direction) -> Vec<&Parts> {
        let all = self.parts.get(&*pod.namespace).into_iter().flat_map(|policies| policies.values());
        all.filter(|parts| parts.isolates.has(direction) && parts.is_for(pod)).collect()
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
        for set in chain.sets() {
            if self.live.release(set) {
                self.ruleset.sets.remove(&set);
                change.gone_sets.insert(set);
            }
        }
    }
}
