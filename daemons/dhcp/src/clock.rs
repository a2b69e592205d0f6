//! The clock of leases.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::lease::Millis;

/// The time since boot. Unlike tokio's clock it goes on while the machine sleeps.
pub(crate) fn now() -> Millis {
    // clock_gettime(2) fails only for clocks that do not exist; this one is as old as Linux 2.6.39.
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}
