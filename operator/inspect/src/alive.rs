//! Decides whether the owner of an object is alive. Pure: the evidence is collected before.
//!
//! An owner is dead only if everything that could keep it alive is known and absent. One sign of life is enough for all
//! objects of the container, also on other networks. Without a decision an object is not a leak.

mod doubt;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

use itertools::Itertools as _;

use self::doubt::Doubts;
use crate::cache::{Cache, Entry, Pairs};
use crate::model::{Object, Owner, State};
use crate::scene::{Namespace, Process};

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
    /// What could not be read, with its container if that is known. Only objects of that container, or of any, are in doubt.
    pub fn left_out(&self) -> Vec<String> {
        Doubts::new(self).named
    }
}

/// Judges objects by evidence, by means of an index: a node may have 100,000 leaks.
pub struct Judge<'e> {
    evidence: &'e Evidence,
    users: HashMap<IpAddr, Vec<&'e Namespace>>,
    cached: HashMap<IpAddr, Vec<&'e Entry>>,
    workers: HashMap<&'e str, &'e Process>,
    doubts: Doubts,
    containers: RefCell<HashMap<String, Rc<Verdict>>>,
}

/// Of a container: its state, or what proves its death if no object contradicts.
type Verdict = Result<Death, State>;

struct Death {
    proofs: Vec<String>,
    addresses: BTreeSet<IpAddr>,
}

impl<'e> Judge<'e> {
    /// Makes the index.
    pub fn new(evidence: &'e Evidence) -> Judge<'e> {
        let users = evidence.namespaces.iter().flat_map(|namespace| {
            let addresses = namespace.inside.iter().flat_map(|inside| &inside.addresses);
            addresses.map(move |address| (*address, namespace))
        });
        let entries = evidence.cache.entries.iter();
        let cached = entries.flat_map(|entry| entry.addresses.iter().map(move |address| (*address, entry)));
        let processes = evidence.processes.iter().rev();
        let workers =
            processes.flat_map(|process| process.works_for.iter().map(move |name| (name.as_str(), process)));
        Judge {
            evidence,
            users: users.into_group_map(),
            cached: cached.into_group_map(),
            workers: workers.collect(),
            doubts: Doubts::new(evidence),
            containers: RefCell::default(),
        }
    }

    /// Whether the owner of an object is alive. `siblings` are all objects of its container, with this one, and the same at each call.
    pub fn judge<'o>(&self, object: &Object, siblings: impl Iterator<Item = &'o Object> + Clone) -> State {
        if let Some(sign @ (State::Alive(_) | State::Unknown(_))) = &object.sign {
            return sign.clone();
        }
        let alive = if object.is_by_address { self.any_user(&object.addresses, |_, _| true) } else { None };
        alive.unwrap_or_else(|| match object.owner.container.as_deref() {
            Some(container) => self.judge_container(container, siblings, object),
            None => self.judge_unnamed(object),
        })
    }

