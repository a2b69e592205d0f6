//! The arguments of the commands that read the log of calls.

use std::path::PathBuf;

use clap::Args;

use super::positive;

#[derive(Args, Debug)]
pub(in crate::cli) struct Log {
    /// At most N calls
    #[arg(long, value_name = "N", default_value = "20", value_parser = positive())]
    pub(in crate::cli) last: u32,
    /// The N slowest calls instead, the slowest first
    #[arg(long, value_name = "N", conflicts_with = "last", value_parser = positive())]
    pub(in crate::cli) slowest: Option<u32>,
    /// Only calls that failed
    #[arg(long)]
    pub(in crate::cli) failed: bool,
    /// Only calls for one container: the beginning of its ID, or its pod as NAMESPACE/NAME or NAME
    #[arg(long, value_name = "WHO")]
    pub(in crate::cli) container: Option<String>,
    /// Only calls of one trace, by the beginning of its ID: the runtime's TRACEPARENT names it
    #[arg(long, value_name = "ID")]
    pub(in crate::cli) trace: Option<String>,
    /// Append the calls that FILE does not have yet to FILE as spans: a line of OTLP/JSON for each call, for OpenTelemetry.
    /// Steps are child spans. At 10 MiB it becomes FILE.1
    #[arg(long, value_name = "FILE", conflicts_with_all = ["last", "slowest", "failed", "container", "trace", "json"])]
    pub(in crate::cli) otlp: Option<PathBuf>,
    /// Print their lines, with all steps and netlink errors
    #[arg(long)]
    pub(in crate::cli) json: bool,
    /// The log; /dev/stdin for lines from journald or syslog [default: the configured one]
    #[arg(long)]
    pub(in crate::cli) file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(in crate::cli) struct Metrics {
    /// Write them to FILE, which replaces an earlier one by a rename: for the folder of node_exporter's textfile collector.
    /// Calls that FILE has counted stay counted when the log is rotated [default: print them]
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) output: Option<PathBuf>,
    /// The log [default: the configured one]
    #[arg(long)]
    pub(in crate::cli) file: Option<PathBuf>,
}
