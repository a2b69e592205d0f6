//! What a plugin is, and everything around it: environment, dispatch, delegation.
//!
//! A whole plugin, chained behind another one, that writes down which container got which addresses:
//!
//! ```no_run
//! use std::fs;
//! use std::process::ExitCode;
//!
//! use cni_common::plugin::{self, Attach, Detach, Plugin};
//! use cni_common::spec::{AddResult, CniError, Step};
//!
//! struct Register;
//!
//! impl Plugin for Register {
//!     fn name(&self) -> &'static str {
//!         "register"
//!     }
//!
//!     fn add(&self, call: &Attach<'_>) -> Result<AddResult, CniError> {
//!         let result = call.prev_result.clone().ok_or_else(|| CniError::invalid_config("must be chained"))?;
//!         let addresses: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
//!         fs::write(file(call.container_id, call.ifname), addresses.join("\n")).step(|| "register the container")?;
//!         Ok(result)
//!     }
//!
//!     fn del(&self, call: &Detach<'_>) -> Result<(), CniError> {
//!         let _ = fs::remove_file(file(call.container_id, call.ifname)); // already gone is success
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

pub use attachment::Attachment;
pub use delegate::Delegate;
pub use dispatch::{run, run_one_of};
pub use env::{Environment, Verb};

use crate::netns::{Netns, NetnsError};
use crate::spec::{AddResult, CniError, Code, NetConf, SpecVersion, ValidAttachment};

/// A CNI plugin. Everything that is alike in all plugins has happened before a verb is called: the environment and the
/// configuration are checked, the version allows the verb, and the container's namespace is not the plugin's own.
pub trait Plugin: Sync {
    /// The name it is installed under.
    fn name(&self) -> &'static str;

    /// Its own version, for the text that it prints when it is run without CNI_COMMAND. By default that of this library,
    /// which plugins of one suite are released with.
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// The specification versions that it supports, oldest first.
    fn spec_versions(&self) -> &'static [SpecVersion] {
        SpecVersion::ALL
    }

    /// What the program does for a person who starts it with arguments and without CNI_COMMAND; `None` if these arguments
    /// mean nothing to it.
    fn tool(&self, _arguments: &[String]) -> Option<std::process::ExitCode> {
        None
    }

    /// Makes the attachment. On an error it leaves nothing behind that it made.
    ///
    /// # Errors
    /// Anything that keeps the attachment from being as the configuration asks.
    fn add(&self, call: &Attach<'_>) -> Result<AddResult, CniError>;

    /// Compares the attachment with `prev_result` and the configuration. Changes nothing.
    ///
    /// # Errors
    /// What is missing or altered.
    fn check(&self, _call: &Attach<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// Removes the attachment. What is gone already is success; a step that fails does not keep the next from being tried.
    ///
    /// # Errors
    /// What could not be removed.
    fn del(&self, call: &Detach<'_>) -> Result<(), CniError>;

    /// Removes what belongs to this network's attachments that are not in `call.valid`.
    ///
    /// # Errors
    /// What could not be removed, after everything else was.
    fn gc(&self, _call: &Collect<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// Says whether ADD could be served; polled every few seconds, so cheap and free of side effects.
    ///
    /// # Errors
    /// Code 50 or 51 with the reason.
    fn status(&self, _call: &Probe<'_>) -> Result<(), CniError> {
        Ok(())
    }
}

/// What ADD and CHECK are about.
pub struct Attach<'a> {
    /// The configuration.
    pub config: &'a NetConf,
    /// Its version, one that the plugin supports.
    pub version: SpecVersion,
    /// The variables.
    pub env: &'a Environment,
    /// CNI_CONTAINERID.
    pub container_id: &'a str,
    /// CNI_IFNAME.
    pub ifname: &'a str,
    /// CNI_NETNS.
    pub sandbox: &'a Sandbox,
    /// On ADD the result of the plugins before this one, on CHECK that of the whole chain.
    pub prev_result: Option<AddResult>,
}

/// What DEL is about.
pub struct Detach<'a> {
    /// The configuration.
    pub config: &'a NetConf,
    /// Its version, one that the plugin supports.
    pub version: SpecVersion,
    /// The variables.
    pub env: &'a Environment,
    /// CNI_CONTAINERID.
    pub container_id: &'a str,
    /// CNI_IFNAME.
    pub ifname: &'a str,
    /// The container's namespace, if there (still) is one.
    pub netns: Option<&'a Netns>,
    /// The result of the whole chain, if it is there and can be read.
    pub prev_result: Option<AddResult>,
}

/// What GC is about.
pub struct Collect<'a> {
    /// The configuration.
    pub config: &'a NetConf,
    /// The variables.
    pub env: &'a Environment,
    /// The attachments of this network that are alive.
    pub valid: &'a [ValidAttachment],
}

/// What STATUS is about.
pub struct Probe<'a> {
    /// The configuration.
    pub config: &'a NetConf,
    /// The variables.
    pub env: &'a Environment,
}

/// CNI_NETNS of ADD and CHECK: a path, and the namespace if it could be opened. An IPAM plugin never asks for it.
#[derive(Debug)]
pub struct Sandbox {
    path: String,
    netns: Result<Netns, NetnsError>,
}

impl Sandbox {
    /// The path as given: what `interfaces[].sandbox` holds.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The namespace.
    ///
    /// # Errors
    /// Code 4 if the path leads to none.
    pub fn netns(&self) -> Result<&Netns, CniError> {
        self.netns.as_ref().map_err(|error| {
            CniError::new(Code::InvalidEnvironment, format!("failed to open netns {:?}: {error}", self.path))
                .with_details(format!("CNI_NETNS={}", self.path))
        })
    }
}