    fn judge_container<'o>(
        &self,
        container: &str,
        siblings: impl Iterator<Item = &'o Object> + Clone,
        object: &Object,
    ) -> State {
        let known = self.containers.borrow().get(container).cloned();
        let verdict = known.unwrap_or_else(|| {
            let verdict = Rc::new(self.verdict(container, siblings));
            self.containers.borrow_mut().insert(container.to_owned(), Rc::clone(&verdict));
            verdict
        });
        let Death { proofs, addresses } = match &*verdict {
            Err(state) => return state.clone(),
            Ok(death) => death,
        };
        let dead = object.sign.as_ref().map(State::reason);
        if proofs.is_empty() && dead.is_none() && !self.evidence.cache.is_readable {
            return State::Unknown("there is no folder of cached results".to_owned());
        }
        let no_entry = proofs.is_empty().then_some("no cache entry");
        let proofs = proofs.iter().map(String::as_str);
        proven(dead.into_iter().chain(proofs).chain(no_entry).chain(["no process works for it"]), addresses)
    }

    fn verdict<'o>(&self, container: &str, siblings: impl Iterator<Item = &'o Object> + Clone) -> Verdict {
        let cache = &self.evidence.cache;
        let mut signs = siblings.clone().filter_map(|sibling| sibling.sign.as_ref());
        if let Some(sign) = signs.find(|sign| matches!(sign, State::Alive(_))) {
            return Err(sign.clone());
        }
        let mut addresses: BTreeSet<IpAddr> =
            siblings.clone().flat_map(|sibling| sibling.addresses.iter().copied()).collect();
        let mut owners: BTreeSet<&Owner> = siblings.map(|sibling| &sibling.owner).collect();
        let mut proofs = Vec::new();
        for entry in cache.of(container) {
            match entry.state() {
                State::Dead(proof) => proofs.push(proof),
                state => return Err(state),
            }
            addresses.extend(&entry.addresses);
            owners.insert(&entry.owner);
        }
        let in_name = format!("-{container}-");
        if let Some(file) = cache.unknown.iter().find(|file| file.contains(&in_name)) {
            return Err(State::Unknown(format!("the cached result {file} cannot be read")));
        }
        if let Some(process) = self.workers.get(container) {
            return Err(State::Alive(format!("process {} ({}) works for it", process.pid, process.name)));
        }
        let mut owners = owners.into_iter();
        if let Some((link, _)) = owners.find_map(|owner| cache.host_end(&self.evidence.pairs, owner)) {
            return Err(State::Alive(format!("its host link {} exists", link.name)));
        }
        if let Some(state) = self.user(Some(container), &addresses).or_else(|| self.doubt(Some(container))) {
            return Err(state);
        }
        proofs.dedup();
        Ok(Death { proofs, addresses })
    }

    /// For an object that names no container: its addresses decide, or its own proof of life or death.
    fn judge_unnamed(&self, object: &Object) -> State {
        let Evidence { cache, processes, namespaces, .. } = self.evidence;
        if let Some(process) = processes.iter().find(|process| process.is_on_host) {
            return State::Unknown(format!("process {} ({}) is a CNI plugin", process.pid, process.name));
        }
        if !cache.is_readable || !cache.unknown.is_empty() {
            return State::Unknown("not all cached results can be read".to_owned());
        }
        if let Some(parent) = object.parent {
            let uses = |one: &&Namespace| one.inside.iter().any(|inside| inside.parents.contains(&parent));
            if let Some(user) = namespaces.iter().find(uses) {
                return State::Unknown(format!("namespace {} may have a link on it", user.path));
            }
        }
        if let Some(dead) = &object.sign {
            return self.doubt(None).unwrap_or_else(|| dead.clone());
        }
        let addresses = &object.addresses;
        if addresses.is_empty() {
            return State::Unknown("it names no container".to_owned());
        }
        if let Some(entry) = addresses.iter().find_map(|address| self.cached.get(address)?.first()) {
            return State::Unknown(format!("{} has the address", entry.file.display()));
        }
        let state = self.user(None, addresses).or_else(|| self.doubt(None));
        state.unwrap_or_else(|| proven(["no cache entry has its address"], addresses))
    }

    /// Why a missing sign of life is no proof for this container, or for one without a cache entry.
    fn doubt(&self, container: Option<&str>) -> Option<State> {
        let Evidence { partial, unlisted, .. } = self.evidence;
        let doubt = partial.as_ref().or_else(|| self.doubts.of(container)).or(unlisted.as_ref());
        doubt.cloned().map(State::Unknown)
    }

    /// A live namespace has one of the addresses, unless that is another container's by the cache.
    fn user(&self, container: Option<&str>, addresses: &BTreeSet<IpAddr>) -> Option<State> {
        self.any_user(addresses, |namespace, address| {
            !self.cached.get(&address).into_iter().flatten().any(|entry| {
                entry.owner.container.as_deref() != container
                    && entry.netns_state.inode() == Some(namespace.inode)
            })
        })
    }

    /// A live namespace has one of the addresses, and counts.
    fn any_user(
        &self,
        addresses: &BTreeSet<IpAddr>,
        counts: impl Fn(&Namespace, IpAddr) -> bool,
    ) -> Option<State> {
        addresses.iter().find_map(|address| {
            let mut users = self.users.get(address)?.iter();
            let user = users.find(|namespace| counts(namespace, *address))?;
            Some(State::Alive(format!("namespace {} has {address}", user.path)))
        })
    }
}

/// Nothing shows a life, and no live namespace has one of the addresses.
fn proven<'p>(proof: impl IntoIterator<Item = &'p str>, addresses: &BTreeSet<IpAddr>) -> State {
    let all = addresses.iter().join(" or ");
    let of_addresses = (!all.is_empty()).then(|| format!("no live namespace of it has {all}"));
    State::Dead(proof.into_iter().map(str::to_owned).chain(of_addresses).join(", "))
}

#[cfg(test)]
mod tests;
