//! Namespaces and processes of the node.

mod names;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netns;

pub use self::names::Names;
pub(crate) use self::process::{CALLED, is_inside};
pub use self::process::{Process, lacks, processes, processes_of};
use crate::sight::{self, Sight, inode_of, mounted, unread};

/// `ESRCH`: the process has ended.
const NO_PROCESS: i32 = 3;
/// The attempts to read all namespaces: a namespace may end, or the process that led to it.
const ATTEMPTS: usize = 10;
/// How often the addresses of a namespace are listed that change meanwhile. Each list lacks at most those that change places with one
/// that comes or goes.
const LISTS: usize = 5;
/// No namespace is listed again after that time, which all of them share: a container may have many, with many addresses. What has been
/// listed less often is not enough.
const PATIENCE: Duration = Duration::from_secs(2);

/// All network namespaces that a process or a mount keeps alive, each with a path that leads to it. Without the own one. One that a
/// process does not show counts as a namespace of its own.
///
/// # Errors
/// Mounts or processes cannot be listed, so a namespace may be missing.
pub fn namespaces(sight: &Sight) -> Result<Vec<Namespace>, String> {
    let mut found: BTreeMap<u64, Namespace> = BTreeMap::new();
    let mut hidden = Vec::new();
    let mut add = |inode: u64, path: &str, pid: Option<u32>| {
        let is_mounted = pid.is_none();
        let new = || Namespace { inode, path: path.to_owned(), is_mounted, ..Namespace::default() };
        found.entry(inode).or_insert_with(new).processes.extend(pid);
    };
    for (inode, path) in sight::read("/proc/thread-self/mountinfo")?.lines().filter_map(mounted) {
        add(inode, path, None);
    }
    for pid in pids(sight)? {
        // The main thread may have ended, and each thread may have a namespace of its own.
        let (threads, mut why) =
            tasks(pid).map_or_else(|why| (Vec::new(), Some(why)), |threads| (threads, None));
        for task in threads.into_iter().map(|tid| format!("/proc/{pid}/task/{tid}")) {
            let path = format!("{task}/ns/net");
            match fs::read_link(&path) {
                Ok(link) => {
                    link.to_str().and_then(inode_of).into_iter().for_each(|i| add(i, &path, Some(pid)));
                }
                Err(error) if has_ended(&task, &error) => {}
                Err(error) => why = Some(unread(&path, &error)),
            }
        }
        let path = format!("/proc/{pid}/ns/net");
        let new = |why| Namespace { path, processes: vec![pid], unread: Some(why), ..Namespace::default() };
        hidden.extend(why.map(new));
    }
    found.values_mut().for_each(|namespace| namespace.processes.dedup());
    found.remove(&sight.own);
    Ok(found.into_values().chain(hidden).collect())
}

/// As [`namespaces`], with their addresses, and with the parents of macvlans if they are wanted.
///
/// # Errors
/// Those of [`namespaces`], and a missing right to enter namespaces.
pub fn read_namespaces(sight: &Sight, with_parents: bool) -> Result<Vec<Namespace>, String> {
    if let Some(right) = lacks(&sight::read("/proc/thread-self/status")?) {
        return Err(format!("network namespaces cannot be entered without the permission {right}"));
    }
    let mut known: Vec<Namespace> = Vec::new();
    let until = Instant::now() + PATIENCE;
    for _ in 0..ATTEMPTS {
        let mut found = namespaces(sight)?;
        let mut former: BTreeMap<u64, Inside> =
            known.drain(..).filter_map(|one| Some((one.inode, one.inside?))).collect();
        for namespace in found.iter_mut().filter(|one| one.unread.is_none()) {
            let inside =
                former.remove(&namespace.inode).map_or_else(|| namespace.read_until(with_parents, until), Ok);
            match inside {
                Ok(inside) => namespace.inside = Some(inside),
                Err(why) => namespace.unread = Some(why),
            }
        }
        known = found;
        if known.iter().all(|namespace| namespace.unread.is_none()) {
            break;
        }
    }
    for namespace in &mut known {
        let lists = namespace.inside.as_ref().map_or(0, |inside| inside.partial_lists);
        if lists > 0 {
            namespace.unread = Some("its addresses change while they are listed".to_owned());
        }
        if (1..LISTS).contains(&lists) {
            namespace.inside = None;
        }
    }
    Ok(known)
}

/// Whether the error of a file in the folder of a process or thread means that it does not exist any more. If it ends during the call, the link
/// of a namespace gives `EACCES` (`fs/proc/namespaces.c`), as for a process that must not be looked at.
pub(crate) fn has_ended(folder: &str, error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::NotFound => true,
        ErrorKind::PermissionDenied => fs::exists(folder).is_ok_and(|exists| !exists),
        _ => error.raw_os_error() == Some(NO_PROCESS),
    }
}

/// A network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Its inode number; 0 if that is not known.
    pub inode: u64,
    /// A path that leads to it.
    pub path: String,
    /// Whether the path is a mount.
    pub is_mounted: bool,
    /// The processes in it.
    pub processes: Vec<u32>,
    /// Its addresses and links; `None` if they have not been read.
    pub inside: Option<Inside>,
    /// Why it may have more than that.
    pub unread: Option<String>,
}

/// What a network namespace has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// The addresses of all its interfaces.
    pub addresses: BTreeSet<IpAddr>,
    /// The indexes of the links that its macvlans are on.
    pub parents: BTreeSet<u32>,
    /// The lists, if objects changed during each of them: these are all that one of them had. 0 if one was whole.
    pub partial_lists: usize,
}

/// The processes of the node.
pub(crate) fn pids(sight: &Sight) -> Result<Vec<u32>, String> {
    let cannot = |error: io::Error| unread("/proc", &error);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(cannot)? {
        found.extend(entry.map_err(cannot)?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    found.retain(|pid| *pid != 1 || !sight.is_within);
    Ok(found)
}

/// The threads of a process; none if it has ended.
pub(crate) fn tasks(pid: u32) -> Result<Vec<String>, String> {
    let path = format!("/proc/{pid}/task");
    let names = |entries: fs::ReadDir| {
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<io::Result<Vec<_>>>()
    };
    match fs::read_dir(&path).and_then(names) {
        Err(error) if has_ended(&format!("/proc/{pid}"), &error) => Ok(Vec::new()),
        outcome => outcome.map_err(|error| unread(&path, &error)),
    }
}

impl Namespace {
    /// Fails if it cannot be entered, perhaps any more, or read. Lists nothing again after that time.
    fn read_until(&self, with_parents: bool, until: Instant) -> Result<Inside, String> {
        let read = || -> Result<Inside, Box<dyn Error>> {
            let mut socket = netns::enter(&File::open(&self.path)?, Socket::route)??.with_single_dumps();
            let mut inside = Inside::default();
            for list in 1..=LISTS {
                let addresses = socket.all_addresses()?.into_iter();
                inside.addresses.extend(addresses.map(|(_, address)| address.network.ip()));
                if with_parents {
                    inside.parents.extend(socket.links(Some("macvlan"))?.iter().filter_map(|link| link.peer));
                }
                inside.partial_lists = if socket.was_interrupted() { list } else { 0 };
                if inside.partial_lists == 0 || Instant::now() > until {
                    break;
                }
            }
            Ok(inside)
        };
        read().map_err(|error| format!("it cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests;
