//! Namespaces and processes of the node.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::process;

use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netns;

/// The network namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// What a path of a network namespace is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sandbox {
    /// The namespace with this inode number.
    Live(u64),
    /// No namespace, with the proof.
    Gone(String),
    /// Not known: the namespace of this process, no path, or an error.
    #[default]
    Unknown,
}

/// The device of all namespaces, and the inode number of the own network namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity {
    device: u64,
    own: u64,
}

impl Identity {
    /// Of this thread.
    pub fn current() -> Identity {
        fs::metadata(OWN).map_or(Identity::default(), |meta| Identity { device: meta.dev(), own: meta.ino() })
    }

    /// What the path is.
    pub fn sandbox(&self, path: &str) -> Sandbox {
        match fs::metadata(path) {
            _ if !path.starts_with('/') || self.own == 0 => Sandbox::Unknown,
            Ok(meta) if meta.dev() != self.device => {
                Sandbox::Gone(format!("{path} is no namespace any more"))
            }
            Ok(meta) if meta.ino() == self.own => Sandbox::Unknown,
            Ok(meta) => Sandbox::Live(meta.ino()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Sandbox::Gone(format!("namespace {path} does not exist"))
            }
            Err(_) => Sandbox::Unknown,
        }
    }
}

/// All network namespaces that a process or a mount keeps alive, each with a path that leads to it. Without the own one.
pub fn namespaces(identity: &Identity) -> Vec<Namespace> {
    let mut found: Vec<Namespace> = Vec::new();
    // ID PARENT DEVICE ROOT MOUNTPOINT ...; the root of a namespace's mount is `net:[INODE]`.
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(3);
        Some((inode_of(fields.next()?)?, fields.next()?.to_owned(), None))
    });
    let of_process = |pid| {
        let path = format!("/proc/{pid}/ns/net");
        Some((inode_of(fs::read_link(&path).ok()?.to_str()?)?, path, Some(pid)))
    };
    for (inode, path, pid) in mounted.chain(pids().filter_map(of_process)) {
        if inode == identity.own {
            continue;
        }
        match found.iter_mut().find(|namespace| namespace.inode == inode) {
            Some(namespace) => namespace.processes.extend(pid),
            None => {
                let processes = pid.into_iter().collect();
                found.push(Namespace { inode, path, processes, inside: None });
            }
        }
    }
    found
}

/// A network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Its inode number.
    pub inode: u64,
    /// A path that leads to it.
    pub path: String,
    /// The processes in it.
    pub processes: Vec<u32>,
    /// Its addresses and links; `None` if they have not been read.
    pub inside: Option<Inside>,
}

/// What a network namespace has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// The addresses of all its interfaces.
    pub addresses: Vec<IpAddr>,
    /// The indexes of the links that its macvlans are on.
    pub parents: Vec<u32>,
}

/// The inode number in `net:[4026531840]`.
fn inode_of(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Reads the addresses in a namespace, and the parents of macvlans if they are wanted. `None` if it cannot be entered any more.
pub fn look_into(namespace: &Namespace, with_parents: bool) -> Option<Inside> {
    let file = File::open(&namespace.path).ok()?;
    let mut socket = netns::enter(&file, Socket::route).ok()?.ok()?;
    let addresses =
        socket.all_addresses().ok()?.into_iter().map(|(_, address)| address.network.ip()).collect();
    let macvlans = if with_parents { socket.links(Some("macvlan")).ok()? } else { Vec::new() };
    Some(Inside { addresses, parents: macvlans.iter().filter_map(|link| link.peer).collect() })
}

/// What a process says about containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
    /// CNI_CONTAINERID in its environment: a running CNI plugin.
    pub container: Option<String>,
    /// Whether it, or the process that started it, is in the host's network namespace, as far as this is known. A plugin enters
    /// a container's namespace for a moment, but a runtime does not.
    pub is_on_host: bool,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its control group.
    pub cgroup: String,
}

