//! An ADD that failed, or was killed, and the DEL after it.

use std::time::Duration;

use serde_json::json;

use super::super::tools::{killed, link_names, node_in_use};
use super::occupy;
use crate::fixture::{Place as _, Snapshot};
use crate::suite::call::Answer;
use crate::suite::layout;
use crate::suite::outcome::{TestResult, ensure, skip};
use crate::suite::plugin_under_test::Role;
use crate::suite::stub::Reply;
use crate::suite::test_context::{Target, TestContext};

/// At how many moments a plugin is killed.
const MOMENTS: u32 = 10;

/// A DEL as after an ADD without a result; then the container goes, and nothing is left of it.
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
        // A plugin may take an empty result for a network without addresses.
        if number < 3 {
            add.refused()?;
        }
        let answer = test.del(&target, None).run()?;
        answer.silent()?;
        let left = link_names(&target.pod)?;
        answer.ensure(left == links, "no interface is left in the namespace", left.join(", "))?;
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
        return skip("ADD did not fail");
    }
    cleaned(test, &target, &before)?;
    if test.plugin.delegates {
        let verbs = test.ipam()?.verbs()?;
        // Two ADDs and a DEL of others come first.
        let own = verbs.get(3..).unwrap_or_default();
        let is_released = own.last().is_none_or(|verb| verb == "DEL");
        ensure(is_released, "the IPAM plugin's DEL comes last", own.join(", "))?;
    }
    Ok(())
}

pub(super) fn no_namespace(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    target.pod.delete()?;
    // Some never look into the namespace, and so succeed. Either way DEL has to clean up.
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

/// The neighbour has the only address of the second range, so that only the first half of an ADD is possible.
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

/// Moments of a call that takes about so long, from before its begin to its end.
fn moments(whole: Duration) -> impl Iterator<Item = (u32, Duration)> {
    (0..MOMENTS).map(move |part| (part, whole * part / (MOMENTS - 1)))
}

/// A plugin that makes the interface has removed it. A half-made one of another name may go with its namespace.
fn gone(test: &TestContext<'_>, target: &Target, after: &Answer) -> TestResult {
    let left = link_names(&target.pod)?;
    let is_gone = test.plugin.role != Role::Interface || !left.contains(&target.ifname);
    after.ensure(is_gone, "no interface is left in the namespace", left.join(", "))
}

pub(super) fn killed_add(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let first = test.target("first")?;
    let add = test.add(&first).run()?;
    let whole = add.output.wall;
    test.detached(&first, &add.result()?)?;
    first.pod.delete()?;
    for (part, moment) in moments(whole) {
        let target = test.target(&format!("pod{part}"))?;
        killed(test, &test.add(&target), moment)?;
        let answer = test.del(&target, None).run()?;
        answer.silent()?;
        gone(test, &target, &answer)?;
        target.pod.delete()?;
    }
    let changes = test.changes_since(&before)?;
    ensure(changes.is_empty(), "DEL removes what ADD, killed at any moment, has left", changes)
}

pub(super) fn killed_del(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let first = test.target("first")?;
    let result = test.attached(&first)?;
    let whole = test.detached(&first, &result)?.output.wall;
    first.pod.delete()?;
    for (part, moment) in moments(whole) {
        let target = test.target(&format!("pod{part}"))?;
        let result = test.attached(&target)?;
        killed(test, &test.del(&target, Some(&result)), moment)?;
        let answer = test.del(&target, Some(&result)).run()?;
        answer.silent()?;
        gone(test, &target, &answer)?;
        target.pod.delete()?;
    }
    let changes = test.changes_since(&before)?;
    ensure(changes.is_empty(), "a DEL removes what another, killed at any moment, has left", changes)
}
