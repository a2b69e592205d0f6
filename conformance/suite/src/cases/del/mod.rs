//! Test cases of DEL.

mod broken;
mod missing;

use super::tools::node_in_use;
use crate::call::Refusal;
use crate::outcome::{Stop, TestResult, skip};
use crate::plugin_under_test::{PLUGINS, Role, STATEFUL};
use crate::stub::Reply;
use crate::test_case::TestCase;
use crate::test_context::TestContext;
use cni_lab::Place as _;

/// The role of plugins that make an interface.
const INTERFACE: &[Role] = &[Role::Interface];
/// Roles of plugins that work on links and may use helper programs.
const WORKERS: &[Role] = &[Role::Interface, Role::Chained];
/// Plugins with a key in `broken` that DEL does not need.
const SPOILT: &[&str] = &[
    "bridge",
    "ptp",
    "macvlan",
    "ipvlan",
    "vlan",
    "dummy",
    "tap",
    "host-local",
    "shared",
    "static",
    "portmap",
    "bandwidth",
];

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("DEL-01", "nothing-is-left", STATEFUL, nothing_left).each_version(),
    TestCase::new("DEL-01", "lo-is-down-again", &[Role::Loopback], lo_is_down).each_version(),
    TestCase::new("DEL-01", "an-attachment-can-be-made-again", PLUGINS, again),
    TestCase::new("DEL-02", "three-times", PLUGINS, repeated).each_version(),
    TestCase::new("DEL-03", "netns-not-given", PLUGINS, missing::after_add_not_given),
    TestCase::new("DEL-03", "namespace-gone", PLUGINS, missing::after_add_gone),
    TestCase::new("DEL-03", "namespace-unmounted", PLUGINS, missing::after_add_unmounted),
    TestCase::new("DEL-03", "interface-gone", WORKERS, missing::after_add_no_interface),
    TestCase::new("DEL-03", "never-added-and-namespace-unmounted", PLUGINS, missing::never_added_unmounted),
    TestCase::new("DEL-03", "never-added-and-interface-gone", WORKERS, missing::never_added_no_interface),
    TestCase::new("DEL-04", "prev-result-absent-or-null", PLUGINS, without_previous).each_version(),
    TestCase::new("DEL-05", "ipam-is-called-whatever-is-gone", INTERFACE, missing::ipam_called).delegating(),
    TestCase::new("DEL-06", "the-ipam-plugin-fails", INTERFACE, ipam_fails).delegating().each_version(),
    TestCase::new("DEL-07", "nothing-but-the-namespace", PLUGINS, missing::never_added).each_version(),
    TestCase::new("DEL-07", "netns-not-given", PLUGINS, missing::never_added_not_given),
    TestCase::new("DEL-07", "namespace-gone", PLUGINS, missing::never_added_gone),
    TestCase::new("DEL-08", "unknown-cni-args", STATEFUL, broken::unknown_args),
    TestCase::new("DEL-08", "values-in-cni-args-that-are-not-valid", STATEFUL, broken::bad_args),
    TestCase::new("DEL-08", "cni-args-that-are-no-pairs", STATEFUL, broken::no_args),
    TestCase::new("DEL-08", "prev-result-is-damaged", STATEFUL, broken::previous),
    TestCase::new("DEL-08", "runtime-config-is-damaged", STATEFUL, broken::runtime_config),
    TestCase::new("DEL-08", "a-key-of-its-own-is-not-valid", STATEFUL, broken::own_key).only(SPOILT),
    TestCase::new("DEL-09", "the-ipam-plugin-fails", INTERFACE, words_of_ipam_failure).delegating(),
    TestCase::new("DEL-09", "the-ipam-plugin-is-missing", INTERFACE, words_of_missing_ipam).delegating(),
    TestCase::new("DEL-09", "helper-programs-are-missing", WORKERS, words_without_helpers),
];

fn nothing_left(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    let (node, pod) = (test.snapshot()?, test.snapshot_of(&target.pod)?);
    let result = test.attached(&target)?;
    let answer = test.del(&target, Some(&result)).run()?;
    answer.silent()?;
    test.unchanged_since(&node, &answer)?;
    let changes = pod.diff(&test.snapshot_of(&target.pod)?);
    answer.ensure(changes.is_empty(), "no change in the namespace", changes)?;
    target.pod.delete()?;
    test.unchanged_since(&before, &answer)
}

/// Compares only the state of `lo`: the kernel adds its addresses when it comes up and keeps them when it
/// goes down.
fn lo_is_down(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let answer = test.detached(&target, &result)?;
    let shown = target.pod.sh("ip -o link show lo")?;
    answer.ensure(!shown.contains(",UP"), "lo to be down as before ADD", shown)
}

fn again(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    for _ in 0..3 {
        let result = test.attached(&target)?;
        test.detached(&target, &result)?;
    }
    Ok(())
}

fn repeated(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    for _ in 0..3 {
        test.del(&target, Some(&result)).run()?.silent()?;
    }
    target.pod.delete()?;
    let answer = test.del(&target, Some(&result)).run()?;
    answer.silent()?;
    test.unchanged_since(&before, &answer)
}

fn without_previous(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    for (container, is_null) in [("pod1", false), ("pod2", true)] {
        let target = test.target(container)?;
        test.attached(&target)?;
        let del = test.del(&target, None);
        let answer = if is_null { del.key("prevResult", ()) } else { del }.run()?;
        answer.silent()?;
        target.pod.delete()?;
        test.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

/// The error of a DEL whose delegate fails.
fn failing_ipam(test: &TestContext<'_>, msg: &'static str) -> Result<Refusal, Stop> {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.ipam()?.on("DEL", Reply::Error { code: 11, msg, status: 1 })?;
    test.del(&target, Some(&result)).run()?.refused()
}

fn ipam_fails(test: &TestContext<'_>) -> TestResult {
    let msg = "the address cannot be released";
    failing_ipam(test, msg)?.mentions(msg)?;
    Ok(())
}

/// Texts that go-cni takes for success.
const TAKEN_FOR_SUCCESS: [&str; 2] = ["not found", "no such file or directory"];

fn is_no_success(refusal: &Refusal) -> TestResult {
    let text = refusal.text();
    let is_taken = TAKEN_FOR_SUCCESS.iter().any(|words| text.contains(words));
    refusal.answer.ensure(!is_taken, "an error that callers do not take for success", text)
}

fn words_of_ipam_failure(test: &TestContext<'_>) -> TestResult {
    is_no_success(&failing_ipam(test, "the address cannot be released")?)
}

fn words_of_missing_ipam(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    // CNI_PATH without the stubs' folder.
    let del = test.del(&target, Some(&result)).var("CNI_PATH", test.plugin.dir.to_string_lossy());
    is_no_success(&del.run()?.refused()?)
}

fn words_without_helpers(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let answer = test.del(&target, Some(&result)).var("PATH", "/nonexistent").run()?;
    if answer.output.success() {
        return skip("DEL succeeds without helper programs");
    }
    is_no_success(&answer.refused()?)
}
