//! Whether this process sees the node as the node's first process does. Owners outside of its view may be alive.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ferrule_kit::presence::{self, Presence, View, look};
use itertools::Itertools as _;

/// The flag of kernel threads in `/proc/PID/stat`. They exist only in the initial PID namespace.
const KERNEL_THREAD: u32 = 0x0020_0000;
/// The network namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";
/// The attempts to see the same as the node's first process: a namespace may end, or start, and a folder may come, meanwhile.
const ATTEMPTS: usize = 3;

/// What this process sees of the node.
#[derive(Clone, Debug)]
pub struct Sight {
    /// The own network namespace.
    pub own: u64,
    /// Why it may not see something.
    pub partial: Option<String>,
    /// Whether process 1 is outside of the node: it runs the node, and is no sign of life of a container.
    pub is_within: bool,
    /// Whether this is certainly not the node's network namespace.
    pub is_elsewhere: bool,
}

/// Why this process may not see the node.
enum Gap {
    /// It may not compare.
    Unread(String),
    /// It has compared.
    Other(String),
}

impl Sight {
    /// Of a process that looks at the paths of network namespaces and at the cache, and starts plugins. It needs no right to look
    /// at other processes, so it notices another network namespace and another folder only if it has this right.
    pub fn of_check(init: Option<u32>, results: &Path) -> Sight {
        let first = init.unwrap_or(1);
        let network = has_network(first);
        let is_elsewhere = matches!(network, Err(Gap::Other(_)));
        let seen = match network.and_then(|()| has_folders(first, [results].into_iter())) {
            Err(Gap::Other(why)) => Err(why),
            _ => Ok(()),
        };
        Sight { is_elsewhere, ..Sight::new(init, sees_mounts(init).and(seen)) }
    }

    /// Of a process that looks at everything: paths, processes, links, and these folders.
    pub fn of_all<'f>(init: Option<u32>, folders: impl Iterator<Item = &'f Path>) -> Sight {
        let rest = || sees_the_rest(init, folders).map_err(|(Gap::Unread(why) | Gap::Other(why))| why);
        Sight::new(init, sees_mounts(init).and_then(|()| rest()))
    }

    fn new(init: Option<u32>, seen: Result<(), String>) -> Sight {
        let own = fs::metadata(OWN).map(|meta| meta.ino()).map_err(|error| unread(OWN, &error));
        Sight {
            partial: seen.err().or(own.clone().err()),
            own: own.unwrap_or_default(),
            is_within: init.unwrap_or(1) != 1,
            is_elsewhere: false,
        }
    }

    /// Whether the network namespace at this path exists.
    pub fn netns(&self, path: &str) -> Presence {
        let view = if self.partial.is_none() { View::Node } else { View::Unproven };
        if path.starts_with('/') { look(Path::new(path), None, view) } else { Presence::Unknown }
    }
}

/// `/proc` is the node's, and each network namespace that its first process has mounted is here too, at the same path.
fn sees_mounts(init: Option<u32>) -> Result<(), String> {
    // Process 2 of the initial PID namespace.
    if init.is_none() && !is_kernel_thread(2) {
        return Err("/proc does not show the initial PID namespace; if the node is a container itself, --init PID names \
                    its first process"
            .to_owned());
    }
    let init = init.unwrap_or(1);
    let mut missing: Vec<String> = Vec::new();
    for attempt in 0..ATTEMPTS {
        let own = read("/proc/thread-self/mountinfo")?;
        let of_init = read(&format!("/proc/{init}/mountinfo"))?;
        let lacks = |line: &&str| {
            // The same line has the same number of the mount, which is unique on the machine.
            !own.lines().any(|other| other == *line) && mounted(line).is_some_and(|mount| !is_at(mount))
        };
        let found = of_init.lines().filter(lacks).map(str::to_owned);
        missing = found.filter(|line| attempt == 0 || missing.contains(line)).collect();
        if missing.is_empty() {
            return Ok(());
        }
    }
    let paths = missing.iter().filter_map(|line| Some(mounted(line)?.1)).join(", ");
    Err(format!("process {init} of the node has network namespaces that are not visible here: {paths}"))
}

/// The other namespaces, the root folder and these folders are those of the node's first process.
fn sees_the_rest<'f>(init: Option<u32>, folders: impl Iterator<Item = &'f Path>) -> Result<(), Gap> {
    let first = init.unwrap_or(1);
    // For process 1, the kernel threads have shown it.
    if first != 1 {
        is_same(first, "ns/pid", "/proc/thread-self/ns/pid", "PID namespace")?;
    }
    has_network(first)?;
    is_same(first, "root", "/", "root folder; --root DIR names it")?;
    has_folders(first, folders)
}

