//! The proof that neither ADD nor DEL runs for an attachment.
//!
//! The runtime calls ADD before it starts a process in the namespace, and DEL after the last one has ended. So a process in the
//! namespace is the proof. It may also call ADD and DEL for another network of a running container: its plugins name the container.

use std::fs;

use crate::cache::Entry;
use crate::scene::{self, Names, Namespace, Process};
use crate::sight::{Sight, inode_of};

/// The processes of the node.
pub(super) struct Guard {
    namespaces: Vec<Namespace>,
    processes: Vec<Process>,
}

impl Guard {
    /// Fails if something could not be read.
    pub(super) fn read(sight: &Sight) -> Result<Guard, String> {
        let namespaces = scene::namespaces(sight)?;
        let mut processes = scene::processes(sight, &Names::default())?;
        let mut hidden = processes.iter().filter(|process| !process.is_inside);
        if let Some(why) = hidden.find_map(|process| process.unjudged.clone()) {
            return Err(why);
        }
        // A container can put any container's ID into the environment of its processes.
        processes.retain(|process| process.container.is_some() && process.is_on_host);
        Ok(Guard { namespaces, processes })
    }

    /// Why ADD or DEL may run for the attachment, or may have changed it since its cached result was read. Reads everything again
    /// except the list of processes.
    pub(super) fn obstacle(&self, entry: &Entry, sight: &Sight) -> Option<String> {
        if let Some(Process { pid, name, .. }) = self.caller(entry) {
            return Some(format!("process {pid} ({name}) works for it"));
        }
        let now = sight.netns(&entry.netns);
        if now != entry.netns_state {
            return Some(format!("namespace {} has changed", entry.netns));
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
        self.processes.iter().find(|process| process.container == entry.owner.container)
    }
}

/// Whether the process is in the namespace now.
fn is_in(pid: u32, inode: u64) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    link.and_then(|to| inode_of(to.to_str()?)) == Some(inode)
}
