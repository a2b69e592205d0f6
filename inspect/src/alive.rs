//! Decides whether the owner of an object is alive. Pure: the evidence is collected before.
//!
//! An owner is dead only if everything that could keep it alive is known and absent. One sign of life is enough for all
//! objects of the container, also on other networks. Without a decision an object is not a leak.

use std::net::IpAddr;

use ferrule_kernel::netlink::Link;
use ferrule_kit::veth;

use crate::cache::{Cache, Entry};
use crate::model::{Object, Owner};
use crate::named::{Named, add_new};
use crate::scene::{Inside, Namespace, Process, Sandbox};

/// What the node says about containers.
#[derive(Debug, Default)]
pub struct Evidence {
    /// libcni's cache.
    pub cache: Cache,
    /// The links of the node that may be a host's end, by name.
    pub pairs: Named<Link>,
    /// The processes of the node.
    pub processes: Vec<Process>,
    /// The live network namespaces, without the host's.
    pub namespaces: Vec<Namespace>,
    /// Why something that is not in the evidence may exist.
    pub partial: Option<String>,
    /// Why objects that may prove a life are not known.
    pub unlisted: Option<String>,
    /// Containers that an object itself proves to be alive, each with the proof.
    pub present: Named<String>,
}

/// Whether an owner is alive, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is, or may be soon.
    Alive(String),
    /// It is not; the proof.
    Dead(String),
    /// Not decided.
    Unknown(String),
}

impl Evidence {
    /// The host's end of an attachment: by the name that Ferrule derives, or by its result.
    pub fn host_end(&self, owner: &Owner) -> Option<&Link> {
        let has = |name: &str, mac: &str| self.pairs.get(name).filter(|link| link.mac.to_string() == mac);
        let cached = self.cache.entries.iter().filter(|entry| entry.owner == *owner);
        let derived = owner.attachment().into_iter().flat_map(|attachment| veth::names(&attachment));
        derived
            .filter_map(|(name, mac)| self.pairs.get(&name).filter(|link| link.mac == mac))
            .next()
            .or_else(|| cached.flat_map(|entry| &entry.host_links).find_map(|(name, mac)| has(name, mac)))
    }

    /// Whether the owner of an object is alive. `others` are the addresses of the container in other objects, and the
    /// owners that these know.
    pub fn judge(&self, object: &Object, owners: &[&Owner], others: &[IpAddr]) -> State {
        if let Some(alive) = &object.alive {
            return State::Alive(alive.clone());
        }
        if let Some(doubt) = &object.doubt {
            return State::Unknown(doubt.clone());
        }
        if object.is_by_address
            && let Some((path, address)) = self.any_holder(&object.addresses, &|_, _| true)
        {
            return State::Alive(format!("namespace {path} has {address}"));
        }
        let Some(container) = object.owner.container.as_deref() else { return self.judge_unnamed(object) };
        let mut addresses = others.to_vec();
        add_new(&mut addresses, object.addresses.iter().copied());
        self.judge_container(container, owners, addresses, object.dead.as_deref())
    }

