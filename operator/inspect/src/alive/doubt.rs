//! Unreadable namespaces and processes, and the containers that are in doubt because of them.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::Evidence;
use crate::cache::Entry;
use crate::scene::{Names, Namespace, Process};

/// The doubts of a node.
#[derive(Default)]
pub(super) struct Doubts {
    /// What could not be read, with its containers.
    pub(super) named: Vec<String>,
    /// Why no container is known to be dead, and none that has a cache entry if nothing else is in doubt.
    any: Option<String>,
    /// The same of single containers.
    of: HashMap<String, String>,
}

impl Doubts {
    /// A container can make its namespace and its processes hard to read. That is a doubt for its own objects only: its cache entry
    /// leads to the namespace, or its control groups name it.
    pub(super) fn new(evidence: &Evidence) -> Doubts {
        let unread: Vec<_> = evidence.namespaces.iter().filter(|one| is_unread(one)).collect();
        let unjudged: Vec<_> = evidence.processes.iter().filter(|one| is_unjudged(one)).collect();
        let mut doubts = Doubts::default();
        if unread.is_empty() && unjudged.is_empty() {
            return doubts;
        }
        let groups = Groups::new(&evidence.cache.entries);
        let processes: HashMap<u32, &Process> = evidence.processes.iter().map(|one| (one.pid, one)).collect();
        for namespace in unread {
            let owners = owners(namespace, &evidence.cache.entries, &groups, &processes);
            // All that one of its lists had counts already. No name of a container leads to the rest.
            let is_partial = namespace.inside.is_some();
            if !(is_partial && owners.is_empty()) {
                let why = namespace.unread.as_deref().unwrap_or("it has not been read");
                doubts.add(format!("network namespace {}", namespace.path), why, &owners);
            }
        }
        let in_namespaces = evidence.namespaces.iter().flat_map(|one| &one.processes);
        let elsewhere: HashSet<u32> = in_namespaces.copied().collect();
        for process in unjudged {
            let Process { pid, name, unjudged, .. } = process;
            let owners = if elsewhere.contains(pid) { groups.of(process) } else { None };
            let why = unjudged.as_deref().unwrap_or_default();
            doubts.add(format!("process {pid} ({name})"), why, &owners.unwrap_or_default());
        }
        doubts
    }

    /// Without known owners, any container may be meant.
    fn add(&mut self, what: String, why: &str, owners: &BTreeSet<&str>) {
        let doubt = match owners.len() {
            0 => format!("{what}: {why}"),
            _ => format!(
                "{what} of container {}: {why}",
                owners.iter().copied().collect::<Vec<_>>().join(" or ")
            ),
        };
        if owners.is_empty() {
            self.any.get_or_insert_with(|| doubt.clone());
        }
        for owner in owners {
            self.of.entry((*owner).to_owned()).or_insert_with(|| doubt.clone());
        }
        self.named.push(doubt);
    }

    /// The doubt for a container. An object without one is in doubt only if that may be of any container: one with a cache entry would
    /// have given it its name.
    pub(super) fn of(&self, container: Option<&str>) -> Option<&String> {
        self.any.as_ref().or_else(|| self.of.get(container?))
    }
}

/// The containers that a namespace may be of; none if it may be of any.
fn owners<'e>(
    namespace: &Namespace,
    entries: &'e [Entry],
    groups: &Groups<'e>,
    processes: &HashMap<u32, &Process>,
) -> BTreeSet<&'e str> {
    let here = entries.iter().filter(|entry| entry.netns_state.inode() == Some(namespace.inode));
    let owners: BTreeSet<&str> = here.filter_map(|entry| entry.owner.container.as_deref()).collect();
    if !owners.is_empty() || namespace.is_mounted {
        return owners;
    }
    let inside = namespace.processes.iter().map(|pid| groups.of(processes.get(pid)?));
    inside.collect::<Option<Vec<_>>>().unwrap_or_default().into_iter().flatten().collect()
}

/// It may have more addresses than those that were read.
fn is_unread(namespace: &Namespace) -> bool {
    namespace.unread.is_some() || namespace.inside.is_none()
}

/// Of a process in a PID namespace of its own only the control group counts, and its network namespace.
fn is_unjudged(process: &Process) -> bool {
    process.unjudged.is_some() && (!process.is_inside || process.cgroup.is_empty())
}

/// The containers by what control groups have in their names.
struct Groups<'e> {
    names: Names,
    containers: HashMap<String, BTreeSet<&'e str>>,
}

impl<'e> Groups<'e> {
    fn new(entries: &'e [Entry]) -> Groups<'e> {
        let mut containers: HashMap<String, BTreeSet<&str>> = HashMap::new();
        for entry in entries {
            let Some(container) = entry.owner.container.as_deref() else { continue };
            let args = entry.sent.cni_args.iter().filter(|(key, _)| key == "K8S_POD_UID");
            // In the name of a control group of systemd, dashes are underscores; the cgroupfs driver writes pod before the UID.
            let pods = args.flat_map(|(_, uid)| [uid.clone(), uid.replace('-', "_")]);
            let pods = pods.flat_map(|uid| [format!("pod{uid}"), uid]);
            for name in pods.chain([container.to_owned()]) {
                containers.entry(name).or_default().insert(container);
            }
        }
        Groups { names: containers.keys().cloned().collect(), containers }
    }

    /// The containers that the control group of the process names.
    fn of(&self, process: &Process) -> Option<BTreeSet<&'e str>> {
        let found = self.names.in_text(&process.cgroup).into_iter();
        let containers: BTreeSet<&str> =
            found.filter_map(|name| self.containers.get(&name)).flatten().copied().collect();
        (!containers.is_empty()).then_some(containers)
    }
}
