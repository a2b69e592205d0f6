//! The type [`Plugin`], and what every plugin needs: environment, dispatch, delegation.
//!
//! A complete chained plugin, which records the addresses of each container in a file:
//!
//! ```no_run
//! use std::fs;
//! use std::process::ExitCode;
//!
//! use cni_common::plugin::{self, AddRequest, DelRequest, Plugin};
//! use cni_common::spec::{AddResult, CniError, Context};
//!
//! fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
//!     let result = call.prev_result.clone().ok_or_else(|| CniError::invalid_config("must be chained"))?;
//!     let addresses: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
//!     let path = file(call.container_id, call.ifname);
//!     fs::write(path, addresses.join("\n")).context(|| "write the addresses")?;
//!     Ok(result)
//! }
//!
//! fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
//!     let _ = fs::remove_file(file(call.container_id, call.ifname)); // a missing file is not an error
//!     Ok(())
//! }
//!
//! fn file(container_id: &str, ifname: &str) -> String {
//!     format!("/run/register-{container_id}-{ifname}")
//! }
//!
//! fn main() -> ExitCode {
//!     plugin::run(&Plugin::new("register", add, del))
//! }
//! ```

mod attachment;
pub mod call_log;
mod child;
pub mod delegate;
mod dispatch;
pub mod env;
mod opened;
mod own_program;
mod panics;
mod repair;
mod streams;

pub use attachment::Attachment;
pub use delegate::Delegate;
pub use dispatch::{run, run_one_of};
pub use env::{Environment, Verb};
pub use opened::Opened;
pub use panics::in_case_of_panic;
pub use repair::Repair;

use crate::netns::{ContainerNetns, Netns, NetnsError};
use crate::spec::{AddResult, CniError, Code, NetConf, SpecVersion, ValidAttachment};

