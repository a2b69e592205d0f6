//! The arguments of the commands that help to find a fault.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::{Cache, Node, Plugins, Programs, State};

#[derive(Args, Debug)]
pub(in crate::cli) struct Report {
    /// The archive; - for standard output. Nothing is replaced [default: ferrule-report-TIME.tar]
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) output: Option<PathBuf>,
    /// Keep names and addresses. Secrets are removed in any case
    #[arg(long)]
    pub(in crate::cli) unmasked: bool,
    /// The network configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(in crate::cli) conf_dir: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) programs: Programs,
    /// The log of calls [default: the configured one]
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) log: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) state: State,
}

#[derive(Args, Debug)]
pub(in crate::cli) struct Test {
    /// The network [default: the first one, which runtimes take]
    pub(in crate::cli) network: Option<String>,
    /// A resolver that a pod asks for localhost
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) dns: Option<IpAddr>,
    /// The network configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(in crate::cli) conf_dir: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) plugins: Plugins,
    /// Print one JSON document
    #[arg(long)]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) cache: Cache,
    #[command(flatten)]
    pub(in crate::cli) node: Node,
}