    fn judge_container(
        &self,
        container: &str,
        owners: &[&Owner],
        mut addresses: Vec<IpAddr>,
        dead: Option<&str>,
    ) -> State {
        if let Some(proof) = self.present.get(container) {
            return State::Alive(proof.clone());
        }
        let mut gone = Vec::new();
        for entry in self.cache.of(container) {
            match &entry.sandbox {
                Sandbox::Live(_) => return State::Alive(format!("namespace {} exists", entry.netns)),
                Sandbox::Gone(proof) => gone.push(proof.clone()),
                Sandbox::Unknown => {
                    return State::Unknown(format!("the state of namespace {:?} is not known", entry.netns));
                }
            }
            add_new(&mut addresses, entry.addresses.iter().copied());
        }
        let in_name = format!("-{container}-");
        if let Some(file) = self.cache.unknown.iter().find(|file| file.contains(&in_name)) {
            return State::Unknown(format!("the cached result {file} cannot be read"));
        }
        if let Some(process) = self.processes.iter().find(|process| process.names(container)) {
            return State::Alive(format!("process {} ({}) works for it", process.pid, process.name));
        }
        let cached = self.cache.of(container).map(|entry| &entry.owner);
        if let Some(link) = owners.iter().copied().chain(cached).find_map(|owner| self.host_end(owner)) {
            return State::Alive(format!("its host link {} exists", link.name));
        }
        if let Some((path, address)) = self.holder(container, &addresses) {
            return State::Alive(format!("namespace {path} has its address {address}"));
        }
        if let Some(doubt) = self.doubt() {
            return State::Unknown(doubt);
        }
        if gone.is_empty() && dead.is_none() && !self.cache.is_readable {
            return State::Unknown("there is no folder of cached results".to_owned());
        }
        gone.dedup();
        let mut proof: Vec<String> = dead.map(str::to_owned).into_iter().collect();
        if gone.is_empty() {
            proof.push("no cache entry".to_owned());
        }
        proof.extend(gone);
        proof.push("no process works for it".to_owned());
        proof.extend(self.no_holder(&addresses));
        State::Dead(proof.join(", "))
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
        if let Some(proof) = &object.dead {
            return self.doubt().map_or_else(|| State::Dead(proof.clone()), State::Unknown);
        }
        let addresses = &object.addresses;
        if addresses.is_empty() {
            return State::Unknown("it names no container".to_owned());
        }
        let has_one = |entry: &&Entry| entry.addresses.iter().any(|address| addresses.contains(address));
        if let Some(entry) = self.cache.entries.iter().find(has_one) {
            return State::Unknown(format!("{} has the address", entry.file.display()));
        }
        if let Some((path, address)) = self.holder("", addresses) {
            return State::Alive(format!("namespace {path} has {address}"));
        }
        if let Some(doubt) = self.doubt() {
            return State::Unknown(doubt);
        }
        let proof: Vec<String> = ["no cache entry has its address".to_owned()]
            .into_iter()
            .chain(self.no_holder(addresses))
            .collect();
        State::Dead(proof.join(", "))
    }

    /// Why a missing sign of life is no proof.
    fn doubt(&self) -> Option<String> {
        let unread = self.namespaces.iter().find(|namespace| namespace.inside.is_none());
        let unread = unread.map(|one| format!("network namespace {} cannot be read", one.path));
        self.partial.clone().or(unread).or_else(|| self.unlisted.clone())
    }

    /// A live namespace that has one of the addresses, unless that is another container's by the cache.
    fn holder(&self, container: &str, addresses: &[IpAddr]) -> Option<(&str, IpAddr)> {
        self.any_holder(addresses, &|namespace, address| {
            !self.cache.entries.iter().any(|entry| {
                entry.owner.container.as_deref() != Some(container)
                    && entry.sandbox == Sandbox::Live(namespace.inode)
                    && entry.addresses.contains(&address)
            })
        })
    }

    /// A live namespace that has one of the addresses and counts.
    fn any_holder(
        &self,
        addresses: &[IpAddr],
        counts: &dyn Fn(&Namespace, IpAddr) -> bool,
    ) -> Option<(&str, IpAddr)> {
        self.namespaces.iter().find_map(|namespace| {
            let has = namespace.inside.as_ref().map_or(&[][..], |inside| &inside.addresses);
            let found =
                addresses.iter().find(|address| has.contains(address) && counts(namespace, **address));
            found.map(|address| (namespace.path.as_str(), *address))
        })
    }

    fn no_holder(&self, addresses: &[IpAddr]) -> Option<String> {
        let all: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        (!all.is_empty()).then(|| format!("no live namespace of it has {}", all.join(" or ")))
    }
}

#[cfg(test)]
mod tests;
