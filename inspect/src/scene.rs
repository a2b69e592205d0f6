//! Namespaces and processes of the node.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::iter;
use std::net::IpAddr;

use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netns;

use crate::sight::{self, Sight, inode_of, mounted, unread};

/// `ESRCH`: the process has ended.
const NO_PROCESS: i32 = 3;
/// The attempts to read all namespaces: a namespace may end, or the process that led to it.
const ATTEMPTS: usize = 10;

/// All network namespaces that a process or a mount keeps alive, each with a path that leads to it. Without the own one.
///
/// # Errors
/// Something could not be read, so a namespace may be missing.
pub fn namespaces(sight: &Sight) -> Result<Vec<Namespace>, String> {
    let mut found: BTreeMap<u64, Namespace> = BTreeMap::new();
    let mut add = |inode: u64, path: &str, pid: Option<u32>| {
        let new = || Namespace { inode, path: path.to_owned(), ..Namespace::default() };
        found.entry(inode).or_insert_with(new).processes.extend(pid);
    };
    for (inode, path) in sight::read("/proc/thread-self/mountinfo")?.lines().filter_map(mounted) {
        add(inode, path, None);
    }
    for pid in pids(sight)? {
        // The main thread may have ended, and each thread may have a namespace of its own.
        for task in tasks(pid)?.into_iter().map(|tid| format!("/proc/{pid}/task/{tid}")) {
            let path = format!("{task}/ns/net");
            match fs::read_link(&path) {
                Ok(link) => {
                    link.to_str().and_then(inode_of).into_iter().for_each(|i| add(i, &path, Some(pid)));
                }
                Err(error) if has_ended(&task, &error) => {}
                Err(error) => return Err(unread(&path, &error)),
            }
        }
    }
    found.values_mut().for_each(|namespace| namespace.processes.dedup());
    found.remove(&sight.own);
    Ok(found.into_values().collect())
}

/// As [`namespaces`], with their addresses, and with the parents of macvlans if they are wanted. Also returns why one of them has
/// not been read.
pub fn read_namespaces(sight: &Sight, with_parents: bool) -> (Vec<Namespace>, Option<String>) {
    let (mut known, mut unread): (Vec<Namespace>, _) = (Vec::new(), None);
    for _ in 0..ATTEMPTS {
        let mut namespaces = match namespaces(sight) {
            Ok(namespaces) => namespaces,
            Err(why) => return (Vec::new(), Some(why)),
        };
        unread = None;
        for namespace in &mut namespaces {
            let former = known.iter_mut().find(|former| former.inode == namespace.inode);
            let read = || namespace.read(with_parents).map_err(|why| unread = Some(why)).ok();
            namespace.inside = former.and_then(|former| former.inside.take()).or_else(read);
        }
        known = namespaces;
        if unread.is_none() {
            break;
        }
    }
    (known, unread)
}

/// Whether the error of a file in the folder of a process or thread means that it does not exist any more. If it ends during the call, the link
/// of a namespace gives `EACCES` (`fs/proc/namespaces.c`), as for a process that must not be looked at.
fn has_ended(folder: &str, error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::NotFound => true,
        ErrorKind::PermissionDenied => fs::exists(folder).is_ok_and(|exists| !exists),
        _ => error.raw_os_error() == Some(NO_PROCESS),
    }
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

