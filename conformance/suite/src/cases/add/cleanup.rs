//! DEL after an ADD that failed or was killed.

use std::time::Duration;

use serde_json::json;

use super::super::tools::{killed, link_names, node_in_use};
use super::occupy;
use crate::call::Answer;
use crate::layout;
use crate::outcome::{TestResult, ensure, skip};
use crate::plugin_under_test::Role;
use crate::stub::Reply;
use crate::test_context::{Target, TestContext};
use cni_lab::{Place as _, Snapshot};

/// How many points in time of a call are tried.
const KILLS: u32 = 10;

/// Calls DEL without a result and deletes the container. Expects nothing left on the node.
fn cleaned(test: &TestContext<'_>, target: &Target, before: &Snapshot) -> TestResult {
    let answer = test.del(target, None).run()?;
    answer.silent()?;
    target.pod.delete()?;
    test.unchanged_since(before, &answer)
}

pub(super) fn ipam_fails(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let none = layout::render(&json!({"ips": []}), test.version);
    let replies = [
        Reply::Error { code: 11, msg: "no address is free", status: 1 },
        Reply::Text("this is no result", 0),
        Reply::Crash,
        Reply::Json(none),
    ];
    for (number, reply) in replies.into_iter().enumerate() {
        test.ipam()?.on("ADD", reply)?;
        let target = test.target(&format!("pod{number}"))?;
        let links = link_names(&target.pod)?;
        let add = test.add(&target).run()?;
        // A plugin may accept an empty result as a network without addresses.
        if number < 3 {
            add.refused()?;
        }
        let answer = test.del(&target, None).run()?;
        answer.silent()?;
        let left = link_names(&target.pod)?;
        answer.ensure(left == links, "no interface left in the namespace", left.join(", "))?;
        target.pod.delete()?;
        test.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

pub(super) fn name_taken(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    occupy(&target)?;
    if test.add(&target).run()?.output.success() {
        return skip("ADD does not fail");
    }
    cleaned(test, &target, &before)?;
    if test.plugin.delegates {
        let verbs = test.ipam()?.verbs()?;
        // node_in_use has called ADD, ADD and DEL before.
        let own = verbs.get(3..).unwrap_or_default();
        let is_released = own.last().is_none_or(|verb| verb == "DEL");
        ensure(is_released, "the IPAM plugin's DEL as the last call", own.join(", "))?;
    }
    Ok(())
}

pub(super) fn no_namespace(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    target.pod.delete()?;
    // Some plugins do not look into the namespace and succeed. DEL must clean up in either case.
    test.add(&target).run()?;
    let answer = test.del(&target, None).run()?;
    answer.silent()?;
    test.unchanged_since(&before, &answer)
}

pub(super) fn no_interface(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    target.pod.sh(&format!("ip link del {}", target.ifname))?;
    test.add(&target).run()?;
    cleaned(test, &target, &before)
}

/// The neighbour has the only address of the second range, so ADD can reserve only the first of two
/// addresses.
pub(super) fn half_of_addresses(test: &TestContext<'_>) -> TestResult {
    let only = "10.78.0.5";
    let ipam = json!({"type": test.plugin.name, "ranges": [
        [{"subnet": "10.77.0.0/24"}],
        [{"subnet": "10.78.0.0/24", "rangeStart": only, "rangeEnd": only}]]});
    test.add(&test.target("neighbour")?).key("ipam", ipam.clone()).run()?.ok()?;
    let before = test.snapshot()?;
    let target = test.target("pod1")?;
    test.add(&target).key("ipam", ipam.clone()).run()?.refused()?;
    let answer = test.del(&target, None).key("ipam", ipam).run()?;
    answer.silent()?;
    test.unchanged_since(&before, &answer)
}

/// Points in time from the start to the end of a call of this duration.
fn kill_times(whole: Duration) -> impl Iterator<Item = (u32, Duration)> {
    (0..KILLS).map(move |part| (part, whole * part / (KILLS - 1)))
}

/// Expects that a plugin that makes the interface has removed it. A temporary interface may remain until the
/// namespace is deleted.
fn gone(test: &TestContext<'_>, target: &Target, after: &Answer) -> TestResult {
    let left = link_names(&target.pod)?;
    let is_gone = test.plugin.role != Role::Interface || !left.contains(&target.ifname);
    after.ensure(is_gone, "no interface left in the namespace", left.join(", "))
}

pub(super) fn killed_add(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let first = test.target("first")?;
    let add = test.add(&first).run()?;
    let whole = add.output.wall;
    test.detached(&first, &add.result()?)?;
    first.pod.delete()?;
    for (part, time) in kill_times(whole) {
        let target = test.target(&format!("pod{part}"))?;
        killed(test, &test.add(&target), time)?;
        let answer = test.del(&target, None).run()?;
        answer.silent()?;
        gone(test, &target, &answer)?;
        target.pod.delete()?;
    }
    let changes = test.changes_since(&before)?;
    ensure(changes.is_empty(), "nothing left after DEL of an ADD killed at any point", changes)
}

pub(super) fn killed_del(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let first = test.target("first")?;
    let result = test.attached(&first)?;
    let whole = test.detached(&first, &result)?.output.wall;
    first.pod.delete()?;
    for (part, time) in kill_times(whole) {
        let target = test.target(&format!("pod{part}"))?;
        let result = test.attached(&target)?;
        killed(test, &test.del(&target, Some(&result)), time)?;
        let answer = test.del(&target, Some(&result)).run()?;
        answer.silent()?;
        gone(test, &target, &answer)?;
        target.pod.delete()?;
    }
    let changes = test.changes_since(&before)?;
    ensure(changes.is_empty(), "nothing left after DEL following a DEL killed at any point", changes)
}
