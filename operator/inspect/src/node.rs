//! Reads a node: the cache, all objects, and on demand the evidence for life and death of their owners.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_common::spec::{CniError, Context as _};
use ferrule_blocks::wire::FOLDER;
use ferrule_dhcp::wire::SOCKET;
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::presence::Presence;
use ferrule_kit::veth;
use itertools::Itertools as _;
use serde::Serialize;

use crate::alive::{Evidence, Judge};
use crate::cache::{Cache, Entry, Pairs};
use crate::model::{Kind, Object, Owner, Sockets, State};
use crate::read::{READERS, Scene};
use crate::scene::{self, Names};
use crate::sight::{Sight, host_name};

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
    /// Folders of `flannel`, in addition to those that cached configurations name.
    pub flannel_dirs: Vec<PathBuf>,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
}

impl Roots {
    /// What this process sees of the node.
    pub(crate) fn sight(&self) -> Sight {
        let folders = self.data_dirs.iter().chain(&self.tuning_dirs).chain(&self.flannel_dirs);
        let folders = folders.chain([&self.results]);
        Sight::of_all(self.init, folders.map(PathBuf::as_path))
    }
}

impl Default for Roots {
    fn default() -> Self {
        Roots {
            results: "/var/lib/cni/results".into(),
            data_dirs: vec!["/var/lib/cni/networks".into()],
            tuning_dirs: vec!["/run/cni/tuning".into()],
            flannel_dirs: vec!["/var/lib/cni/flannel".into()],
            init: None,
        }
    }
}

