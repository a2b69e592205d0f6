//! What the user asks for. The comments are the texts of `--help`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::names::{self, Names};

/// Options of every command that changes the folder.
#[derive(Args, Debug)]
pub struct Change {
    /// The folder of the plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub bin_dir: PathBuf,
    /// Only these plugins, separated by commas or spaces; ferrule comes and goes with them [default: all]
    #[arg(long, value_name = "NAMES", value_parser = names::parse)]
    pub plugins: Option<Names>,
    /// Check everything, print the steps, change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How long to wait for another installation that works on the same folder
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    pub wait: u64,
}

impl Change {
    /// The word before a verb in the output: a dry run only describes its changes.
    pub(crate) fn would(&self) -> &'static str {
        if self.dry_run { "would " } else { "" }
    }
}

/// Options of `install`.
#[derive(Args, Debug)]
pub struct Install {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub change: Change,
    /// Install the programs in DIR instead of this one
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
}

/// Options of `rollback` and `uninstall`.
#[derive(Args, Debug)]
pub struct Restore {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub change: Change,
    /// Also restore files that have changed since the installation; without it they stay, and the exit status is 3
    #[arg(long)]
    pub force: bool,
    /// Where the host ports of running pods go when portmap is replaced [default: iptables if the node has it, else
    /// nftables, as the reference plugin chooses]
    #[arg(long, value_name = "TO")]
    pub host_ports: Option<HostPorts>,
    /// The network configurations, which name the folders of host-local
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub conf_dir: PathBuf,
    /// One more folder of host-local (dataDir in its configuration); may be repeated
    #[arg(long = "data-dir", value_name = "DIR")]
    pub data_dirs: Vec<PathBuf>,
}

/// Where host ports go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostPorts {
    /// To the reference plugin's backend iptables
    Iptables,
    /// To its backend nftables: if your configuration says nftables
    Nftables,
    /// Nowhere
    Keep,
}

/// Options of `status`.
#[derive(Args, Debug)]
pub struct Status {
    /// The folder of the plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub bin_dir: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
