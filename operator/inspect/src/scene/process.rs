//! What processes say about containers.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read as _;
use std::iter;

use super::{Names, has_ended, pids, tasks};
use crate::sight::{self, Sight, flags, inode_of, stat, unread};

/// The flag of a thread that ends, in `/proc/PID/stat`.
const EXITING: u32 = 4;
/// How much of the arguments and of the environment is read, in bytes. execve(2) takes at most 6 MiB; a process can have more later.
const MOST: u64 = 8 << 20;
/// How often a process is read whose threads end meanwhile.
const ATTEMPTS: usize = 3;

/// What the environment of a CNI plugin has.
pub(crate) const CALLED: &str = "CNI_CONTAINERID=";

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
    /// Whether it is in a PID namespace below the node's: a container's process, and neither a plugin nor a runtime. Neither its arguments
    /// nor its environment count.
    pub is_inside: bool,
    /// The containers that it works for, of those that were asked about: its environment says that it is a plugin that was called for
    /// one, it has the ID as an argument as containerd-shim and conmon have, or its control group has the name.
    pub works_for: BTreeSet<String>,
    /// Its control group.
    pub cgroup: String,
    /// Why it may work for more of them.
    pub unjudged: Option<String>,
}

/// All processes, except this one and its ancestors: an operator may have started it with a container's name. `names` are the
/// containers that are asked about.
///
/// # Errors
/// The processes cannot be listed.
pub fn processes(sight: &Sight, names: &Names) -> Result<Vec<Process>, String> {
    processes_of(sight, names, pids(sight)?)
}

/// As [`processes`], of these numbers.
///
/// # Errors
/// The own number is not known.
pub fn processes_of(sight: &Sight, names: &Names, pids: Vec<u32>) -> Result<Vec<Process>, String> {
    // The number in the PID namespace that /proc shows.
    let own = fs::read_link("/proc/self").map_err(|error| unread("/proc/self", &error))?;
    let own = own.to_str().and_then(|pid| pid.parse().ok());
    let own: Vec<u32> = iter::successors(own, |pid| parent_of(*pid).filter(|pid| *pid > 1)).collect();
    let mut reader = Reader { sight, names, depth: depth("self"), in_cgroups: HashMap::new() };
    let others = pids.into_iter().filter(|pid| !own.contains(pid));
    Ok(others.filter_map(|pid| reader.process(pid)).collect())
}

struct Reader<'r> {
    sight: &'r Sight,
    names: &'r Names,
    /// How many PID namespaces this process is in, as `/proc` shows.
    depth: usize,
    /// The names in control groups that many processes share.
    in_cgroups: HashMap<String, BTreeSet<String>>,
}

