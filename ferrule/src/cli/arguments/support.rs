//! The arguments of the commands that help to find a fault.

use std::path::PathBuf;

use clap::Args;

use super::{Programs, State};

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
