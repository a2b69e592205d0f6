//! Plugins at the same time, their ends, and what they leave alone.

mod crowd;
mod killed;
mod process;
mod system;

use crate::suite::subject::{PLUGINS, Role, STATEFUL};
use crate::suite::trial::Trial;

/// Those that work in the container's namespace.
const INSIDE: &[Role] = &[Role::Loopback, Role::Interface, Role::Chained];

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("CONC-01", "many-containers-come-and-go-at-once", PLUGINS, crowd::many),
    Trial::new("CONC-02", "links-come-and-go-in-the-same-namespace", INSIDE, crowd::busy_namespace),
    Trial::new(
        "CONC-02",
        "loopback-is-added-at-the-same-time",
        &[Role::Interface, Role::Chained],
        crowd::with_loopback,
    ),
    Trial::new("CONC-04", "after-a-killed-add-del-and-add-go-on", STATEFUL, killed::at_any_time),
    Trial::new("CONC-04", "a-lock-whose-holder-is-killed-is-free", &[Role::Ipam], killed::holder)
        .only(&["host-local"]),
    Trial::new("CONC-05", "a-delegate-outlives-its-caller", &[Role::Interface], killed::slow_delegate)
        .delegating(),
    Trial::new("PROC-01", "no-process-is-left", PLUGINS, process::none_left),
    Trial::new("PROC-02", "every-call-ends", PLUGINS, process::ends),
    Trial::new("PROC-02", "the-end-of-the-input-is-waited-for", PLUGINS, process::waits_for_input),
    Trial::new("SYS-01", "what-is-foreign-stays", PLUGINS, system::foreign),
];