impl Process {
    /// Whether the process works for the container: it is a plugin that was called for it, has its ID as an argument as
    /// containerd-shim and conmon have, or its control group has the name.
    pub fn names(&self, container: &str) -> bool {
        self.container.as_deref() == Some(container)
            || self.arguments.iter().any(|argument| argument == container)
            || has_word(&self.cgroup, container)
    }
}

/// Whether the word stands in the text with no letter or digit beside it.
fn has_word(text: &str, word: &str) -> bool {
    !word.is_empty()
        && text.match_indices(word).any(|(at, _)| {
            let is_free = |neighbour: Option<char>| neighbour.is_none_or(|c| !c.is_ascii_alphanumeric());
            is_free(text[..at].chars().next_back()) && is_free(text[at + word.len()..].chars().next())
        })
}

/// All processes, except this one and its ancestors: an operator may have started it with a container's name.
pub fn processes(identity: &Identity) -> Vec<Process> {
    let mut own = vec![process::id()];
    while let Some(parent) = own.last().and_then(|pid| parent_of(*pid)).filter(|parent| *parent > 1) {
        own.push(parent);
    }
    pids().filter(|pid| !own.contains(pid)).filter_map(|pid| process(pid, identity)).collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Whether the process may be in the own network namespace.
fn may_be_here(pid: u32, identity: &Identity) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    link.as_ref().and_then(|to| inode_of(to.to_str()?)).is_none_or(|inode| inode == identity.own)
}

fn process(pid: u32, identity: &Identity) -> Option<Process> {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let words = |file: &str| -> Vec<String> {
        read(file).split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    };
    let arguments = words("cmdline");
    // A kernel thread has no arguments.
    if arguments.iter().all(String::is_empty) {
        return None;
    }
    let container =
        words("environ").iter().find_map(|word| Some(word.strip_prefix("CNI_CONTAINERID=")?.to_owned()));
    let is_on_host = container.is_some()
        && (may_be_here(pid, identity) || parent_of(pid).is_none_or(|parent| may_be_here(parent, identity)));
    let name = String::from_utf8_lossy(&read("comm")).trim_end().to_owned();
    Some(Process {
        pid,
        name,
        container,
        is_on_host,
        arguments,
        cgroup: String::from_utf8_lossy(&read("cgroup")).into_owned(),
    })
}

/// The number of CPUs that this process may use, by its file `status`; at least 1. std's function is 5 KB.
pub fn cpus(status: &str) -> usize {
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap_or_default();
    let count: u32 = mask.chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum();
    count.max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_names_its_container() {
        let id = "0123456789ab";
        let process =
            Process { cgroup: format!("0::/kubepods/cri-containerd-{id}.scope\n"), ..Process::default() };
        assert!(process.names(id) && !process.names(&id[1..]) && !process.names(""));
        let shim = Process { arguments: vec!["-id".into(), id.into()], ..Process::default() };
        assert!(shim.names(id) && !shim.names("-"));
        let plugin = Process { container: Some("c1".into()), ..Process::default() };
        assert!(plugin.names("c1") && !plugin.names("c"));
    }

    #[test]
    fn the_own_namespace_and_missing_paths_are_told_apart() {
        let identity = Identity::current();
        assert_eq!(identity.sandbox("/proc/self/ns/net"), Sandbox::Unknown);
        assert!(matches!(identity.sandbox("/nowhere/at/all"), Sandbox::Gone(_)));
        assert!(matches!(identity.sandbox("/dev/null"), Sandbox::Gone(_)));
        assert_eq!(identity.sandbox(""), Sandbox::Unknown);
        assert_eq!(inode_of("net:[4026531840]"), Some(4_026_531_840));
        assert_eq!(inode_of("mnt:[1]"), None);
    }

    #[test]
    fn the_cpus_are_those_of_the_mask() {
        assert_eq!(cpus("Name:\tx\nCpus_allowed:\tf,80000003\nCpus_allowed_list:\t0-1\n"), 7);
        assert_eq!(cpus(""), 1);
    }
}
