//! Reads a node: the cache, all objects, and on demand the evidence for life and death of their owners.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_common::spec::{CniError, Context as _};
use ferrule_dhcp::wire::SOCKET;
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::veth;

use crate::alive::{Evidence, State};
use crate::cache::{Cache, Entry};
use crate::model::{Kind, Object, Owner, Sockets};
use crate::named::{Named, add_new};
use crate::read::{READERS, Scene};
use crate::scene::{self, Namespace, Sandbox};
use crate::sight::Sight;

/// The attempts to read all namespaces: a namespace may end, or the process that led to it.
const NAMESPACE_ATTEMPTS: usize = 10;

/// What a sight that is not whole means.
pub const NOT_WHOLE: &str = "this process does not see the node as the node's first process does";

/// Where the node keeps its state.
#[derive(Clone, Debug)]
pub struct Roots {
    /// libcni's folder of results.
    pub results: PathBuf,
    /// Folders of host-local, in addition to those that cached configurations name.
    pub data_dirs: Vec<PathBuf>,
    /// Folders of `tuning`, in addition to those that cached configurations name.
    pub tuning_dirs: Vec<PathBuf>,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
}

impl Roots {
    /// What this process sees of the node.
    fn sight(&self) -> Sight {
        let folders = self.data_dirs.iter().chain(&self.tuning_dirs).chain([&self.results]);
        Sight::of_all(self.init, folders.map(PathBuf::as_path))
    }
}

impl Default for Roots {
    fn default() -> Self {
        Roots {
            results: "/var/lib/cni/results".into(),
            data_dirs: vec!["/var/lib/cni/networks".into()],
            tuning_dirs: vec!["/run/cni/tuning".into()],
            init: None,
        }
    }
}

/// The objects of a node, and the evidence about their owners.
pub struct Node {
    /// Where its state is.
    pub roots: Roots,
    /// The objects.
    pub objects: Vec<Object>,
    /// The evidence; processes and addresses of namespaces only after [`Node::gather`].
    pub evidence: Evidence,
    /// What could not be read.
    pub failures: Vec<String>,
    sight: Sight,
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
    /// Reads the node with a fixed number of dumps. The counters of links make their dump several times as long.
    ///
    /// # Errors
    /// The kernel does not list the links.
    pub fn read(roots: &Roots, sockets: &mut Sockets, with_counters: bool) -> Result<Node, CniError> {
        let sight = roots.sight();
        let cache = Cache::read(&roots.results, &sight);
        let links = match with_counters {
            true => sockets.route.links_with_counters(),
            false => {
                sockets.route.links(None).map(|links| links.into_iter().map(|link| (link, None)).collect())
            }
        };
        let links = links.context(|| "list the links")?;
        let pairs = pairs(links.iter().map(|(link, _)| link));
        let mut scene = Scene {
            data_dirs: folders(&cache, &roots.data_dirs, "host-local", "dataDir"),
            tuning_dirs: folders(&cache, &roots.tuning_dirs, "tuning", "dataDir"),
            dhcp_sockets: folders(&cache, &[SOCKET.into()], "dhcp", "daemonSocketPath"),
            owners: Named::default(),
            networks: Vec::new(),
            sight,
            qdiscs: sockets.route.qdiscs().context(|| "list the qdiscs")?,
            cache,
            links,
        };
        scene.cache.entries.iter().for_each(|entry| add_owner(&mut scene.owners, &entry.owner));
        add_new(
            &mut scene.networks,
            scene.cache.entries.iter().filter_map(|entry| entry.owner.network.clone()),
        );
        let (mut objects, mut failures) = (Vec::new(), Vec::new());
        for (what, read) in READERS {
            match read(sockets, &scene) {
                Ok(found) => {
                    // In this order: the cache first.
                    // The cache has named nearly all of them already.
                    let of_cache = |owner: &Owner| {
                        let mut cached = scene.cache.of(owner.container.as_deref().unwrap_or_default());
                        cached.any(|entry| entry.owner == *owner)
                    };
                    let owners = found.iter().map(|object: &Object| &object.owner);
                    add_new(&mut scene.networks, owners.clone().filter_map(|owner| owner.network.clone()));
                    owners
                        .filter(|owner| !of_cache(owner))
                        .for_each(|owner| add_owner(&mut scene.owners, owner));
                    objects.extend(found);
                }
                Err(error) => failures.push(format!("cannot read {what}: {error}")),
            }
        }
        let alive = |object: &Object| Some((object.owner.container.clone()?, object.alive.clone()?));
        let present = Named::of(objects.iter().filter_map(alive));
        let mut partial = scene.sight.partial.clone();
        let namespaces = known(&mut partial, scene::namespaces(&scene.sight));
        let cache = scene.cache;
        let unlisted = failures.first().cloned();
        let evidence =
            Evidence { cache, pairs, present, namespaces, partial, unlisted, processes: Vec::new() };
        Ok(Node { roots: roots.clone(), objects, evidence, failures, sight: scene.sight })
    }

