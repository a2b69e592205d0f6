//! Private nodes for tests: a network namespace with its own `/run` and `/var/lib/cni`, with pods and outside
//! clients.
//!
//! A [`Node`] has no process of its own. It holds two file descriptors, and all work runs in threads that
//! enter the namespaces first; plugins that such a thread starts inherit them. So any number of threads can
//! use any number of nodes at once, and the kernel removes everything when a node is dropped, a test panics,
//! or the process is killed.
//!
//! ```no_run
//! use cni_lab::{Node, Place as _, Snapshot, go_bin_dir};
//! use cni_runner::Network;
//! use serde_json::json;
//!
//! # fn main() -> anyhow::Result<()> {
//! let node = Node::new()?;
//! let pod = node.pod("pod1")?;
//! let before = Snapshot::take(&node)?;
//!
//! let network = Network::from_value(&json!({
//!     "name": "pods", "cniVersion": "1.0.0", "plugins": [{
//!         "type": "bridge", "bridge": "cni0", "isGateway": true,
//!         "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]}))?;
//! let runtime = node.runtime([go_bin_dir()?]);
//! let result = runtime.add(&network, &pod.attachment("eth0"))?;
//! assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
//! pod.sh("ping -c 1 -W 2 10.1.0.1")?;
//! runtime.del(&network, &pod.attachment("eth0"))?;
//!
//! let after = Snapshot::take(&node)?;
//! let leftovers = ["link: cni0 ", "address: cni0 ", "dev=cni0", "ip_forward", "/var/lib/cni/networks"];
//! assert_eq!(before.ignoring(&leftovers).diff(&after.ignoring(&leftovers)), "");
//! # Ok(())
//! # }
//! ```

mod background;
mod bins;
mod client;
mod containers;
mod failing_calls;
pub mod failing_daemon;
mod kernel_module;
mod kill_points;
mod namespaces;
mod node;
mod node_runtime;
mod place;
mod pod;
mod remarks;
mod snapshot;
mod strace;
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed expectation ends the test")]
pub mod testing;

pub use background::Background;
pub use bins::{bin_dir, bin_dir_for, go_bin_dir};
pub use client::Client;
pub use containers::{Containerd, Podman};
pub use failing_calls::FailingCall;
pub use kernel_module::kernel_module;
pub use kill_points::{KillPoint, WaysOn};
pub use node::Node;
pub use node_runtime::NodeRuntime;
pub use place::{Machine, Place, TIMEOUT, eventually};
pub use pod::Pod;
pub use remarks::repeated;
pub use snapshot::Snapshot;
pub use strace::is_group_alive;
