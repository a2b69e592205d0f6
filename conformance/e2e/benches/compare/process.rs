//! Wall time, CPU time and page faults of one call.

use std::time::Duration;

use anyhow::Context as _;
use cni_runner::{Exec, Output};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// The cost of one call.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    /// From just before the start to just after the end.
    pub(crate) wall: Duration,
    /// User and system time of the plugin and of all descendants that it waited for.
    pub(crate) cpu: Duration,
    /// Page faults of the same processes that read nothing from a disk.
    pub(crate) faults: u64,
}

/// Runs a call. No other child of this process may end during it, because CPU time and page faults are those
/// of all children.
pub(crate) fn measure(exec: &Exec) -> anyhow::Result<(Output, Cost)> {
    let before = of_children()?;
    let output = exec.run()?;
    let after = of_children()?;
    let (wall, cpu) = (output.wall, after.0.saturating_sub(before.0));
    Ok((output, Cost { wall, cpu, faults: after.1.saturating_sub(before.1) }))
}

/// CPU time and page faults.
pub(crate) fn of_children() -> anyhow::Result<(Duration, u64)> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let spent: TimeVal = usage.user_time() + usage.system_time();
    let spent = Duration::from_micros(u64::try_from(spent.num_microseconds())?);
    Ok((spent, u64::try_from(usage.minor_page_faults())?))
}
