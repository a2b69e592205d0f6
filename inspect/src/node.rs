//! Reads a node: the cache, all objects, and on demand the evidence for life and death of their owners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::veth;

use crate::alive::{Evidence, State};
use crate::cache::Cache;
use crate::model::{Kind, Object, Owner, Sockets};
use crate::read::{READERS, Scene};
use crate::scene::{self, Identity, Namespace, Sandbox};

/// Where the node keeps its state.
#[derive(Clone, Debug)]
pub struct Roots {
    /// libcni's folder of results.
    pub results: PathBuf,
    /// Folders of host-local, in addition to those that cached configurations name.
    pub data_dirs: Vec<PathBuf>,
    /// Folders of `tuning`, in addition to those that cached configurations name.
    pub tuning_dirs: Vec<PathBuf>,
}

impl Default for Roots {
    fn default() -> Self {
        Roots {
            results: "/var/lib/cni/results".into(),
            data_dirs: vec!["/var/lib/cni/networks".into()],
            tuning_dirs: vec!["/run/cni/tuning".into()],
        }
    }
}

/// What was found on a node.
pub struct Node {
    /// Where its state is.
    pub roots: Roots,
    /// The objects.
    pub objects: Vec<Object>,
    /// The evidence; processes and addresses of namespaces only after [`Node::gather`].
    pub evidence: Evidence,
    /// The live network namespaces, without the host's.
    pub namespaces: BTreeMap<u64, Namespace>,
    /// What could not be read.
    pub failures: Vec<String>,
    identity: Identity,
}

/// An object of a dead owner.
#[derive(Debug, PartialEq, Eq)]
pub struct Leak {
    /// Its index in [`Node::objects`].
    pub object: usize,
    /// Why the owner is dead.
    pub proof: String,
}

impl Node {
    /// Reads the node with a fixed number of dumps.
    ///
    /// # Errors
    /// The kernel does not list the links.
    pub fn read(roots: &Roots, sockets: &mut Sockets) -> Result<Node, CniError> {
        let identity = Identity::current();
        let cache = Cache::read(&roots.results, &identity);
        let links = sockets.route.links_with_counters().context(|| "list the links")?;
        let pairs = pairs(links.iter().map(|(link, _)| link.clone()));
        let mut scene = Scene {
            data_dirs: folders(&cache, &roots.data_dirs, "host-local"),
            tuning_dirs: folders(&cache, &roots.tuning_dirs, "tuning"),
            owners: cache.entries.iter().map(|entry| entry.owner.clone()).collect(),
            qdiscs: sockets.route.qdiscs().context(|| "list the qdiscs")?,
            cache,
            links,
        };
        let (mut objects, mut failures) = (Vec::new(), Vec::new());
        for (what, read) in READERS {
            match read(sockets, &scene) {
                Ok(found) => {
                    // In this order: the cache first.
                    scene.owners.extend(
                        found
                            .iter()
                            .map(|object: &Object| &object.owner)
                            .filter(|owner| owner.attachment().is_some())
                            .cloned(),
                    );
                    scene.owners.sort();
                    scene.owners.dedup();
                    objects.extend(found);
                }
                Err(error) => failures.push(format!("cannot read {what}: {error}")),
            }
        }
        let alive = |object: &Object| Some((object.owner.container.clone()?, object.alive.clone()?));
        let present = objects.iter().filter_map(alive).collect();
        let evidence = Evidence { cache: scene.cache, pairs, present, ..Evidence::default() };
        let namespaces = scene::namespaces(&identity);
        Ok(Node { roots: roots.clone(), objects, evidence, namespaces, failures, identity })
    }

    /// Whether the owner of each object is alive, in the order of the objects. Processes and the addresses of namespaces are
    /// looked at only if some owner shows no other sign of life.
    pub fn states(&mut self) -> Vec<State> {
        let states = self.judge_all();
        if !states.iter().any(|state| matches!(state, State::Dead(_))) {
            return states;
        }
        self.gather();
        self.judge_all()
    }

    fn judge_all(&self) -> Vec<State> {
        let mut of_container: BTreeMap<&str, (Vec<&Owner>, BTreeSet<IpAddr>)> = BTreeMap::new();
        for object in &self.objects {
            if let Some(container) = &object.owner.container {
                let (owners, addresses) = of_container.entry(container).or_default();
                if !owners.contains(&&object.owner) {
                    owners.push(&object.owner);
                }
                addresses.extend(&object.addresses);
            }
        }
        let judge = |object: &Object| {
            let known = object.owner.container.as_deref().and_then(|container| of_container.get(container));
            match known {
                Some((owners, addresses)) => self.evidence.judge(object, owners, addresses),
                None => self.evidence.judge(object, &[], &BTreeSet::new()),
            }
        };
        self.objects.iter().map(judge).collect()
    }

