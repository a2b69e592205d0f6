//! Decides announced pods, and releases them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferrule_kernel::nftables::{Error, change, find_elements};
use ferrule_node_policy::model::{Addresses, Pod};
use ferrule_node_policy::{Cluster, Compiler};
use ferrule_policy_kit::comment;
use ferrule_policy_kit::table as announced;

use super::layout::TABLE;
use super::table::Owner;
use super::undecided::{Group, Place, Undecided, is_same};

/// The most pods that one transaction releases.
pub(super) const MOST: usize = 32;

/// Namespace and name of a pod.
pub(super) type PodKey = (String, String);

/// The announced pods, and what the announcements say of them.
#[derive(Debug, Default)]
pub(super) struct AnnouncedPods {
    pub(super) undecided: Undecided,
    learnt: BTreeMap<PodKey, Learnt>,
    /// Pods of this node whose comment is not their name, by comment.
    long: BTreeMap<String, PodKey>,
}

/// The addresses that a pod's announcement has.
#[derive(Clone, Debug)]
struct Learnt {
    comment: String,
    addresses: Addresses,
    order: u64,
    /// The object says the same.
    is_confirmed: bool,
}

/// Addresses of an announcement, and of the object in the families that it lacks.
fn merged(learnt: Addresses, object: Addresses) -> Addresses {
    Addresses { v4: learnt.v4.or(object.v4), v6: learnt.v6.or(object.v6) }
}

fn addresses(cluster: &Cluster, (namespace, name): &PodKey) -> Option<Addresses> {
    cluster.pod(namespace, name).map(|pod| pod.addresses())
}

impl AnnouncedPods {
    /// The object of a pod comes.
    pub(super) fn note(&mut self, pod: &Pod) {
        if !pod.local {
            return;
        }
        // An earlier pod may have had the name.
        self.long.retain(|_, (namespace, name)| (&*namespace, &*name) != (&pod.namespace, &pod.name));
        for uid in [Some(&pod.uid), pod.mirror_of.as_ref()].into_iter().flatten() {
            let of = ferrule_policy_kit::Pod { namespace: &pod.namespace, name: &pod.name, uid };
            let comment = comment::encode(&of);
            if comment.contains('~') {
                self.long.insert(comment, (pod.namespace.clone(), pod.name.clone()));
            }
        }
    }

    /// The object of a pod is gone.
    pub(super) fn forget(&mut self, key: &PodKey) {
        self.learnt.remove(key);
        self.long.retain(|_, pod| pod != key);
    }

    /// All objects of pods are in the cluster.
    pub(super) fn retain(&mut self, cluster: &Cluster) {
        self.learnt.retain(|key, _| addresses(cluster, key).is_some());
        self.long.retain(|_, key| addresses(cluster, key).is_some());
    }

    /// The pod of this node that the comment names; `None` if the API does not know it, or knows another one.
    pub(super) fn pod_of(&self, cluster: &Cluster, text: &str) -> Option<PodKey> {
        if let Some(key) = self.long.get(text) {
            return Some(key.clone());
        }
        let named = comment::decode(text).filter(|pod| !pod.uid.is_empty())?;
        let known = cluster.pod(named.namespace, named.name)?;
        (known.is_local() && known.is_uid(named.uid))
            .then(|| (named.namespace.to_owned(), named.name.to_owned()))
    }

    /// Tells the compiler the addresses of announced pods, before the API has them.
    pub(super) fn learn(&mut self, compiler: &mut Compiler) {
        for group in self.undecided.groups() {
            let Some(key) = self.pod_of(compiler.cluster(), &group.comment) else { continue };
            let former = self.learnt.get(&key);
            if group.is_odd || former.is_some_and(|known| known.order >= group.order) {
                continue;
            }
            let of_same = former.filter(|known| known.comment == group.comment);
            let own = merged(group.addresses, of_same.map(|known| known.addresses).unwrap_or_default());
            let object = addresses(compiler.cluster(), &key);
            let all = merged(own, object.unwrap_or_default());
            let is_confirmed = former.is_none() && object == Some(all);
            compiler.set_addresses(&key.0, &key.1, all);
            let learnt = Learnt { comment: group.comment, addresses: own, order: group.order, is_confirmed };
            self.learnt.insert(key, learnt);
        }
    }

