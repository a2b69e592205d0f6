//! NetworkPolicies: enforces what the compiler ([`ferrule_node_policy`]) makes of the API's objects, in a thread of its own.
//!
//! - [`objects`] has the messages about the API's objects.
//! - `layout` and `encode` say what the table `inet ferrule_policy` contains; `table` is the table in the kernel.
//! - `undecided` has the pods that the plugin `policy` has announced in `inet ferrule_pods`; `release` decides them.
//! - `former` has the pods that have ended and still have a link.
//! - `links` has the addresses and links of this node's pods.
//! - `flows` ends the flows that a change denies; `hosts` knows which pods have a route.
//! - `endpoint` is the health endpoint, which asks whether the table judges the packets of pods.
//! - `inspect` finds what costs too much at each change, `look` calls it once a minute.
//! - `denied` has the counters of what policies deny, and the log of it.
//! - `record` is the file of isolated namespaces.
//! - `enforcer` puts the steps in order, `thread` waits for messages.
//! - [`questions`] is the socket on which `ferrule policy why` asks, `answer` what the objects say.
//!
//! # The order
//!
//! An announcement is copied at once. A pod is released when its rules are in the table, and its address's earlier flows are gone. The file of
//! isolated namespaces names a namespace before its policy is in the table, and until it is out of it. Until all objects are listed, a table that is
//! there stays as it is.

#[cfg(test)]
mod agreement;
mod answer;
mod denied;
mod encode;
mod endpoint;
mod enforcer;
mod flows;
mod former;
mod hosts;
mod how;
mod inspect;
mod ipvs;
mod layout;
mod links;
mod look;
pub mod objects;
pub mod questions;
mod record;
mod release;
mod report;
mod table;
mod thread;
mod undecided;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};
use ferrule_policy_kit::isolated::{self, Isolated};

pub(crate) use answer::answer;
pub use denied::Count;
pub use how::How;
pub use layout::mark;
pub use report::Report;
pub use thread::{Handle, spawn};

/// Removes the table and the file. The conflist has gone first: without the file the plugin isolates every new pod. Returns what was
/// there, for the report.
///
/// # Errors
/// The kernel or the disk refuses it.
pub fn cleanup() -> Result<Vec<String>> {
    let path = Path::new(isolated::PATH);
    let mut removed = table::remove(path.symlink_metadata().is_ok())?;
    match fs::remove_file(path) {
        Ok(()) => removed.push(format!("file {}", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("remove {}", path.display())),
    }
    if let Some(folder) = path.parent() {
        let _ = fs::remove_dir(folder);
    }
    Ok(removed)
}

/// Whether there is a table of an earlier daemon.
///
/// # Errors
/// The kernel refuses to say it.
pub fn holds() -> Result<bool> {
    table::exists()
}

/// With `--policy off`: if an earlier daemon has enforced policies, removes its table, and releases all pods. A plugin that is still in the
/// conflist isolates no pod from then on. `is_listed`: it is in the daemon's conflist; without that, another program's file stays.
///
/// # Errors
/// The kernel or the disk refuses it.
pub fn stand_down(path: &Path, is_listed: bool) -> Result<Vec<String>> {
    if !is_listed && !table::exists()? {
        return Ok(Vec::new());
    }
    Isolated::default().write(path).with_context(|| path.display().to_string())?;
    table::remove(is_listed)
}
