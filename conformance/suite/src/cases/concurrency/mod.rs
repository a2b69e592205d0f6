//! Test cases of concurrent calls, of the end of processes, and of state that belongs to others.

mod crowd;
mod killed;
mod process;
mod system;

use crate::plugin_under_test::{PLUGINS, Role, STATEFUL};
use crate::test_case::TestCase;

/// Roles of plugins that work in the container's namespace.
const INSIDE: &[Role] = &[Role::Loopback, Role::Interface, Role::Chained];

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("CONC-01", "many-containers-come-and-go-at-once", PLUGINS, crowd::many),
    TestCase::new("CONC-02", "links-come-and-go-in-the-same-namespace", INSIDE, crowd::busy_namespace),
    TestCase::new(
        "CONC-02",
        "loopback-is-added-at-the-same-time",
        &[Role::Interface, Role::Chained],
        crowd::with_loopback,
    ),
    TestCase::new("CONC-04", "after-a-killed-add-del-and-add-go-on", STATEFUL, killed::at_any_time),
    TestCase::new("CONC-04", "a-lock-whose-holder-is-killed-is-free", &[Role::Ipam], killed::holder)
        .only(&["host-local"]),
    TestCase::new("CONC-05", "a-delegate-outlives-its-caller", &[Role::Interface], killed::slow_delegate)
        .delegating(),
    TestCase::new("PROC-01", "no-process-is-left", PLUGINS, process::none_left),
    TestCase::new("PROC-02", "every-call-ends", PLUGINS, process::ends),
    TestCase::new("PROC-02", "the-end-of-the-input-is-waited-for", PLUGINS, process::waits_for_input),
    TestCase::new("SYS-01", "what-is-foreign-stays", PLUGINS, system::foreign),
];
