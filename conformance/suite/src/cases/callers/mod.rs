//! Test cases that replay what runtimes do, with a folder's whole chain: bridge and host-local; loopback,
//! bandwidth and portmap if the folder has them and the kernel supports them.

mod caller;
mod cnitool;
mod containerd;
mod crio;
mod nerdctl;
mod networks;
mod podman;
mod recorded;
mod recordings;

use std::time::Duration;

use self::caller::Caller;
use crate::outcome::{Stop, TestResult, ensure};
use crate::plugin_under_test::Role;
use crate::test_case::TestCase;
use crate::test_context::TestContext;
use cni_lab::{Place as _, eventually};

const CHAIN: &[Role] = &[Role::Chain];

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("CALL-01", "a-pod-under-containerd", CHAIN, |test| containerd::pod(test, 1)),
    TestCase::new("CALL-02", "a-failed-add-under-containerd", CHAIN, |test| containerd::failed_add(test, 1)),
    TestCase::new("CALL-03", "containerd-after-a-reboot", CHAIN, |test| containerd::after_a_reboot(test, 1)),
    TestCase::new("CALL-04", "a-pod-under-crio", CHAIN, |test| crio::pod(test, 1)),
    TestCase::new("CALL-05", "a-restart-under-nerdctl", CHAIN, |test| nerdctl::restart(test, 1)),
    TestCase::new("CALL-06", "a-container-under-podman", CHAIN, |test| podman::container(test, 1)),
    TestCase::new("CALL-07", "two-networks-at-once", CHAIN, |test| networks::two_at_once(test, 1)),
    TestCase::new("CALL-08", "cnitool-by-hand", CHAIN, |test| cnitool::by_hand(test, 1)),
    TestCase::new("CALL-09", "calls-of-containerd", CHAIN, recorded::containerd),
    TestCase::new("CALL-09", "calls-of-crio", CHAIN, recorded::crio),
    TestCase::new("CALL-09", "calls-of-podman", CHAIN, recorded::podman),
    TestCase::new("CALL-09", "calls-of-nerdctl", CHAIN, recorded::nerdctl),
    TestCase::new("CALL-09", "calls-of-cnitool", CHAIN, recorded::cnitool),
    TestCase::new("CALL-10", "a-pod-under-containerd", CHAIN, |test| unchanged_after(test, containerd::pod)),
    TestCase::new("CALL-10", "a-failed-add-under-containerd", CHAIN, |test| {
        unchanged_after(test, containerd::failed_add)
    }),
    TestCase::new("CALL-10", "containerd-after-a-reboot", CHAIN, |test| {
        unchanged_after(test, containerd::after_a_reboot)
    }),
    TestCase::new("CALL-10", "a-pod-under-crio", CHAIN, |test| unchanged_after(test, crio::pod)),
    TestCase::new("CALL-10", "a-restart-under-nerdctl", CHAIN, |test| {
        unchanged_after(test, nerdctl::restart)
    }),
    TestCase::new("CALL-10", "a-container-under-podman", CHAIN, |test| {
        unchanged_after(test, podman::container)
    }),
    TestCase::new("CALL-10", "two-networks-at-once", CHAIN, |test| {
        unchanged_after(test, networks::two_at_once)
    }),
    TestCase::new("CALL-10", "cnitool-by-hand", CHAIN, |test| unchanged_after(test, cnitool::by_hand)),
];

/// Expects that a sequence leaves nothing behind and does not change another network. The first run makes
/// state that the network's attachments share, such as the bridge; the second run, with another container, is
/// compared.
fn unchanged_after(test: &TestContext<'_>, sequence: fn(&TestContext<'_>, u8) -> TestResult) -> TestResult {
    let caller = Caller::new(test)?;
    let network = caller.chain("neighbours", test.version, caller::bridge("cni-others", "10.99.0.0/24"))?;
    let neighbour = test.node()?.pod("neighbour")?;
    let ports = serde_json::json!([{"hostPort": 18099, "containerPort": 80, "protocol": "tcp"}]);
    caller.add(&network, &neighbour.attachment("eth0").with_capability("portMappings", ports))?;
    let links = || Ok::<_, Stop>(test.node()?.sh("ip -o link show type veth | wc -l")?);
    let at_first = links()?;
    sequence(test, 1)?;
    // The kernel removes a pod's links some time after its namespace.
    eventually(Duration::from_secs(4), || links().is_ok_and(|now| now == at_first));
    let before = test.snapshot()?;
    sequence(test, 2)?;
    let changes = test.changes_since(&before)?;
    ensure(changes.is_empty(), "no change on the node", changes)
}
