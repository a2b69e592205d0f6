//! The proof that neither ADD nor DEL runs for an attachment.
//!
//! The runtime calls ADD before it starts a process in the namespace, and DEL after the last one has ended. So a process in the
//! namespace is the proof. It may also call ADD and DEL for another network of a running container: its plugins name the container.

use std::fs::{self, File};
use std::io::Read as _;

use crate::cache::Entry;
use crate::scene::{self, CALLED, Names, Namespace, Process, has_ended, is_inside, pids, tasks};
use crate::sight::{Sight, inode_of};

/// How much of an environment is read, in bytes. A larger one counts as that of a plugin until it is judged.
const ENVIRONMENT: u64 = 64 << 10;

/// The processes of the node.
pub(super) struct Guard {
    namespaces: Vec<Namespace>,
    callers: Vec<Process>,
}

impl Guard {
    /// Fails if something could not be read.
    pub(super) fn read(sight: &Sight) -> Result<Guard, String> {
        Ok(Guard { namespaces: scene::namespaces(sight)?, callers: callers(sight)? })
    }

    /// Looks again which plugins run.
    pub(super) fn read_callers(&mut self, sight: &Sight) -> Result<(), String> {
        self.callers = callers(sight)?;
        Ok(())
    }

    /// Why ADD or DEL may run for the attachment, or may have changed it since its cached result was read. Reads everything again
    /// except the lists of processes.
    pub(super) fn obstacle(&self, entry: &Entry, sight: &Sight) -> Option<String> {
        if let Some(Process { pid, name, .. }) = self.caller(entry) {
            return Some(format!("process {pid} ({name}) works for it"));
        }
        let now = sight.netns(&entry.netns);
        if now != entry.netns_state {
            return Some(changed(entry));
        }
        let Some(inode) = now.inode() else { return Some("it has no namespace".to_owned()) };
        let mut inside =
            self.namespaces.iter().filter(|one| one.inode == inode).flat_map(|one| &one.processes);
        if !inside.any(|pid| is_in(*pid, inode)) {
            return Some("no process is in its namespace, so it starts or ends".to_owned());
        }
        let written = fs::metadata(&entry.file).and_then(|meta| meta.modified()).ok();
        (written.is_none() || written != entry.since).then(|| "its cached result has changed".to_owned())
    }

    /// A plugin that runs for the container.
    pub(super) fn caller(&self, entry: &Entry) -> Option<&Process> {
        self.callers.iter().find(|process| process.container == entry.owner.container)
    }
}

/// Why an attachment is left alone whose path leads to another namespace by now.
pub(super) fn changed(entry: &Entry) -> String {
    format!("namespace {} has changed", entry.netns)
}

/// Whether a thread of the process is in the namespace now: the main thread may have ended, and each may be in another one.
fn is_in(pid: u32, inode: u64) -> bool {
    let threads = tasks(pid).unwrap_or_default().into_iter();
    let mut namespaces =
        threads.filter_map(|tid| fs::read_link(format!("/proc/{pid}/task/{tid}/ns/net")).ok());
    namespaces.any(|link| link.to_str().and_then(inode_of) == Some(inode))
}

/// The plugins that run. Only what names a container in its environment is read as a whole, and nothing of a container: it can put any
/// container's ID there, and have any number of processes.
fn callers(sight: &Sight) -> Result<Vec<Process>, String> {
    let is_candidate = |pid: &u32| may_be_called(*pid) && !is_inside(*pid);
    let candidates: Vec<u32> = pids(sight)?.into_iter().filter(is_candidate).collect();
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let mut processes = scene::processes_of(sight, &Names::default(), candidates)?;
    let mut hidden = processes.iter().filter(|process| !process.is_inside);
    if let Some(why) = hidden.find_map(|process| process.unjudged.clone()) {
        return Err(why);
    }
    processes.retain(|process| process.container.is_some() && process.is_on_host);
    Ok(processes)
}

/// Whether this process may be a plugin, by its environment. One that cannot be read may be, unless its process has ended.
fn may_be_called(pid: u32) -> bool {
    let (folder, mut bytes) = (format!("/proc/{pid}"), Vec::new());
    let read = File::open(format!("{folder}/environ"))
        .and_then(|file| file.take(ENVIRONMENT).read_to_end(&mut bytes));
    match read {
        Ok(length) => {
            let names = |word: &[u8]| word.starts_with(CALLED.as_bytes());
            length as u64 == ENVIRONMENT || bytes.split(|byte| *byte == 0).any(names)
        }
        Err(error) => !has_ended(&folder, &error),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::MetadataExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn an_environment_tells_a_plugin() {
        let environ = |name: &str, value: &str| {
            let mut child = Command::new("cat").env(name, value).stdin(Stdio::piped()).spawn().unwrap();
            // It is empty for a moment while the program starts.
            while fs::read(format!("/proc/{}/environ", child.id())).unwrap().is_empty() {}
            let found = may_be_called(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        assert!(environ("CNI_CONTAINERID", "c1") && !environ("OTHER", "CNI_CONTAINERID=c1"));
        assert!(!may_be_called(0));
    }

    /// A runtime's thread that is in the container for a moment, or a container whose main thread has another namespace.
    #[test]
    fn each_thread_counts() {
        let script = "import ctypes, os, threading
def work():
    assert ctypes.CDLL(None).unshare(0x40000000) == 0
    print(os.stat(\"/proc/thread-self/ns/net\").st_ino, flush=True)
    threading.Event().wait()
threading.Thread(target=work).start()";
        let mut child = Command::new("python3").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut output = io::BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut output, &mut said).unwrap();
        let (theirs, ours) = (said.trim().parse().unwrap(), fs::metadata("/proc/self/ns/net").unwrap().ino());
        let found = [theirs, ours, 1].map(|inode| is_in(child.id(), inode));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [true, true, false]);
    }
}