impl Reader<'_> {
    /// `None` if it has ended, if it is about to and has no namespace any more, or if it is one of the kernel.
    fn process(&mut self, pid: u32) -> Option<Process> {
        let mut found = Process::default();
        for _ in 0..ATTEMPTS {
            let folder = match living(pid) {
                Ok(folder) => folder?,
                Err(why) => return Some(Process { pid, unjudged: Some(why), ..found }),
            };
            found = self.read(pid, &folder)?;
            if fs::exists(&folder).is_ok_and(|exists| exists) {
                return Some(found);
            }
        }
        let why = format!("each thread of /proc/{pid} that is read ends meanwhile");
        Some(Process { unjudged: Some(why), ..found })
    }

    fn read(&mut self, pid: u32, folder: &str) -> Option<Process> {
        let mut unjudged = None;
        let mut read = |file: &str| {
            let path = format!("{folder}/{file}");
            let mut bytes = Vec::new();
            let outcome = File::open(&path).and_then(|opened| opened.take(MOST).read_to_end(&mut bytes));
            if let Err(error) = outcome.map_err(|error| (has_ended(folder, &error), error))
                && let (false, error) = error
            {
                unjudged.get_or_insert_with(|| unread(&path, &error));
            }
            bytes
        };
        let is_inside = depth(&pid.to_string()) > self.depth;
        let (mut arguments, mut environment) = (Vec::new(), Vec::new());
        // A container chooses those of its processes, and they may be long. Neither a runtime nor a plugin runs there.
        if !is_inside {
            arguments = read("cmdline");
            // A process can remove its arguments, but it does not become a kernel thread by that.
            if arguments.iter().all(|byte| *byte == 0) && sight::is_kernel_thread(pid) {
                return None;
            }
            environment = read("environ");
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (name, cgroup) = (text(read("comm")).trim_end().to_owned(), text(read("cgroup")));
        let container = words(&environment).find_map(|word| word.strip_prefix(CALLED).map(str::to_owned));
        let mut works_for: BTreeSet<String> = words(&arguments)
            .chain(container.as_deref())
            .filter(|word| self.names.has(word))
            .map(str::to_owned)
            .collect();
        let in_cgroup = match self.in_cgroups.get(&cgroup) {
            Some(found) => found,
            None => self.in_cgroups.entry(cgroup.clone()).or_insert(self.names.in_text(&cgroup)),
        };
        works_for.extend(in_cgroup.iter().cloned());
        let is_on_host = container.is_some()
            && (may_be_here(pid, self.sight)
                || parent_of(pid).is_none_or(|parent| may_be_here(parent, self.sight)));
        Some(Process { pid, name, container, is_on_host, is_inside, works_for, cgroup, unjudged })
    }
}

/// The words between zeros that are UTF-8, as all names of containers are.
fn words(bytes: &[u8]) -> impl Iterator<Item = &str> {
    bytes.split(|byte| *byte == 0).filter_map(|word| str::from_utf8(word).ok())
}

/// The folder of the first thread that lives. The main thread may have ended: its files are empty then.
fn living(pid: u32) -> Result<Option<String>, String> {
    let folder = |tid: &str| format!("/proc/{pid}/task/{tid}");
    let main = folder(&pid.to_string());
    if lives(&main) {
        return Ok(Some(main));
    }
    Ok(tasks(pid)?.iter().map(|tid| folder(tid)).find(|folder| lives(folder)))
}

/// Whether a thread has not ended. One that is about to counts for nothing once it has no namespace.
pub(super) fn lives(folder: &str) -> bool {
    let Some(fields) = stat(folder) else { return fs::exists(folder).is_ok_and(|exists| exists) };
    let has_namespace = || match fs::read_link(format!("{folder}/ns/net")) {
        Ok(_) => true,
        Err(error) => !has_ended(folder, &error),
    };
    !fields.starts_with(['Z', 'X'])
        && (flags(&fields).is_none_or(|flags| flags & EXITING == 0) || has_namespace())
}

pub(super) fn parent_of(pid: u32) -> Option<u32> {
    stat(&format!("/proc/{pid}"))?.split(' ').nth(1)?.parse().ok()
}

/// Whether a process is in a PID namespace below the own one.
pub(crate) fn is_inside(pid: u32) -> bool {
    depth(&pid.to_string()) > depth("self")
}

/// How many PID namespaces the process is in, from that of `/proc` downwards. Everybody may read that.
fn depth(pid: &str) -> usize {
    let status = sight::read(&format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).map(str::split_whitespace);
    numbers.map_or(0, Iterator::count)
}

/// Whether the process may be in the own network namespace.
fn may_be_here(pid: u32, sight: &Sight) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    link.as_ref().and_then(|to| inode_of(to.to_str()?)).is_none_or(|inode| inode == sight.own)
}

/// The capability that plugins need and this process lacks, by its file `status`.
pub fn lacks(status: &str) -> Option<&'static str> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    let needed = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN")];
    needed.into_iter().find(|(bit, _)| mask & (1 << bit) == 0).map(|(_, name)| name)
}