/// The objects of a node, and the evidence about their owners.
pub struct Node {
    /// Where its state is.
    pub roots: Roots,
    /// Its host name.
    pub host: String,
    /// The objects. Their states are known after [`Node::judge`].
    pub objects: Vec<Object>,
    /// The evidence; processes and addresses of namespaces only after `gather`.
    pub evidence: Evidence,
    /// What could not be read.
    pub failures: Vec<String>,
    /// What could not be read of containers, whose objects stay therefore.
    pub left_out: Vec<String>,
    sight: Sight,
    /// The objects of each container, as indexes in `objects`.
    of_container: HashMap<Option<String>, Vec<usize>>,
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
        let mut data_dirs = folders(&cache, &roots.data_dirs, "host-local", "dataDir");
        data_dirs.extend(folders(&cache, &[], "shared", "dataDir"));
        let mut scene = Scene {
            data_dirs,
            tuning_dirs: folders(&cache, &roots.tuning_dirs, "tuning", "dataDir"),
            flannel_dirs: folders(&cache, &roots.flannel_dirs, "flannel", "dataDir"),
            ledgers: folders(&cache, &[FOLDER.into()], "shared", "ledgers"),
            dhcp_sockets: folders(&cache, &[SOCKET.into()], "dhcp", "daemonSocketPath"),
            owners: cache.entries.iter().map(|entry| entry.owner.clone()).collect(),
            sight,
            qdiscs: sockets.route.qdiscs().context(|| "list the qdiscs")?,
            pairs: pairs(links.iter().map(|(link, _)| link)),
            cache,
            links,
        };
        let (mut objects, mut failures) = (Vec::new(), Vec::new());
        for (what, read) in READERS {
            match read(sockets, &scene) {
                Ok(found) => {
                    scene.owners.extend(found.iter().map(|object| object.owner.clone()));
                    objects.extend(found);
                }
                Err(error) => failures.push(format!("cannot read {what}: {error}")),
            }
        }
        let Scene { sight, cache, pairs, .. } = scene;
        let (namespaces, unread) = known(scene::namespaces(&sight));
        let (partial, unlisted) = (sight.partial.clone().or(unread), failures.first().cloned());
        let evidence = Evidence { cache, pairs, namespaces, partial, unlisted, processes: Vec::new() };
        let containers = objects.iter().enumerate().map(|(at, object)| (object.owner.container.clone(), at));
        let of_container = containers.into_group_map();
        let (roots, host, left_out) = (roots.clone(), host_name(), Vec::new());
        Ok(Node { roots, host, objects, evidence, failures, left_out, sight, of_container })
    }

    /// What this process does not see of the node.
    pub fn unseen(&self) -> Option<String> {
        self.evidence.partial.as_ref().map(|why| format!("{NOT_WHOLE}: {why}"))
    }

    /// Whether something may be dead. To know it, this process would have to see the whole node.
    pub fn has_doubt(&self) -> bool {
        let is_unknown = |entry: &Entry| entry.netns_state == Presence::Unknown;
        self.objects.iter().any(Object::may_be_leak) || self.evidence.cache.entries.iter().any(is_unknown)
    }

    /// Decides whether the owner of each object is alive. Looks at processes and at the addresses of namespaces only if some owner
    /// shows no other sign of life.
    pub fn judge(&mut self) {
        let all: Vec<usize> = (0..self.objects.len()).collect();
        self.judge_by_evidence(&all);
        let suspects: Vec<usize> = all.iter().copied().filter(|at| self.objects[*at].may_be_leak()).collect();
        if !suspects.is_empty() {
            self.gather(&suspects);
            self.judge_by_evidence(&all);
        }
    }

    fn judge_by_evidence(&mut self, objects: &[usize]) {
        let judge = Judge::new(&self.evidence);
        let state = |at: &usize| {
            let object = &self.objects[*at];
            let siblings = self.of_container.get(&object.owner.container);
            judge.judge(object, siblings.into_iter().flatten().map(|sibling| &self.objects[*sibling]))
        };
        let states: Vec<State> = objects.iter().map(state).collect();
        objects.iter().zip(states).for_each(|(at, state)| self.objects[*at].state = state);
    }

    /// The objects of dead owners that can be removed, as indexes in [`Node::objects`].
    pub fn leaks(&self) -> Vec<usize> {
        let is_leak = |object: &Object| object.may_be_leak() && matches!(object.state, State::Dead(_));
        (0..self.objects.len()).filter(|index| is_leak(&self.objects[*index])).collect()
    }

    /// Looks at all processes for signs of these objects' owners, and at the addresses in all namespaces.
    fn gather(&mut self, objects: &[usize]) {
        let containers = objects.iter().filter_map(|at| self.objects[*at].owner.container.clone());
        let names: Names = containers.collect();
        let (processes, unread) = known(scene::processes(&self.sight, &names));
        let with_parents = self.objects.iter().any(|object| object.parent.is_some());
        let (namespaces, closed) = known(scene::read_namespaces(&self.sight, with_parents));
        self.evidence.partial = self.sight.partial.clone().or(unread).or(closed);
        (self.evidence.processes, self.evidence.namespaces) = (processes, namespaces);
        self.left_out = self.evidence.left_out();
    }

    /// Whether the owners of these objects are alive now: reads the evidence again.
    pub fn judge_again(&mut self, objects: &[usize]) {
        self.sight = self.roots.sight();
        self.evidence.cache = Cache::read(&self.roots.results, &self.sight);
        match Socket::route().and_then(|socket| socket.with_whole_dumps().links(None)) {
            Ok(links) => {
                self.evidence.pairs = pairs(links.iter());
                self.gather(objects);
                self.judge_by_evidence(objects);
            }
            Err(error) => {
                let state = State::Unknown(format!("cannot list the links: {error}"));
                objects.iter().for_each(|at| self.objects[*at].state = state.clone());
            }
        }
    }

    /// The attachments of the node: those of the cache, and those that only objects name, each with its objects. Without `all` not
    /// those of `lo`.
    pub fn attachments(&self, all: bool) -> Vec<Attached<'_>> {
        let entries = self.evidence.cache.entries.iter();
        let mut found: Vec<(&Owner, Option<&Entry>, Vec<&Object>)> =
            entries.map(|entry| (&entry.owner, Some(entry), Vec::new())).collect();
        let owners = found.iter().enumerate().map(|(at, (owner, ..))| (&owner.container, at));
        let mut of_container = owners.into_group_map();
        let objects = self.objects.iter().filter(|object| object.owner.container.is_some());
        // The most complete owners first, so that the others join them.
        for object in objects.sorted_by_key(|object| object.owner.unknown()) {
            let owner = &object.owner;
            let same = of_container.entry(&owner.container).or_default();
            let mut joined: Vec<usize> =
                same.iter().copied().filter(|at| found[*at].0.may_be(owner)).collect();
            if joined.is_empty() {
                joined.push(found.len());
                same.push(found.len());
                found.push((owner, None, Vec::new()));
            }
            joined.into_iter().for_each(|at| found[at].2.push(object));
        }
        found.retain(|(_, entry, _)| all || !entry.is_some_and(Entry::is_loopback));
        found.sort_by_key(|(owner, entry, _)| (entry.is_none(), &owner.network, &owner.container));
        found.into_iter().map(|(owner, entry, objects)| self.attached(owner, entry, objects)).collect()
    }

    fn attached<'n>(
        &'n self,
        owner: &'n Owner,
        entry: Option<&'n Entry>,
        objects: Vec<&'n Object>,
    ) -> Attached<'n> {
        let state = match (entry.map(Entry::state), objects.first()) {
            (Some(state @ State::Alive(_)), _) | (Some(state), None) => state.word(),
            (_, object) => object.map_or("unknown", |object| object.state.word()),
        };
        let processes = entry.map(|entry| {
            let mut namespaces = self.evidence.namespaces.iter();
            let found = namespaces.find(|namespace| entry.netns_state.inode() == Some(namespace.inode));
            found.map_or(&[][..], |namespace| &namespace.processes)
        });
        let cached = entry.map(|entry| entry.addresses.clone()).filter(|cached| !cached.is_empty());
        let of_objects = || objects.iter().flat_map(|object| &object.addresses).copied().collect();
        let addresses = cached.unwrap_or_else(of_objects);
        Attached { owner, state, addresses, entry, processes, objects }
    }

    /// The objects of these kinds, by address and name: the kernel lists them in the order of its hash tables.
    pub fn objects_of(&self, kinds: &[Kind]) -> Vec<&Object> {
        let found = self.objects.iter().filter(|object| kinds.contains(&object.kind));
        found.sorted_by_key(|object| (object.addresses.first(), &object.name)).collect()
    }
}