    /// The object of a pod has come again: the announcement counts until the object says the same.
    pub(super) fn keep_learnt(&mut self, key: &PodKey, compiler: &mut Compiler) {
        let Some(learnt) = self.learnt.get(key) else { return };
        let is_its = self.pod_of(compiler.cluster(), &learnt.comment).as_ref() == Some(key);
        let Some(object) = addresses(compiler.cluster(), key).filter(|_| is_its) else {
            self.learnt.remove(key);
            return;
        };
        let all = merged(learnt.addresses, object);
        let is_waiting = self.undecided.pods().contains(learnt.comment.as_str());
        if all != object {
            compiler.set_addresses(&key.0, &key.1, all);
        } else if !is_waiting {
            self.learnt.remove(key);
            return;
        }
        if let Some(learnt) = self.learnt.get_mut(key) {
            learnt.is_confirmed = all == object;
        }
    }

    /// The pods whose rules are made of the addresses that were announced.
    pub(super) fn decided(&self, cluster: &Cluster) -> Vec<Group> {
        let mut groups = self.undecided.groups();
        groups.retain(|group| self.is_decided(cluster, group));
        groups
    }

    fn is_decided(&self, cluster: &Cluster, group: &Group) -> bool {
        let key = self.pod_of(cluster, &group.comment);
        let Some(pod) = key.and_then(|(namespace, name)| cluster.pod(&namespace, &name)) else {
            return false;
        };
        let own: BTreeSet<IpAddr> = pod.addresses().all().collect();
        pod.has_part()
            && !pod.is_closed()
            && cluster.is_placed(pod)
            && !group.is_odd
            && group.addresses.all().all(|address| own.contains(&address))
    }

    /// These elements are in neither table any more.
    pub(super) fn released(&mut self, places: &BTreeSet<Place>) {
        self.undecided.forget(places);
        let waiting = self.undecided.pods();
        self.learnt.retain(|_, learnt| !learnt.is_confirmed || waiting.contains(learnt.comment.as_str()));
    }
}

/// Removes the pods' elements of both tables in one transaction. Returns the places; if another pod has one of them by now, it stays.
///
/// # Errors
/// The kernel refuses it.
pub(super) fn remove(owner: &mut Owner, groups: &[Group]) -> Result<BTreeSet<Place>, Error> {
    let elements: Vec<_> = groups.iter().flat_map(|group| &group.elements).collect();
    let wanted: Vec<(&str, &[u8])> = elements.iter().map(|((set, key), _)| (*set, key.as_slice())).collect();
    change(owner.socket(), |socket, batch| {
        let found = find_elements(socket, announced::TABLE, &wanted)?;
        let copies = find_elements(socket, TABLE, &wanted)?;
        let mut places = BTreeSet::new();
        for ((((set, key), own), found), copy) in elements.iter().zip(found).zip(copies) {
            let keys = std::slice::from_ref(key);
            match found {
                Some(found) if !is_same(&found, own) => continue,
                Some(_) => drop(batch.delete_elements(announced::TABLE, set, keys)),
                None => {}
            }
            if copy.is_some() {
                batch.delete_elements(TABLE, set, keys);
            }
            places.insert((*set, key.clone()));
        }
        Ok(places)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its name is too long for a comment, so the comment is known from the object alone.
    #[test]
    fn a_comment_is_that_of_the_last_pod_of_a_name() {
        let pod = |uid: &str| Pod {
            namespace: "shop".to_owned(),
            name: "x".repeat(120),
            uid: uid.to_owned(),
            local: true,
            ..Pod::default()
        };
        let comment = |Pod { namespace, name, uid, .. }: &Pod| {
            comment::encode(&ferrule_policy_kit::Pod { namespace, name, uid })
        };
        let (mut pods, mut compiler) = (AnnouncedPods::default(), Compiler::default());
        let [first, second] = ["one", "two"].map(pod);
        for one in [&first, &second] {
            compiler.set_pod(one);
            pods.note(one);
        }
        let known = |pod| pods.pod_of(compiler.cluster(), &comment(pod));
        assert_eq!(
            (known(&first), known(&second)),
            (None, Some((second.namespace.clone(), second.name.clone())))
        );
    }
}