/// A function for an attachment that exists, with its result: CHECK or repair.
pub type OnAttachment = fn(&AddRequest<'_>) -> Result<(), CniError>;

/// A CNI plugin: its name, and a function for each verb. Before the dispatcher calls a verb, it checks the environment and
/// the configuration, that the version allows the verb, and that CNI_NETNS is not the plugin's own namespace.
pub struct Plugin {
    /// The file name of the executable.
    pub name: &'static str,

    /// The version of the plugin, which it prints if it is run without CNI_COMMAND. By default the version of
    /// this crate.
    pub version: &'static str,

    /// The supported specification versions, oldest first. By default all.
    pub spec_versions: &'static [SpecVersion],

    /// Runs a command-line tool of the plugin: called with the arguments if CNI_COMMAND is not set. `None` if
    /// the plugin has no tool for these arguments.
    pub tool: fn(&[String]) -> Option<std::process::ExitCode>,

    /// Makes the attachment. On an error it removes everything that it has created.
    ///
    /// Fails if the attachment could not be made as configured.
    pub add: fn(&AddRequest<'_>) -> Result<AddResult, CniError>,

    /// Compares the attachment with `prev_result` and the configuration. Changes nothing. By default does nothing.
    ///
    /// The error names the missing or different object.
    pub check: OnAttachment,

    /// Makes again what [`check`](Self::check) refuses, and changes nothing else. Not a verb of CNI: `ferrule repair` calls it for a
    /// running container after CHECK has failed, and CHECK again after it. Connections that still work go on. A second call
    /// completes one that was killed. `None`, the default: the plugin has nothing that can be made again.
    ///
    /// The error names what cannot be made again, and why.
    #[allow(clippy::type_complexity, reason = "the type of each other verb, if there is one")]
    pub repair: Option<OnAttachment>,

    /// Removes the attachment. A missing object is not an error. Continues after a failed step.
    ///
    /// The error names everything that could not be removed.
    pub del: fn(&DelRequest<'_>) -> Result<(), CniError>,

    /// Removes the objects of all attachments of this network that are not in `call.valid`. Continues after a
    /// failed step. By default does nothing.
    ///
    /// The error names everything that could not be removed.
    pub gc: fn(&GcRequest<'_>) -> Result<(), CniError>,

    /// Checks whether the plugin can serve ADD. Runtimes call it every few seconds, so it must be cheap and
    /// without side effects. By default does nothing.
    ///
    /// The error has code 50 or 51 and the reason.
    pub status: fn(&StatusRequest<'_>) -> Result<(), CniError>,
}

impl Plugin {
    /// A plugin with the two verbs that each plugin must have, and the default for everything else.
    pub const fn new(
        name: &'static str,
        add: fn(&AddRequest<'_>) -> Result<AddResult, CniError>,
        del: fn(&DelRequest<'_>) -> Result<(), CniError>,
    ) -> Self {
        Plugin {
            name,
            version: env!("CARGO_PKG_VERSION"),
            spec_versions: SpecVersion::ALL,
            tool: |_| None,
            add,
            check: |_| Ok(()),
            repair: None,
            del,
            gc: |_| Ok(()),
            status: |_| Ok(()),
        }
    }
}

/// The input of ADD, CHECK and repair.
pub struct AddRequest<'a> {
    /// The network configuration.
    pub config: &'a NetConf,
    /// The version of the configuration; the plugin supports it.
    pub version: SpecVersion,
    /// The environment variables.
    pub env: &'a Environment,
    /// CNI_CONTAINERID.
    pub container_id: &'a str,
    /// CNI_IFNAME.
    pub ifname: &'a str,
    /// CNI_NETNS.
    pub sandbox: &'a Sandbox,
    /// ADD: the result of the preceding plugin. CHECK and repair: the result of the whole chain. `None` if the runtime
    /// sent none.
    pub prev_result: Option<AddResult>,
}

impl AddRequest<'_> {
    /// The result of the preceding plugin, for a plugin that needs one.
    ///
    /// # Errors
    /// Code 7 if the runtime sent none.
    pub fn earlier_result(&self) -> Result<&AddResult, CniError> {
        let missing = || CniError::invalid_config("missing prevResult from earlier plugin");
        self.prev_result.as_ref().ok_or_else(missing)
    }
}

/// The input of DEL.
pub struct DelRequest<'a> {
    /// The network configuration.
    pub config: &'a NetConf,
    /// The version of the configuration; the plugin supports it.
    pub version: SpecVersion,
    /// The environment variables.
    pub env: &'a Environment,
    /// CNI_CONTAINERID.
    pub container_id: &'a str,
    /// CNI_IFNAME.
    pub ifname: &'a str,
    /// The container's network namespace. [`ContainerNetns::Gone`] if CNI_NETNS is empty, no longer exists or is the plugin's
    /// own. [`ContainerNetns::Unknown`] if it cannot be opened: the plugin then removes its objects on the host, keeps its
    /// records of the container, and the dispatcher returns an error, so that the runtime calls DEL again.
    pub netns: &'a ContainerNetns,
    /// The result of the whole chain. `None` if the runtime sent none or it cannot be decoded.
    pub prev_result: Option<AddResult>,
}

/// The input of GC.
pub struct GcRequest<'a> {
    /// The network configuration.
    pub config: &'a NetConf,
    /// The environment variables.
    pub env: &'a Environment,
    /// The attachments of this network that still exist.
    pub valid: &'a [ValidAttachment],
}

/// The input of STATUS.
pub struct StatusRequest<'a> {
    /// The network configuration.
    pub config: &'a NetConf,
    /// The environment variables.
    pub env: &'a Environment,
}

/// CNI_NETNS of ADD and CHECK: the path, and the result of opening the namespace. An error of opening
/// surfaces only if the plugin calls [`Sandbox::netns`]; IPAM plugins do not.
#[derive(Debug)]
pub struct Sandbox {
    path: String,
    netns: Result<Netns, NetnsError>,
}

impl Sandbox {
    /// CNI_NETNS, unchanged: the value of `interfaces[].sandbox` in results.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The opened namespace.
    ///
    /// # Errors
    /// Code 4 if the path could not be opened as a network namespace.
    pub fn netns(&self) -> Result<&Netns, CniError> {
        self.netns.as_ref().map_err(|error| {
            CniError::new(Code::InvalidEnvironment, format!("failed to open netns {:?}: {error}", self.path))
                .with_details(format!("CNI_NETNS={}", self.path))
        })
    }
}