    /// What this process does not see of the node.
    pub fn unseen(&self) -> Option<String> {
        self.evidence.partial.as_ref().map(|why| format!("{NOT_WHOLE}: {why}"))
    }

    /// Whether something may be dead. To know it, this process would have to see the whole node.
    pub fn has_doubt(&self, states: &[State]) -> bool {
        let is_open = |(state, object): (&State, &Object)| {
            !matches!(state, State::Alive(_)) && object.removal.is_some()
        };
        let is_unknown = |entry: &Entry| entry.sandbox == Sandbox::Unknown;
        states.iter().zip(&self.objects).any(is_open) || self.evidence.cache.entries.iter().any(is_unknown)
    }

    /// Whether the owner of each object is alive, in the order of the objects. Processes and the addresses of namespaces are
    /// looked at only if some owner shows no other sign of life.
    pub fn states(&mut self) -> Vec<State> {
        let states = self.judge_all();
        let is_open = |(state, object): (&State, &Object)| {
            !matches!(state, State::Alive(_)) && object.removal.is_some()
        };
        if !states.iter().zip(&self.objects).any(is_open) {
            return states;
        }
        self.gather();
        self.judge_all()
    }

    fn judge_all(&self) -> Vec<State> {
        let mut of_container: Named<(Vec<&Owner>, Vec<IpAddr>)> = Named::default();
        for object in &self.objects {
            if let Some(container) = &object.owner.container {
                let (owners, addresses) = of_container.entry(container, Default::default);
                add_new(owners, [&object.owner]);
                add_new(addresses, object.addresses.iter().copied());
            }
        }
        let judge = |object: &Object| {
            let container = object.owner.container.as_deref();
            match container.and_then(|container| of_container.get(container)) {
                Some((owners, addresses)) => self.evidence.judge(object, owners, addresses),
                None => self.evidence.judge(object, &[], &[]),
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

    /// Looks at all processes, and at the addresses in all namespaces.
    pub fn gather(&mut self) {
        let mut partial = self.sight.partial.clone();
        self.evidence.processes = known(&mut partial, scene::processes(&self.sight));
        let with_parents = self.objects.iter().any(|object| object.parent.is_some());
        let (mut seen, mut last): (Vec<Namespace>, _) = (Vec::new(), None);
        for _ in 0..NAMESPACE_ATTEMPTS {
            let (mut unread, mut closed) = (None, None);
            let mut namespaces = known(&mut unread, scene::namespaces(&self.sight));
            for namespace in &mut namespaces {
                let former = seen.iter().find(|former| former.inode == namespace.inode);
                let former = former.and_then(|former| former.inside.clone());
                let look =
                    || scene::look_into(namespace, with_parents).map_err(|why| closed = Some(why)).ok();
                namespace.inside = former.or_else(look);
            }
            seen = namespaces;
            if unread.is_some() {
                partial = partial.or(unread);
                break;
            }
            last = closed;
            if last.is_none() {
                break;
            }
        }
        self.evidence.namespaces = seen;
        self.evidence.partial = partial.or(last);
    }

    /// Whether the owner of an object is alive now: reads the evidence again.
    pub fn state_now(&mut self, object: usize) -> State {
        self.sight = self.roots.sight();
        self.evidence.cache = Cache::read(&self.roots.results, &self.sight);
        let links = Socket::route().and_then(|socket| socket.with_whole_dumps().links(None));
        match links {
            Ok(links) => self.evidence.pairs = pairs(links.iter()),
            Err(error) => return State::Unknown(format!("cannot list the links: {error}")),
        }
        self.gather();
        self.judge_all().into_iter().nth(object).unwrap_or(State::Unknown(String::new()))
    }

    /// The attachments of the node: those of the cache, and those that only objects name, each with its objects.
    pub fn attachments(&self) -> Vec<Attached<'_>> {
        let mut found: Vec<Attached<'_>> = Vec::new();
        let mut of_container: Named<Vec<usize>> = Named::default();
        for entry in &self.evidence.cache.entries {
            let container = entry.owner.container.as_deref().unwrap_or_default();
            of_container.entry(container, Vec::new).push(found.len());
            found.push(Attached { owner: entry.owner.clone(), entry: Some(entry), objects: Vec::new() });
        }
        // The most complete owners first, so that the others join them.
        for unknown in 0..=2 {
            for (index, object) in self.objects.iter().enumerate() {
                let owner = &object.owner;
                let Some(container) = &owner.container else { continue };
                if usize::from(owner.network.is_none()) + usize::from(owner.ifname.is_none()) != unknown {
                    continue;
                }
                let mut is_alone = true;
                for at in of_container.get(container).into_iter().flatten() {
                    if found[*at].owner.may_be(owner) {
                        found[*at].objects.push(index);
                        is_alone = false;
                    }
                }
                if is_alone {
                    of_container.entry(container, Vec::new).push(found.len());
                    found.push(Attached { owner: owner.clone(), entry: None, objects: vec![index] });
                }
            }
        }
        found
    }

    /// As [`Node::attachments`]; without `all` not those of `lo`.
    pub fn attachments_to_networks(&self, all: bool) -> impl Iterator<Item = Attached<'_>> {
        let is_shown = move |attached: &Attached<'_>| all || !attached.entry.is_some_and(Entry::is_loopback);
        self.attachments().into_iter().filter(is_shown)
    }

    /// The processes in the namespace of an attachment.
    pub fn processes_of(&self, attached: &Attached<'_>) -> &[u32] {
        match attached.entry.map(|entry| &entry.sandbox) {
            Some(Sandbox::Live(inode)) => {
                let found = self.evidence.namespaces.iter().find(|namespace| namespace.inode == *inode);
                found.map_or(&[], |namespace| &namespace.processes)
            }
            _ => &[],
        }
    }

    /// The objects of these kinds, by address and name: the kernel lists them in the order of its hash tables.
    pub fn objects_of(&self, kinds: &[Kind]) -> Vec<usize> {
        let is_wanted = |(_, object): &(usize, &Object)| kinds.contains(&object.kind);
        let found = self.objects.iter().enumerate().filter(is_wanted).map(|(index, object)| {
            let number = |address: &IpAddr| match address {
                IpAddr::V4(address) => u128::from(address.to_bits()),
                IpAddr::V6(address) => address.to_bits(),
            };
            let address = object.addresses.first().map(number).unwrap_or_default();
            (format!("{address:032x} {} {index}", object.name), index)
        });
        Named::of(found).by_name().copied().collect()
    }
}

/// An attachment with its objects.
#[derive(Debug)]
pub struct Attached<'n> {
    /// Its names.
    pub owner: Owner,
    /// Its entry in the cache.
    pub entry: Option<&'n Entry>,
    /// Its objects, as indexes in [`Node::objects`].
    pub objects: Vec<usize>,
}

/// What has been read; nothing after an error, which is the reason why the evidence is partial.
fn known<T>(partial: &mut Option<String>, read: Result<Vec<T>, String>) -> Vec<T> {
    read.unwrap_or_else(|why| {
        partial.get_or_insert(why);
        Vec::new()
    })
}

fn add_owner(owners: &mut Named<Owner>, owner: &Owner) {
    if owner.attachment().is_some() {
        owners.entry(&owner.to_string(), || owner.clone());
    }
}

fn pairs<'l>(links: impl Iterator<Item = &'l Link>) -> Named<Link> {
    let is_pair = |link: &&Link| [veth::KIND, veth::NETKIT].contains(&link.kind.as_str());
    Named::of(links.filter(is_pair).map(|link| (link.name.clone(), link.clone())))
}

/// The absolute paths of a plugin: the given ones, and the values of its key in cached configurations. Each is for all
/// networks.
fn folders(cache: &Cache, given: &[PathBuf], plugin: &str, key: &str) -> Vec<PathBuf> {
    let configured = cache.values_of(plugin, key).map(Path::new);
    let mut folders = given.to_vec();
    for folder in configured.filter(|folder| folder.is_absolute()) {
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
        }
    }
    folders
}
