//! The [`Plugin`] trait, and what every plugin needs: environment, dispatch, delegation.
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
//! struct Register;
//!
//! impl Plugin for Register {
//!     fn name(&self) -> &'static str {
//!         "register"
//!     }
//!
//!     fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
//!         let result = call.prev_result.clone().ok_or_else(|| CniError::invalid_config("must be chained"))?;
//!         let addresses: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
//!         let path = file(call.container_id, call.ifname);
//!         fs::write(path, addresses.join("\n")).context(|| "record the addresses")?;
//!         Ok(result)
//!     }
//!
//!     fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
//!         let _ = fs::remove_file(file(call.container_id, call.ifname)); // a missing file is not an error
//!         Ok(())
//!     }
//! }
//!
//! fn file(container_id: &str, ifname: &str) -> String {
//!     format!("/run/register-{container_id}-{ifname}")
//! }
//!
//! fn main() -> ExitCode {
//!     plugin::run(&Register)
//! }
//! ```

mod attachment;
pub mod delegate;
mod dispatch;
pub mod env;
mod own_program;
mod streams;

pub use attachment::Attachment;
pub use delegate::Delegate;
pub use dispatch::{run, run_one_of};
pub use env::{Environment, Verb};

use crate::netns::{Netns, NetnsError, Presence};
use crate::spec::{AddResult, CniError, Code, NetConf, SpecVersion, ValidAttachment};

/// A CNI plugin. Before the dispatcher calls a verb, it checks the environment and the configuration, that
/// the version allows the verb, and that CNI_NETNS is not the plugin's own namespace.
pub trait Plugin: Sync {
    /// The file name of the executable.
    fn name(&self) -> &'static str;

    /// The version of the plugin, which it prints if it is run without CNI_COMMAND. By default the version of
    /// this crate.
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The supported specification versions, oldest first.
    fn spec_versions(&self) -> &'static [SpecVersion] {
        SpecVersion::ALL
    }

    /// Runs a command-line tool of the plugin: called with the arguments if CNI_COMMAND is not set. `None` if
    /// the plugin has no tool for these arguments.
    fn tool(&self, _arguments: &[String]) -> Option<std::process::ExitCode> {
        None
    }

    /// Makes the attachment. On an error it removes everything that it has made.
    ///
    /// # Errors
    /// The attachment could not be made as configured.
    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError>;

    /// Compares the attachment with `prev_result` and the configuration. Changes nothing.
    ///
    /// # Errors
    /// Names the missing or different object.
    fn check(&self, _call: &AddRequest<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// Removes the attachment. A missing object is not an error. Continues after a failed step.
    ///
    /// # Errors
    /// Names everything that could not be removed.
    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError>;

    /// Removes the objects of all attachments of this network that are not in `call.valid`. Continues after a
    /// failed step.
    ///
    /// # Errors
    /// Names everything that could not be removed.
    fn gc(&self, _call: &GcRequest<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// Checks whether the plugin can serve ADD. Runtimes call it every few seconds, so it must be cheap and
    /// without side effects.
    ///
    /// # Errors
    /// Code 50 or 51 with the reason.
    fn status(&self, _call: &StatusRequest<'_>) -> Result<(), CniError> {
        Ok(())
    }
}

/// The input of ADD and CHECK.
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
    /// ADD: the result of the preceding plugin. CHECK: the result of the whole chain. `None` if the runtime
    /// sent none.
    pub prev_result: Option<AddResult>,
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
    /// The container's network namespace. [`Presence::Gone`] if CNI_NETNS is empty, no longer exists or is the plugin's
    /// own. [`Presence::Unknown`] if it cannot be opened: the plugin then removes its objects on the host, keeps its
    /// records of the container, and the dispatcher returns an error, so that the runtime calls DEL again.
    pub netns: &'a Presence,
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
