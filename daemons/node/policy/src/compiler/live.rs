//! The sets that the chains of this node use, and which of them a pod touches.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::Arc;

use crate::cluster::{Cluster, KnownPod, Labels};
use crate::name::Name;
use crate::ruleset::{Element, Elements, Set};

use super::definition::{Definition, Peers};

/// Up to this number of new sets, each looks at all pods by itself. More of them are found from the pods' labels.
const FEW: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Live {
    sets: HashMap<Name, LiveSet>,
    /// The sets of pods by the hash of their anchor; that of another anchor may be the same.
    by_anchor: HashMap<u64, Vec<Name>>,
    hasher: RandomState,
    /// What has changed since the last update: whether the element was added.
    pending: BTreeMap<Name, BTreeMap<Element, bool>>,
}

#[derive(Debug)]
struct LiveSet {
    definition: Arc<Definition>,
    /// The chains that use it.
    users: u32,
}

type Sets = BTreeMap<Name, Set>;

impl Live {
    /// One more chain uses the set. Whether it is new.
    pub(crate) fn acquire(&mut self, definition: &Arc<Definition>) -> bool {
        if let Some(set) = self.sets.get_mut(&definition.name) {
            set.users += 1;
            return false;
        }
        if definition.is_of_pods() {
            let anchor = self.hasher.hash_one(definition.anchor());
            self.by_anchor.entry(anchor).or_default().push(definition.name);
        }
        self.sets.insert(definition.name, LiveSet { definition: definition.clone(), users: 1 });
        true
    }

    /// One chain less uses the set. Whether it was the last one.
    pub(crate) fn release(&mut self, name: Name) -> bool {
        let Some(set) = self.sets.get_mut(&name) else { return false };
        set.users -= 1;
        if set.users > 0 {
            return false;
        }
        let anchor = self.hasher.hash_one(set.definition.anchor());
        if let Some(names) = self.by_anchor.get_mut(&anchor) {
            names.retain(|other| *other != name);
            if names.is_empty() {
                self.by_anchor.remove(&anchor);
            }
        }
        self.sets.remove(&name);
        self.pending.remove(&name);
        true
    }

    /// Puts the pods into new sets.
    pub(crate) fn fill(&self, cluster: &Cluster, new: &mut Sets) {
        if new.len() > FEW {
            for pod in cluster.pods() {
                for definition in self.touched(pod) {
                    if let Some(set) = new.get_mut(&definition.name) {
                        set.contents.extend(definition.elements(cluster, pod));
                    }
                }
            }
            return;
        }
        for (name, set) in new {
            let Some(LiveSet { definition, .. }) = self.sets.get(name) else { continue };
            let mut take = |pod| set.contents.extend(definition.elements(cluster, pod));
            match definition.anchor().0 {
                _ if !definition.is_of_pods() => {}
                Some(namespace) => cluster.pods_in(namespace).for_each(&mut take),
                None => cluster.pods().for_each(&mut take),
            }
        }
    }

    /// The pod's elements come. It is in `cluster`.
    pub(crate) fn enter(&mut self, cluster: &Cluster, pod: &KnownPod, sets: &mut Sets) {
        for definition in self.touched(pod) {
            self.enter_one(cluster, pod, &definition, sets);
        }
    }

    /// The pod's elements go. It is no longer in `cluster`.
    pub(crate) fn leave(&mut self, cluster: &Cluster, pod: &KnownPod, sets: &mut Sets) {
        for definition in self.touched(pod) {
            let elements = definition.elements(cluster, pod);
            self.leave_one(cluster, elements, &definition, sets);
        }
    }

    /// The labels of a namespace were `old`.
    pub(crate) fn relabel(
        &mut self,
        cluster: &Cluster,
        namespace: &str,
        old: Option<&Labels>,
        sets: &mut Sets,
    ) {
        let now = cluster.namespace_labels(namespace);
        let others = |set: &LiveSet| match &set.definition.peers {
            Peers::Pods(scope, selector, _)
                if scope.matches(namespace, old) != scope.matches(namespace, now) =>
            {
                Some((set.definition.clone(), selector.clone()))
            }
            _ => None,
        };
        for (definition, selector) in self.sets.values().filter_map(others).collect::<Vec<_>>() {
            for pod in cluster.pods_in(namespace).filter(|pod| selector.matches(&pod.labels)) {
                self.enter_one(cluster, pod, &definition, sets);
                // They stay if this pod, or another one, gives them.
                self.leave_one(cluster, definition.elements_if_in(pod), &definition, sets);
            }
        }
    }

    /// What has changed in sets since the last update.
    pub(crate) fn take_pending(&mut self) -> BTreeMap<Name, Elements> {
        let mut changes = BTreeMap::<Name, Elements>::new();
        for (name, elements) in std::mem::take(&mut self.pending) {
            for (element, is_added) in elements {
                let change = changes.entry(name).or_default();
                if is_added {
                    change.added.insert(element)
                } else {
                    change.removed.insert(element)
                };
            }
        }
        changes
    }

    /// The sets that the pod may be in.
    fn touched(&self, pod: &KnownPod) -> Vec<Arc<Definition>> {
        let mut found = Vec::new();
        for namespace in [Some(&*pod.namespace), None] {
            let labels = pod.labels.iter().map(|(key, value)| (&**key, &**value));
            for (key, value) in labels.chain([("", "")]) {
                let names = self.by_anchor.get(&self.hasher.hash_one((namespace, key, value)));
                let sets = names.into_iter().flatten().filter_map(|name| self.sets.get(name));
                found.extend(sets.map(|set| set.definition.clone()));
            }
        }
        found
    }

    fn enter_one(&mut self, cluster: &Cluster, pod: &KnownPod, definition: &Definition, sets: &mut Sets) {
        let Some(set) = sets.get_mut(&definition.name) else { return };
        for element in definition.elements(cluster, pod) {
            if set.contents.insert(element) {
                self.note(definition.name, element, true);
            }
        }
    }

    /// An element stays if another pod gives it too.
    fn leave_one(
        &mut self,
        cluster: &Cluster,
        elements: Vec<Element>,
        definition: &Definition,
        sets: &mut Sets,
    ) {
        let Some(set) = sets.get_mut(&definition.name) else { return };
        for element in elements {
            let is_of = |other| definition.elements(cluster, other).contains(&element);
            if !cluster.at(element.address()).any(is_of) && set.contents.remove(element) {
                self.note(definition.name, element, false);
            }
        }
    }

    fn note(&mut self, set: Name, element: Element, is_added: bool) {
        let changes = self.pending.entry(set).or_default();
        if changes.remove(&element) != Some(!is_added) {
            changes.insert(element, is_added);
        }
        if changes.is_empty() {
            self.pending.remove(&set);
        }
    }
}