/// This is the network namespace of the node's first process.
fn has_network(init: u32) -> Result<(), Gap> {
    is_same(init, "ns/net", OWN, "network namespace")
}

/// A file of the node's first process in /proc, and one of this process, are the same.
fn is_same(init: u32, file: &str, own: &str, what: &str) -> Result<(), Gap> {
    let theirs = format!("/proc/{init}/{file}");
    let of = |path: &str| presence::try_identity(path).map_err(|error| Gap::Unread(unread(path, &error)));
    match of(&theirs)? == of(own)? {
        true => Ok(()),
        false => Err(Gap::Other(format!("process {init} of the node has another {what}"))),
    }
}

/// The folders are those of the node's first process, or missing in both.
fn has_folders<'f>(init: u32, mut folders: impl Iterator<Item = &'f Path>) -> Result<(), Gap> {
    let root = format!("/proc/{init}/root");
    presence::try_identity(&root).map_err(|error| Gap::Unread(unread(&root, &error)))?;
    let differs = |folder: &&Path| {
        let absolute = folder.strip_prefix("/").unwrap_or(folder);
        let theirs = Path::new(&root).join(absolute);
        // The first ADD of a node makes them.
        (0..ATTEMPTS).all(|_| presence::identity(folder) != presence::identity(&theirs))
    };
    folders.find(differs).map_or(Ok(()), |folder| {
        Err(Gap::Other(format!("{} is not that of process {init} of the node", folder.display())))
    })
}

/// Whether the process is a kernel thread. A process can choose its name and remove its arguments, but not set its flags.
pub(crate) fn is_kernel_thread(pid: u32) -> bool {
    let flags = stat(&format!("/proc/{pid}")).and_then(|fields| flags(&fields));
    flags.is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// The fields of the file `stat` of a process or thread behind the name, which may be no UTF-8.
pub(crate) fn stat(folder: &str) -> Option<String> {
    let stat = read(&format!("{folder}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// The flags among the fields of [`stat`].
pub(crate) fn flags(fields: &str) -> Option<u32> {
    fields.split(' ').nth(6)?.parse().ok()
}

/// The network namespace in a line of `mountinfo`, and its mount point:
/// `ID PARENT DEVICE ROOT MOUNTPOINT ...`, where ROOT is `net:[INODE]`.
pub fn mounted(line: &str) -> Option<(u64, &str)> {
    let mut fields = line.split(' ').skip(3);
    Some((inode_of(fields.next()?)?, fields.next()?))
}

/// The inode number in `net:[4026531840]`.
pub fn inode_of(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

fn is_at((inode, path): (u64, &str)) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.ino() == inode)
}

/// The content of a text file. Names of mounts may be no UTF-8, and any user can make such a mount.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &str) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| unread(path, &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The node's host name.
pub fn host_name() -> String {
    read("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// How a file that cannot be read is reported.
pub fn unread(path: &str, error: &io::Error) -> String {
    format!("cannot read {path}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_namespace_and_missing_paths_are_distinguished() {
        let sight = Sight { own: 0, partial: None, is_within: false, is_elsewhere: false };
        assert_eq!(sight.netns("/proc/self/ns/net"), Presence::Unknown);
        assert!(matches!(sight.netns("/nowhere/at/all"), Presence::Gone { .. }));
        assert!(matches!(sight.netns("/dev/null"), Presence::Gone { .. }));
        assert_eq!(sight.netns(""), Presence::Unknown);
        let partial = Sight { partial: Some("no /proc".to_owned()), ..sight };
        assert_eq!(partial.netns("/nowhere/at/all"), Presence::Unknown);
        assert_eq!(inode_of("net:[4026531840]"), Some(4_026_531_840));
        assert_eq!(inode_of("mnt:[1]"), None);
    }

    #[test]
    fn a_mount_whose_name_is_no_utf8_hides_no_other_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mountinfo");
        let others =
            b"65 24 0:50 / /home/u/\xff rw - fuse u rw\n66 24 0:4 net:[7] /run/netns/a rw - nsfs nsfs rw\n";
        fs::write(&path, others).unwrap();
        let text = read(path.to_str().unwrap()).unwrap();
        assert_eq!(text.lines().filter_map(mounted).collect::<Vec<_>>(), [(7, "/run/netns/a")]);
    }

    #[test]
    fn mounts_of_network_namespaces() {
        let line = "66 24 0:4 net:[4026532200] /run/netns/a rw shared:1 - nsfs nsfs rw";
        assert_eq!(mounted(line), Some((4_026_532_200, "/run/netns/a")));
        assert_eq!(mounted("24 1 0:22 / /run rw shared:5 - tmpfs tmpfs rw"), None);
    }
}
