//! Installs the plugins into the folder where runtimes look for them, restores the files that were there, and
//! lists the installed plugins.
//!
//! Runtimes start plugins at any time. So a plugin's file changes only by rename(2), from a complete file
//! beside it. An installation first writes its changes to a journal. If it fails, or if it is killed and the
//! command runs again, it reads the journal and restores the files.
//!
//! The state is in `BIN_DIR/.ferrule/`, in the format of the script that installed Ferrule before this crate:
//!
//! - [`manifest`]: the installed plugins, and the files that they replaced;
//! - [`journal`]: the changes of a running installation;
//! - `saved/NAME.FINGERPRINT`: the replaced files.
//!
//! [`manifest`], [`journal`], [`names`] and [`plan`] ask neither the kernel nor the disk. [`folder`] and
//! [`copy`] handle the files, [`session`] locks the folder and carries out a plan, [`process`] and
//! [`program`] run plugins, and [`verbs`] has the steps of each command.

#![deny(missing_docs)]

pub mod console;
pub mod copy;
pub mod failure;
pub mod fingerprint;
pub mod folder;
pub mod host_ports;
pub mod index;
pub mod journal;
pub mod manifest;
pub mod names;
pub mod plan;
pub mod process;
pub mod program;
pub mod session;
pub mod signals;
pub mod status;
pub mod verbs;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

pub use failure::Failure;
pub use host_ports::HostPorts;
pub use status::{Condition, status};
pub use verbs::{install, roll_back, uninstall};

/// The name under which the program is this tool, and not a plugin.
pub const TOOL: &str = "ferrule";
/// The daemons, which are programs of their own, each with the plugin that it comes and goes with.
const DAEMONS: [(&str, &str); 2] = [("ferrule-dhcp", "dhcp"), ("ferrule-nic", "host-device")];

/// The daemons of these plugins.
fn daemons_of(plugins: &BTreeSet<String>) -> Vec<&'static str> {
    DAEMONS.iter().filter(|(_, plugin)| plugins.contains(*plugin)).map(|(daemon, _)| *daemon).collect()
}

/// What this program contains.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// The names of its plugins.
    pub plugins: &'a [&'a str],
}

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The folder of the plugins.
    pub bin_dir: PathBuf,
    /// The folder with the programs to install; `None` for this program.
    pub from: Option<PathBuf>,
    /// Only these plugins, separated by spaces or commas; `None` for all.
    pub plugins: Option<String>,
    /// Check and print everything, change nothing.
    pub dry_run: bool,
    /// Also restore files that have changed since the installation.
    pub force: bool,
    /// How long to wait for another process that works on the folder.
    pub wait: Duration,
    /// Where the host ports of running pods go.
    pub host_ports: HostPorts,
    /// Folders of host-local, in addition to those that the network configurations name.
    pub data_dirs: Vec<PathBuf>,
    /// The folder of the network configurations.
    pub conf_dir: PathBuf,
}

impl Default for Request {
    fn default() -> Self {
        Request {
            bin_dir: "/opt/cni/bin".into(),
            from: None,
            plugins: None,
            dry_run: false,
            force: false,
            wait: Duration::from_secs(30),
            host_ports: HostPorts::Auto,
            data_dirs: Vec::new(),
            conf_dir: "/etc/cni/net.d".into(),
        }
    }
}

impl Request {
    /// The word before a verb in the output: a dry run only describes its changes.
    fn would(&self) -> &'static str {
        if self.dry_run { "would " } else { "" }
    }
}

/// How a command that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is done, or there was nothing to do.
    Done,
    /// Done, except for files that have changed since the installation, or for host ports that stay in
    /// Ferrule's table.
    Partly,
}
