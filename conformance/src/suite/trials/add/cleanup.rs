//! An ADD that failed, or was killed, and the DEL after it.

use std::time::Duration;

use serde_json::json;

use super::super::tools::{killed, link_names, node_in_use};
use super::occupy;
use crate::fixture::{Place as _, Snapshot};
use crate::suite::call::Answer;
use crate::suite::lab::{Lab, Target};
use crate::suite::outcome::{Trialled, ensure, skip};
use crate::suite::shape;
use crate::suite::stub::Reply;
use crate::suite::subject::Role;

/// At how many moments a plugin is killed.
const MOMENTS: u32 = 10;

/// A DEL as after an ADD without a result; then the container goes, and nothing is left of it.
fn cleaned(lab: &Lab<'_>, target: &Target, before: &Snapshot) -> Trialled {
    let answer = lab.del(target, None).run()?;
    answer.silent()?;
    target.pod.delete()?;
    lab.unchanged_since(before, &answer)
}

pub(super) fn ipam_fails(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let none = shape::render(&json!({"ips": []}), lab.version);
    let replies = [
        Reply::Error { code: 11, msg: "no address is free", status: 1 },
        Reply::Text("this is no result", 0),
        Reply::Crash,
        Reply::Json(none),
    ];
    for (number, reply) in replies.into_iter().enumerate() {
        lab.ipam()?.on("ADD", reply)?;
        let target = lab.target(&format!("pod{number}"))?;
        let links = link_names(&target.pod)?;
        let add = lab.add(&target).run()?;
        // A plugin may take an empty result for a network without addresses.
        if number < 3 {
            add.refused()?;
        }
        let answer = lab.del(&target, None).run()?;
        answer.silent()?;
        let left = link_names(&target.pod)?;
        answer.ensure(left == links, "no interface is left in the namespace", left.join(", "))?;
        target.pod.delete()?;
        lab.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

pub(super) fn name_taken(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let target = lab.target("pod1")?;
    occupy(&target)?;
    if lab.add(&target).run()?.output.success() {
        return skip("ADD did not fail");
    }
    cleaned(lab, &target, &before)?;
    if lab.subject.delegates {
        let verbs = lab.ipam()?.verbs()?;
        // Two ADDs and a DEL of others come first.
        let own = verbs.get(3..).unwrap_or_default();
        let is_released = own.last().is_none_or(|verb| verb == "DEL");
        ensure(is_released, "the IPAM plugin's DEL comes last", own.join(", "))?;
    }
    Ok(())
}

pub(super) fn no_namespace(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let target = lab.target("pod1")?;
    target.pod.delete()?;
    // Some never look into the namespace, and so succeed. Either way DEL has to clean up.
    lab.add(&target).run()?;
    let answer = lab.del(&target, None).run()?;
    answer.silent()?;
    lab.unchanged_since(&before, &answer)
}

pub(super) fn no_interface(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let target = lab.target("pod1")?;
    target.pod.sh(&format!("ip link del {}", target.ifname))?;
    lab.add(&target).run()?;
    cleaned(lab, &target, &before)
}

/// The neighbour has the only address of the second range, so that only the first half of an ADD is possible.
pub(super) fn half_of_addresses(lab: &Lab<'_>) -> Trialled {
    let only = "10.78.0.5";
    let ipam = json!({"type": lab.subject.name, "ranges": [
        [{"subnet": "10.77.0.0/24"}],
        [{"subnet": "10.78.0.0/24", "rangeStart": only, "rangeEnd": only}]]});
    lab.add(&lab.target("neighbour")?).key("ipam", ipam.clone()).run()?.ok()?;
    let before = lab.snapshot()?;
    let target = lab.target("pod1")?;
    lab.add(&target).key("ipam", ipam.clone()).run()?.refused()?;
    let answer = lab.del(&target, None).key("ipam", ipam).run()?;
    answer.silent()?;
    lab.unchanged_since(&before, &answer)
}

/// Moments of a call that takes about so long, from before its begin to its end.
fn moments(whole: Duration) -> impl Iterator<Item = (u32, Duration)> {
    (0..MOMENTS).map(move |part| (part, whole * part / (MOMENTS - 1)))
}

/// A plugin that makes the interface has removed it. A half-made one of another name may go with its namespace.
fn gone(lab: &Lab<'_>, target: &Target, after: &Answer) -> Trialled {
    let left = link_names(&target.pod)?;
    let is_gone = lab.subject.role != Role::Interface || !left.contains(&target.ifname);
    after.ensure(is_gone, "no interface is left in the namespace", left.join(", "))
}

pub(super) fn killed_add(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let first = lab.target("first")?;
    let add = lab.add(&first).run()?;
    let whole = add.output.wall;
    lab.detached(&first, &add.result()?)?;
    first.pod.delete()?;
    for (part, moment) in moments(whole) {
        let target = lab.target(&format!("pod{part}"))?;
        killed(lab, &lab.add(&target), moment)?;
        let answer = lab.del(&target, None).run()?;
        answer.silent()?;
        gone(lab, &target, &answer)?;
        target.pod.delete()?;
    }
    let changes = lab.changes_since(&before)?;
    ensure(changes.is_empty(), "DEL removes what ADD, killed at any moment, has left", changes)
}

pub(super) fn killed_del(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let first = lab.target("first")?;
    let result = lab.attached(&first)?;
    let whole = lab.detached(&first, &result)?.output.wall;
    first.pod.delete()?;
    for (part, moment) in moments(whole) {
        let target = lab.target(&format!("pod{part}"))?;
        let result = lab.attached(&target)?;
        killed(lab, &lab.del(&target, Some(&result)), moment)?;
        let answer = lab.del(&target, Some(&result)).run()?;
        answer.silent()?;
        gone(lab, &target, &answer)?;
        target.pod.delete()?;
    }
    let changes = lab.changes_since(&before)?;
    ensure(changes.is_empty(), "a DEL removes what another, killed at any moment, has left", changes)
}
