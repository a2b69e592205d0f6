//! The clock of leases, and the boot that it belongs to.

use std::fs;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::lease::Millis;

/// The time since boot. Unlike tokio's clock it goes on while the machine sleeps.
pub(crate) fn now() -> Millis {
    // clock_gettime(2) fails only for clocks that do not exist; this one is as old as Linux 2.6.39.
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}

/// The kernel's ID of this boot; empty if it cannot be read.
pub(crate) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim_end().to_owned()
}
