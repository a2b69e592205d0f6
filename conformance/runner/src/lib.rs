//! Runs the plugins of a network as libcni does: the same operations in the same order, with the same
//! standard input and environment, and the same cache between ADD and DEL.
//!
//! ```no_run
//! use cni_runner::{Attachment, Network, Runtime};
//!
//! # fn main() -> Result<(), cni_runner::Error> {
//! let network = Network::load("/etc/cni/net.d", "pods")?;
//! let runtime = Runtime::new(["/opt/cni/bin"], "/var/lib/cni");
//! let attachment = Attachment::new("container-1", "/run/netns/pod1", "eth0");
//! let result = runtime.add(&network, &attachment)?;
//! println!("{result}");
//! runtime.del(&network, &attachment)?;
//! # Ok(())
//! # }
//! ```

mod attachment;
mod cache;
mod error;
mod exec;
mod gc;
mod go_json;
mod input;
mod network;
mod output;
mod runtime;
mod version;

pub use attachment::Attachment;
pub use cache::{Cache, CachedAttachment};
pub use error::{Error, Failure, PluginError};
pub use exec::{Exec, HeldOpen, TookTooLong, find_plugin};
pub use gc::ValidAttachment;
pub use input::{Extra, plugin_input};
pub use network::Network;
pub use output::Output;
pub use runtime::Runtime;
pub use version::{LATEST, Version};
