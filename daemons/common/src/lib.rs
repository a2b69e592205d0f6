//! What `ferrule-dhcp`, `ferrule-nic` and `ferrule-node` share. Each concern of a daemon is here once:
//!
//! - [`program`] is the process: arguments, exit statuses, panics, the runtime, and what goes to standard output.
//! - [`log!`] writes a line of the log.
//! - [`asked`] is a Unix socket that answers questions.
//! - [`Pauses`] says how long to wait after failures.
//! - [`alone`] waits until no other instance runs.
//! - [`watch`] tells of changes of files.
//! - [`Metrics`] is the text for Prometheus.
//! - [`node_name`] is the node's name in Kubernetes.

#![deny(missing_docs)]

pub mod asked;
mod instance;
mod metrics;
mod notices;
mod pauses;
pub mod program;

use std::{env, fs};

pub use cni_common::remark as log;
pub use instance::alone;
pub use metrics::Metrics;
pub use notices::watch;
pub use pauses::Pauses;

/// The node's name, as the API server knows it: the given one, NODE_NAME of the environment, or the host name. `None` if all are empty.
pub fn node_name(given: Option<&str>) -> Option<String> {
    let host = || fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_lowercase()).ok();
    let names = [given.map(str::to_owned), env::var("NODE_NAME").ok(), host()];
    names.into_iter().flatten().find(|name| !name.is_empty())
}
