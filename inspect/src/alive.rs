//! Decides whether the owner of an object is alive. Pure: the evidence is collected before.
//!
//! An owner is dead only if everything that could keep it alive is known and absent. One sign of life is enough for all
//! objects of the container, also on other networks. Without a decision an object is not a leak.

use std::collections::BTreeSet;
use std::net::IpAddr;

use itertools::Itertools as _;

use crate::cache::{Cache, Pairs};
use crate::model::{Object, Owner, State};
use crate::scene::{Inside, Namespace, Process};

/// What the node says about containers.
#[derive(Debug, Default)]
pub struct Evidence {
    /// libcni's cache.
    pub cache: Cache,
    /// The links of the node that may be a host's end, by name.
    pub pairs: Pairs,
    /// The processes of the node.
    pub processes: Vec<Process>,
    /// The live network namespaces, without the host's.
    pub namespaces: Vec<Namespace>,
    /// Why something that is not in the evidence may exist.
    pub partial: Option<String>,
    /// Why objects that may prove a life are not known.
    pub unlisted: Option<String>,
}

impl Evidence {
    /// Whether the owner of an object is alive. `siblings` are all objects of its container.
    pub fn judge(&self, object: &Object, siblings: &[&Object]) -> State {
        if let Some(sign @ (State::Alive(_) | State::Unknown(_))) = &object.sign {
            return sign.clone();
        }
        let alive = if object.is_by_address { self.any_user(&object.addresses, |_, _| true) } else { None };
        alive.unwrap_or_else(|| match object.owner.container.as_deref() {
            Some(container) => self.judge_container(container, siblings, object),
            None => self.judge_unnamed(object),
        })
    }

    fn judge_container(&self, container: &str, siblings: &[&Object], object: &Object) -> State {
        let mut signs = siblings.iter().filter_map(|sibling| sibling.sign.as_ref());
        if let Some(sign) = signs.find(|sign| matches!(sign, State::Alive(_))) {
            return sign.clone();
        }
        let mut addresses = object.addresses.clone();
        addresses.extend(siblings.iter().flat_map(|sibling| &sibling.addresses));
        let mut owners: BTreeSet<&Owner> = siblings.iter().map(|sibling| &sibling.owner).collect();
        let mut gone = Vec::new();
        for entry in self.cache.of(container) {
            match entry.state() {
                State::Dead(proof) => gone.push(proof),
                state => return state,
            }
            addresses.extend(&entry.addresses);
            owners.insert(&entry.owner);
        }
        let in_name = format!("-{container}-");
        if let Some(file) = self.cache.unknown.iter().find(|file| file.contains(&in_name)) {
            return State::Unknown(format!("the cached result {file} cannot be read"));
        }
        if let Some(process) = self.processes.iter().find(|process| process.names(container)) {
            return State::Alive(format!("process {} ({}) works for it", process.pid, process.name));
        }
        if let Some((link, _)) = owners.into_iter().find_map(|owner| self.cache.host_end(&self.pairs, owner))
        {
            return State::Alive(format!("its host link {} exists", link.name));
        }
        if let Some(state) = self.user(Some(container), &addresses).or_else(|| self.doubt()) {
            return state;
        }
        let dead = object.sign.as_ref().map(State::reason);
        if gone.is_empty() && dead.is_none() && !self.cache.is_readable {
            return State::Unknown("there is no folder of cached results".to_owned());
        }
        gone.dedup();
        if gone.is_empty() {
            gone.push("no cache entry".to_owned());
        }
        let proof = dead.map(str::to_owned).into_iter().chain(gone);
        proven(proof.chain(["no process works for it".to_owned()]), &addresses)
    }

    /// For an object that names no container: its addresses decide, or its own proof of life or death.
    fn judge_unnamed(&self, object: &Object) -> State {
        if let Some(process) = self.processes.iter().find(|process| process.is_on_host) {
            return State::Unknown(format!("process {} ({}) is a CNI plugin", process.pid, process.name));
        }
        if !self.cache.is_readable || !self.cache.unknown.is_empty() {
            return State::Unknown("not all cached results can be read".to_owned());
        }
        if let Some(parent) = object.parent {
            let may_use = |inside: &Inside| inside.parents.contains(&parent);
            if let Some(user) = self.namespaces.iter().find(|one| one.inside.as_ref().is_none_or(may_use)) {
                return State::Unknown(format!("namespace {} may have a link on it", user.path));
            }
        }
        if let Some(dead) = &object.sign {
            return self.doubt().unwrap_or_else(|| dead.clone());
        }
        let addresses = &object.addresses;
        if addresses.is_empty() {
            return State::Unknown("it names no container".to_owned());
        }
        if let Some(entry) = self.cache.entries.iter().find(|entry| !entry.addresses.is_disjoint(addresses)) {
            return State::Unknown(format!("{} has the address", entry.file.display()));
        }
        let state = self.user(None, addresses).or_else(|| self.doubt());
        state.unwrap_or_else(|| proven(["no cache entry has its address".to_owned()], addresses))
    }

    /// Why a missing sign of life is no proof.
    fn doubt(&self) -> Option<State> {
        let unread = self.namespaces.iter().find(|namespace| namespace.inside.is_none());
        let unread = unread.map(|one| format!("network namespace {} cannot be read", one.path));
        self.partial.clone().or(unread).or_else(|| self.unlisted.clone()).map(State::Unknown)
    }

    /// A live namespace has one of the addresses, unless that is another container's by the cache.
    fn user(&self, container: Option<&str>, addresses: &BTreeSet<IpAddr>) -> Option<State> {
        self.any_user(addresses, |namespace, address| {
            !self.cache.entries.iter().any(|entry| {
                entry.owner.container.as_deref() != container
                    && entry.netns_state.inode() == Some(namespace.inode)
                    && entry.addresses.contains(&address)
            })
        })
    }

    /// A live namespace has one of the addresses, and counts.
    fn any_user(
        &self,
        addresses: &BTreeSet<IpAddr>,
        counts: impl Fn(&Namespace, IpAddr) -> bool,
    ) -> Option<State> {
        self.namespaces.iter().find_map(|namespace| {
            let mut has = namespace.inside.iter().flat_map(|inside| &inside.addresses);
            let address = has.find(|has| addresses.contains(has) && counts(namespace, **has))?;
            Some(State::Alive(format!("namespace {} has {address}", namespace.path)))
        })
    }
}

/// Nothing shows a life, and no live namespace has one of the addresses.
fn proven(proof: impl IntoIterator<Item = String>, addresses: &BTreeSet<IpAddr>) -> State {
    let all = addresses.iter().join(" or ");
    let of_addresses = (!all.is_empty()).then(|| format!("no live namespace of it has {all}"));
    State::Dead(proof.into_iter().chain(of_addresses).join(", "))
}

#[cfg(test)]
mod tests;