/// The processes of the node.
fn pids(sight: &Sight) -> Result<Vec<u32>, String> {
    let cannot = |error: io::Error| unread("/proc", &error);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(cannot)? {
        found.extend(entry.map_err(cannot)?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    found.retain(|pid| *pid != 1 || !sight.is_within);
    Ok(found)
}

/// The threads of a process; none if it has ended.
fn tasks(pid: u32) -> Result<Vec<String>, String> {
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
    /// Fails if it cannot be entered, perhaps any more, or read.
    pub(crate) fn read(&self, with_parents: bool) -> Result<Inside, String> {
        let read = || -> Result<Inside, Box<dyn Error>> {
            let mut socket = netns::enter(&File::open(&self.path)?, Socket::route)??.with_whole_dumps();
            let addresses = socket.all_addresses()?.into_iter();
            let addresses = addresses.map(|(_, address)| address.network.ip()).collect();
            let macvlans = if with_parents { socket.links(Some("macvlan"))? } else { Vec::new() };
            Ok(Inside { addresses, parents: macvlans.iter().filter_map(|link| link.peer).collect() })
        };
        read().map_err(|error| format!("network namespace {} cannot be read: {error}", self.path))
    }
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
    /// Whether it is in the node's PID namespace, and it, or the process that started it, in the host's network namespace, as far as this
    /// is known. A plugin enters a container's namespace for a moment, but a runtime does not.
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
///
/// # Errors
/// Something could not be read, so a sign of life may be missing.
pub fn processes(sight: &Sight) -> Result<Vec<Process>, String> {
    // The number in the PID namespace that /proc shows.
    let own = fs::read_link("/proc/self").map_err(|error| unread("/proc/self", &error))?;
    let own = own.to_str().and_then(|pid| pid.parse().ok());
    let own: Vec<u32> = iter::successors(own, |pid| parent_of(*pid).filter(|pid| *pid > 1)).collect();
    let mut found = Vec::new();
    for pid in pids(sight)?.into_iter().filter(|pid| !own.contains(pid)) {
        found.extend(process(pid, sight)?);
    }
    Ok(found)
}

fn parent_of(pid: u32) -> Option<u32> {
    stat(pid)?.split(' ').nth(1)?.parse().ok()
}

/// Whether the process may be in the own network namespace.
fn may_be_here(pid: u32, sight: &Sight) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    link.as_ref().and_then(|to| inode_of(to.to_str()?)).is_none_or(|inode| inode == sight.own)
}

/// Whether the process may be in the PID namespace of this one, which is the node's.
fn is_in_own_pid_namespace(pid: u32) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let theirs = namespace(&pid.to_string());
    theirs.is_none() || theirs == namespace("self")
}

/// Whether the main thread has ended.
fn is_zombie(pid: u32) -> bool {
    stat(pid).is_none_or(|fields| fields.starts_with(['Z', 'X']))
}

/// The fields of `/proc/PID/stat` behind the name, which may be no UTF-8.
fn stat(pid: u32) -> Option<String> {
    let stat = sight::read(&format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

fn process(pid: u32, sight: &Sight) -> Result<Option<Process>, String> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        match fs::read(&path) {
            Err(error) if has_ended(&format!("/proc/{pid}"), &error) => Ok(Vec::new()),
            outcome => outcome.map_err(|error| unread(&path, &error)),
        }
    };
    let words = |file: &str| -> Result<Vec<String>, String> {
        let bytes = read(file)?;
        Ok(bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
    };
    let arguments = words("cmdline")?;
    // A process can remove its arguments, but it does not become a kernel thread by that.
    if arguments.iter().all(String::is_empty)
        && (sight::is_kernel_thread(pid) || tasks(pid)?.len() <= 1 && is_zombie(pid))
    {
        return Ok(None);
    }
    let container =
        words("environ")?.iter().find_map(|word| Some(word.strip_prefix("CNI_CONTAINERID=")?.to_owned()));
    let is_on_host = container.is_some()
        && is_in_own_pid_namespace(pid)
        && (may_be_here(pid, sight) || parent_of(pid).is_none_or(|parent| may_be_here(parent, sight)));
    let name = String::from_utf8_lossy(&read("comm")?).trim_end().to_owned();
    let cgroup = String::from_utf8_lossy(&read("cgroup")?).into_owned();
    Ok(Some(Process { pid, name, container, is_on_host, arguments, cgroup }))
}

/// The capability that plugins need and this process lacks, by its file `status`.
pub fn lacks(status: &str) -> Option<&'static str> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    let needed = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN")];
    needed.into_iter().find(|(bit, _)| mask & (1 << bit) == 0).map(|(_, name)| name)
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
    fn a_process_that_ends_while_its_namespace_is_read_is_no_obstacle() {
        use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let link = openat(CWD, format!("/proc/{pid}/ns/net"), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
        let link = link.unwrap();
        let denied = io::Error::from(ErrorKind::PermissionDenied);
        assert!(!has_ended(&format!("/proc/{pid}"), &denied), "a process that lives");
        child.kill().unwrap();
        child.wait().unwrap();
        // As in a readlink(2) that found the link before the process ended.
        let error: io::Error = readlinkat(&link, "", Vec::new()).unwrap_err().into();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(has_ended(&format!("/proc/{pid}"), &error));
    }

    fn whole() -> Sight {
        let own = fs::read_link("/proc/self/ns/net").ok().and_then(|link| inode_of(link.to_str()?));
        // Process 1 of a build machine may be out of reach.
        Sight { own: own.unwrap(), partial: None, is_within: true, is_elsewhere: false }
    }

    /// What comes within ten seconds.
    fn wait<T>(mut find: impl FnMut() -> Option<T>) -> T {
        let start = std::time::Instant::now();
        loop {
            if let Some(found) = find() {
                return found;
            }
            assert!(start.elapsed().as_secs() < 10, "nothing has come");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Its namespace has no mount, and `/proc/PID/ns/net` leads nowhere.
    #[test]
    fn a_process_whose_main_thread_has_ended_keeps_its_namespace() {
        let script = "import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)";
        let mut child =
            std::process::Command::new("unshare").args(["--net", "python3", "-c", script]).spawn().unwrap();
        let pid = child.id();
        wait(|| is_zombie(pid).then_some(()));
        let found = namespaces(&whole()).unwrap();
        let processes = processes(&whole()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.iter().any(|namespace| namespace.processes == [pid]), "{found:?}");
        assert!(processes.iter().any(|process| process.pid == pid));
    }

    #[test]
    fn a_process_without_arguments_is_no_kernel_thread() {
        use std::os::unix::process::CommandExt as _;
        let mut child =
            std::process::Command::new("cat").arg0("").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let found = wait(|| processes(&whole()).unwrap().into_iter().find(|one| one.pid == child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.pid, child.id());
    }

    /// A container's process has any environment that it likes.
    #[test]
    fn a_caller_is_in_the_nodes_pid_namespace() {
        let mut child = std::process::Command::new("unshare");
        child
            .args(["--pid", "--fork", "--kill-child", "sleep", "1000"])
            .env("CNI_CONTAINERID", "scene-caller");
        let mut child = child.spawn().unwrap();
        let named = |name: &str| {
            let all = processes(&whole()).unwrap();
            all.into_iter().find(|one| one.container.as_deref() == Some("scene-caller") && one.name == name)
        };
        let [outside, inside] = ["unshare", "sleep"].map(|name| wait(|| named(name)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((outside.is_on_host, inside.is_on_host), (true, false));
    }

    #[test]
    fn plugins_need_two_capabilities() {
        let lacks = |mask: &str| lacks(&format!("CapPrm:\t0\nCapEff:\t{mask}\n"));
        assert_eq!((lacks("000001ffffffffff"), lacks("0000000000201000")), (None, None));
        assert_eq!(
            (lacks("0000000000200000"), lacks("1000")),
            (Some("CAP_NET_ADMIN"), Some("CAP_SYS_ADMIN"))
        );
    }
}
