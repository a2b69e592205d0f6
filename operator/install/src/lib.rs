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

pub mod chain;
pub mod console;
pub mod copy;
pub mod fingerprint;
pub mod folder;
pub mod host_ports;
pub mod index;
pub mod journal;
pub mod manifest;
pub mod names;
pub mod options;
pub mod plan;
pub mod process;
pub mod program;
pub mod session;
pub mod signals;
pub mod status;
pub mod verbs;

pub use plan::Back;
pub use signals::Stopped;
pub use status::{Condition, status};
pub use verbs::{install, restore};

/// The name under which the program is this tool, and not a plugin.
pub const TOOL: &str = "ferrule";
/// The daemons, which are programs of their own, each with the plugin that it comes and goes with.
const DAEMONS: [(&str, &str); 3] =
    [("ferrule-dhcp", "dhcp"), ("ferrule-nic", "host-device"), ("ferrule-node", "bridge")];

/// The daemons of these plugins.
fn daemons_of(plugins: &names::Names) -> impl Iterator<Item = &'static str> {
    DAEMONS.iter().filter(|(_, plugin)| plugins.contains(*plugin)).map(|(daemon, _)| *daemon)
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