/// An attachment with its objects. Serialised, it is an attachment in the JSON of the views.
#[derive(Serialize)]
pub struct Attached<'n> {
    /// Its names.
    #[serde(flatten)]
    pub owner: &'n Owner,
    /// Its state in one word.
    pub state: &'static str,
    /// Its addresses: those of its result, or of its objects.
    pub addresses: BTreeSet<IpAddr>,
    /// Its entry in the cache.
    #[serde(flatten)]
    pub entry: Option<&'n Entry>,
    /// The processes in its namespace, if it has an entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<&'n [u32]>,
    /// Its objects.
    pub objects: Vec<&'n Object>,
}

impl Attached<'_> {
    /// The rates in bits per second to and from the container, such as `80M/40M`; `-` for no limit.
    pub fn limits(&self) -> String {
        let limits = [Kind::Limit, Kind::Ifb].map(|kind| self.joined(kind, |object| object.rate("")));
        match limits.iter().all(String::is_empty) {
            true => String::new(),
            false => limits.map(|rate| if rate.is_empty() { "-".to_owned() } else { rate }).join("/"),
        }
    }

    /// A text for each object of a kind.
    pub fn joined(&self, kind: Kind, text: impl Fn(&Object) -> String) -> String {
        self.objects.iter().filter(|object| kind == object.kind).map(|object| text(object)).join(",")
    }
}

/// What has been read; nothing after an error, which is the reason why the evidence is partial.
fn known<T>(read: Result<Vec<T>, String>) -> (Vec<T>, Option<String>) {
    read.map_or_else(|why| (Vec::new(), Some(why)), |found| (found, None))
}

fn pairs<'l>(links: impl Iterator<Item = &'l Link>) -> Pairs {
    let is_pair = |link: &&Link| [veth::KIND, veth::NETKIT].contains(&link.kind.as_str());
    links.filter(is_pair).map(|link| (link.name.clone(), link.clone())).collect()
}

/// The absolute paths of a plugin: the given ones, and the values of its key in cached configurations. Each is for all
/// networks.
fn folders(cache: &Cache, given: &[PathBuf], plugin: &str, key: &str) -> BTreeSet<PathBuf> {
    let configured = cache.entries.iter().flat_map(|entry| entry.values_of(plugin, key)).map(Path::new);
    configured.filter(|folder| folder.is_absolute()).map(Path::to_owned).chain(given.to_vec()).collect()
}
