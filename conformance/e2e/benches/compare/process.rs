//! Wall time and CPU time of one call.

use std::time::Duration;

use anyhow::Context as _;
use cni_runner::{Exec, Output};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// The time of one call or the sum of several.
#[derive(Clone, Copy, Default)]
pub(crate) struct Time {
    /// From just before the start to just after the end.
    pub(crate) wall: Duration,
    /// User and system time of the plugin and of all descendants that it waited for.
    pub(crate) cpu: Duration,
}

/// Runs a call. No other child of this process may end during it, because the CPU time is that of all
/// children.
pub(crate) fn time(exec: &Exec) -> anyhow::Result<(Output, Time)> {
    let before = cpu_of_children()?;
    let output = exec.run()?;
    let cpu = cpu_of_children()?.saturating_sub(before);
    let wall = output.wall;
    Ok((output, Time { wall, cpu }))
}

fn cpu_of_children() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let spent: TimeVal = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(u64::try_from(spent.num_microseconds())?))
}
