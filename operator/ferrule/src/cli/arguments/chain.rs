//! The arguments of `ferrule chain`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("form").required(true))]
pub(in crate::cli) struct Chain {
    /// With one `chain` that runs all plugins of this conflist
    #[arg(long, value_name = "FILE", group = "form")]
    pub(in crate::cli) fold: Option<PathBuf>,
    /// With the members of each `chain` of this conflist in its place
    #[arg(long, value_name = "FILE", group = "form")]
    pub(in crate::cli) unfold: Option<PathBuf>,
}