    /// The objects of dead owners that can be removed. `states` are those of [`Node::states`].
    pub fn leaks_of(&self, states: &[State]) -> Vec<Leak> {
        let leak = |(object, state): (usize, &State)| match state {
            State::Dead(proof) if self.objects.get(object)?.removal.is_some() => {
                Some(Leak { object, proof: proof.clone() })
            }
            _ => None,
        };
        states.iter().enumerate().filter_map(leak).collect()
    }

    /// Looks at all processes, and at the addresses of namespaces that it has not looked at yet.
    pub fn gather(&mut self) {
        self.evidence.processes = scene::processes();
        self.namespaces = scene::namespaces(&self.identity);
        let live = &self.namespaces;
        self.evidence.namespaces.retain(|inode, _| live.contains_key(inode));
        self.evidence.unread.clear();
        for (inode, namespace) in live {
            if self.evidence.namespaces.contains_key(inode) {
                continue;
            }
            match scene::addresses_in(namespace) {
                Some(addresses) => {
                    drop(self.evidence.namespaces.insert(*inode, (namespace.path.clone(), addresses)));
                }
                None => self.evidence.unread.push(*inode),
            }
        }
        if !self.evidence.unread.is_empty() {
            // Those that have ended since keep nobody alive.
            let now = scene::namespaces(&self.identity);
            self.evidence.unread.retain(|inode| now.contains_key(inode));
        }
    }

    /// Whether the owner of an object is alive now: reads the evidence again.
    pub fn state_now(&mut self, object: usize) -> State {
        self.evidence.cache = Cache::read(&self.roots.results, &self.identity);
        let links = Socket::route().and_then(|mut socket| socket.links(None));
        match links {
            Ok(links) => self.evidence.pairs = pairs(links.into_iter()),
            Err(error) => return State::Unknown(format!("cannot list the links: {error}")),
        }
        self.gather();
        self.judge_all().into_iter().nth(object).unwrap_or(State::Unknown(String::new()))
    }

    /// The attachments of the node: those of the cache, and those that only objects name, each with its objects.
    pub fn attachments(&self) -> Vec<Attached<'_>> {
        let mut found: Vec<Attached<'_>> = self
            .evidence
            .cache
            .entries
            .iter()
            .map(|entry| Attached { owner: entry.owner.clone(), entry: Some(entry), objects: Vec::new() })
            .collect();
        let mut unknown = Vec::new();
        for (index, object) in self.objects.iter().enumerate() {
            if object.owner.container.is_none() {
                continue;
            }
            let mut any = false;
            for attached in found.iter_mut().filter(|attached| attached.owner.may_be(&object.owner)) {
                attached.objects.push(index);
                any = true;
            }
            if !any {
                unknown.push(index);
            }
        }
        // The most complete owners first, so that the others join them.
        let known = |index: &usize| {
            let owner = &self.objects[*index].owner;
            usize::from(owner.network.is_none()) + usize::from(owner.ifname.is_none())
        };
        unknown.sort_by_key(known);
        for index in unknown {
            let owner = &self.objects[index].owner;
            match found.iter_mut().find(|attached| attached.entry.is_none() && attached.owner.may_be(owner)) {
                Some(attached) => attached.objects.push(index),
                None => found.push(Attached { owner: owner.clone(), entry: None, objects: vec![index] }),
            }
        }
        found
    }

    /// The processes in the namespace of an attachment.
    pub fn processes_of(&self, attached: &Attached<'_>) -> &[u32] {
        match attached.entry.map(|entry| &entry.sandbox) {
            Some(Sandbox::Live(inode)) => {
                self.namespaces.get(inode).map_or(&[], |namespace| &namespace.processes)
            }
            _ => &[],
        }
    }

    /// The states of the objects of one kind, or of all objects without a container.
    pub fn objects_of(&self, kinds: &[Kind]) -> Vec<usize> {
        let is_wanted = |(_, object): &(usize, &Object)| kinds.contains(&object.kind);
        self.objects.iter().enumerate().filter(is_wanted).map(|(index, _)| index).collect()
    }
}

/// An attachment with its objects.
#[derive(Debug)]
pub struct Attached<'n> {
    /// Its names.
    pub owner: Owner,
    /// Its entry in the cache.
    pub entry: Option<&'n crate::cache::Entry>,
    /// Its objects, as indexes in [`Node::objects`].
    pub objects: Vec<usize>,
}

fn pairs(links: impl Iterator<Item = Link>) -> BTreeMap<String, Link> {
    let is_pair = |link: &Link| [veth::KIND, veth::NETKIT].contains(&link.kind.as_str());
    links.filter(is_pair).map(|link| (link.name.clone(), link)).collect()
}

/// The folders of a plugin: the given ones, and those in cached configurations. host-local's key means a folder for all
/// networks, and so does tuning's.
fn folders(cache: &Cache, given: &[PathBuf], plugin: &str) -> Vec<PathBuf> {
    let configured = cache.entries.iter().flat_map(|entry| entry.values_of(plugin, "dataDir")).map(Path::new);
    let mut folders = given.to_vec();
    for folder in configured.filter(|folder| folder.is_absolute()) {
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
        }
    }
    folders
}
