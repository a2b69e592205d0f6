//! Decides announced pods, and releases them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use ferrule_kernel::conntrack;
use ferrule_kernel::nftables::{ATTEMPTS, Batch, Error, find_elements, generation};
use ferrule_kernel::retry::retry;
use ferrule_node_policy::Cluster;
use ferrule_node_policy::model::Addresses;
use ferrule_policy_kit::comment;
use ferrule_policy_kit::table as announced;

use super::enforcer::Enforcer;
use super::flows;
use super::layout::TABLE;
use super::undecided::{Group, is_same};

/// The most pods that one transaction releases.
const MOST: usize = 32;

/// The addresses that a pod's announcement has.
#[derive(Clone, Debug)]
pub(super) struct Learnt {
    comment: String,
    addresses: Addresses,
    order: u64,
    /// The object says the same.
    is_confirmed: bool,
}

/// Namespace and name of the pod of this node that the comment names; `None` if the API does not know it, or knows another one.
pub(super) fn pod_of(
    cluster: &Cluster,
    long: &BTreeMap<String, (String, String)>,
    text: &str,
) -> Option<(String, String)> {
    if let Some(key) = long.get(text) {
        return Some(key.clone());
    }
    let named = comment::decode(text).filter(|pod| !pod.uid.is_empty())?;
    let known = cluster.pod(named.namespace, named.name)?;
    (known.is_local() && known.is_uid(named.uid)).then(|| (named.namespace.to_owned(), named.name.to_owned()))
}

/// Addresses of an announcement, and of the object in the families that it lacks.
fn merged(learnt: Addresses, object: Addresses) -> Addresses {
    Addresses { v4: learnt.v4.or(object.v4), v6: learnt.v6.or(object.v6) }
}

impl Enforcer {
    /// Tells the compiler the addresses of announced pods, before the API has them.
    pub(super) fn learn(&mut self) {
        if self.undecided.is_empty() {
            return;
        }
        for group in self.undecided.groups() {
            let Some(key) = pod_of(self.compiler.cluster(), &self.long, &group.comment) else { continue };
            if group.is_odd || self.learnt.get(&key).is_some_and(|known| known.order >= group.order) {
                continue;
            }
            let known = self.learnt.get(&key).filter(|known| known.comment == group.comment);
            let before = known.map_or_else(Addresses::default, |known| known.addresses);
            let own = merged(group.addresses, before);
            let (namespace, name) = &key;
            let object = self.compiler.cluster().pod(namespace, name).map(|pod| pod.addresses());
            let addresses = merged(own, object.unwrap_or_default());
            let is_confirmed = !self.learnt.contains_key(&key) && object == Some(addresses);
            self.compiler.set_addresses(namespace, name, addresses);
            let learnt = Learnt { comment: group.comment, addresses: own, order: group.order, is_confirmed };
            self.learnt.insert(key, learnt);
        }
    }

    /// The object of a pod has come again: what was announced counts until it says the same.
    pub(super) fn keep_learnt(&mut self, key: &(String, String)) {
        let (namespace, name) = key;
        let Some(learnt) = self.learnt.get_mut(key) else { return };
        let cluster = self.compiler.cluster();
        let is_its = pod_of(cluster, &self.long, &learnt.comment).as_ref() == Some(key);
        let object = cluster.pod(namespace, name).map(|pod| pod.addresses()).filter(|_| is_its);
        let Some(object) = object else { return drop(self.learnt.remove(key)) };
        let addresses = merged(learnt.addresses, object);
        learnt.is_confirmed = addresses == object;
        if !learnt.is_confirmed {
            self.compiler.set_addresses(namespace, name, addresses);
        } else if !self.undecided.pods().contains(learnt.comment.as_str()) {
            self.learnt.remove(key);
        }
    }

    /// Releases the pods whose rules are in the table.
    pub(super) fn release(&mut self) -> Result<()> {
        if self.undecided.is_empty() {
            return Ok(());
        }
        let decided: Vec<Group> =
            self.undecided.groups().into_iter().filter(|group| self.is_decided(group)).collect();
        for part in decided.chunks(MOST) {
            self.end_former_flows(part)?;
            self.remove(part).context("release pods")?;
            part.iter().for_each(|group| self.undecided.forget(group));
        }
        let waiting = self.undecided.pods();
        self.learnt.retain(|_, learnt| !learnt.is_confirmed || waiting.contains(learnt.comment.as_str()));
        Ok(())
    }

    fn is_decided(&self, group: &Group) -> bool {
        let Some((namespace, name)) = pod_of(self.compiler.cluster(), &self.long, &group.comment) else {
            return false;
        };
        let Some(pod) = self.compiler.cluster().pod(&namespace, &name) else { return false };
        let own: BTreeSet<IpAddr> = pod.addresses().all().collect();
        pod.has_part() && !group.is_odd && group.addresses.all().all(|address| own.contains(&address))
    }

    /// Until now nothing has passed in the directions in which the pod is not decided, so no flow is the pod's own, but for those that the
    /// node has begun. An earlier pod of the address has left the others.
    fn end_former_flows(&mut self, groups: &[Group]) -> Result<()> {
        let addresses: BTreeSet<IpAddr> = groups.iter().flat_map(|group| group.addresses.all()).collect();
        let node = self.hosts.own()?;
        let flows = flows::with_end(&mut self.tracked, &addresses, &node).context("list flows")?;
        conntrack::delete(&mut self.tracked, &flows).context("end the flows of an address's earlier pod")?;
        Ok(())
    }

    /// Removes the elements of both tables in one transaction. Another pod may have one of them by now: that one stays.
    fn remove(&mut self, groups: &[Group]) -> Result<(), Error> {
        let elements: Vec<_> = groups.iter().flat_map(|group| &group.elements).collect();
        let wanted: Vec<(&str, &[u8])> =
            elements.iter().map(|((set, key), _)| (*set, key.as_slice())).collect();
        retry(ATTEMPTS, Error::is_outdated, || {
            let socket = self.owner.socket();
            let generation = generation(socket)?;
            let found = find_elements(socket, announced::TABLE, &wanted)?;
            let copies = find_elements(socket, TABLE, &wanted)?;
            let mut batch = Batch::new();
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
            }
            batch.commit_at(socket, generation)
        })
    }
}
