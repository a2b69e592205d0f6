//! GC: removes what belongs to attachments that are not there any more.

use serde_json::{Value, json};

use super::tools::{node_in_use, on, second, second_interface, separate_subnets};
use crate::fixture::{Place as _, Snapshot};
use crate::suite::call::{Answer, Call};
use crate::suite::lab::{Lab, NETWORK, Target};
use crate::suite::outcome::{Stop, Trialled};
use crate::suite::stub::Reply;
use crate::suite::subject::{PLUGINS, Role, STATEFUL};
use crate::suite::trial::Trial;

/// Plugins that make an interface.
const MAKERS: &[Role] = &[Role::Interface];
/// The key of the specification as it stands.
const VALID: &str = "cni.dev/valid-attachments";
/// The key of its tag 1.1.0.
const FIRST: &str = "cni.dev/attachments";

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("GC-01", "one-is-stale", STATEFUL, one_stale),
    Trial::new("GC-01", "another-interface-of-a-listed-container-is-stale", STATEFUL, stale_interface),
    Trial::new("GC-01", "of-two-networks-only-this-one", STATEFUL, other_network),
    Trial::new("GC-01", "none-is-stale", PLUGINS, none_stale),
    Trial::new("GC-02", "the-newer-key", STATEFUL, newer_key),
    Trial::new("GC-02", "the-first-key", STATEFUL, first_key),
    Trial::new("GC-02", "both-keys", STATEFUL, both_keys),
    Trial::new("GC-03", "an-empty-list", PLUGINS, empty),
    Trial::new("GC-03", "null", PLUGINS, null),
    Trial::new("GC-03", "no-list", PLUGINS, absent),
    Trial::new("GC-04", "namespaces-are-gone", STATEFUL, namespaces_gone),
    Trial::new("GC-05", "the-ipam-plugin-fails", MAKERS, carries_on).delegating(),
    Trial::new("GC-06", "the-ipam-plugin-is-called", MAKERS, delegated).delegating(),
    Trial::new("GC-07", "nothing-is-printed", PLUGINS, silent),
    Trial::new("GC-07", "an-error-is-printed", MAKERS, delegate_error).delegating(),
    Trial::new("GC-08", "no-variables-of-an-attachment", PLUGINS, no_variables),
    Trial::new("GC-08", "del-after-gc", STATEFUL, del_after),
];

/// As libcni makes it: what belongs to one attachment is not in it.
fn gc<'a>(lab: &'a Lab<'_>) -> Call<'a> {
    let mut call = lab.call("GC").without_key("runtimeConfig");
    for variable in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
        call = call.unset(variable);
    }
    call
}

/// The two attachments that the node in use has, of which one is gone already, and more.
fn list(more: &[(&Target, &str)]) -> Value {
    let neighbour = json!({"containerID": "neighbour", "ifname": "eth0"});
    let more =
        more.iter().map(|(target, ifname)| json!({"containerID": target.container_id, "ifname": ifname}));
    Value::Array(std::iter::once(neighbour).chain(more).collect())
}

/// With both keys, as libcni does it.
fn valid<'a>(call: Call<'a>, list: &Value) -> Call<'a> {
    call.key(VALID, list.clone()).key(FIRST, list.clone())
}

/// A container of which only the plugin's own state is left.
fn stale(lab: &Lab<'_>, container: &str) -> Result<(), Stop> {
    let target = lab.target(container)?;
    lab.attached(&target)?;
    target.pod.delete()?;
    Ok(())
}

/// GC that succeeds, and what it should have come to.
fn cleans(lab: &Lab<'_>, gc: &Call<'_>, expected: &Snapshot) -> Result<Answer, Stop> {
    let answer = gc.run()?;
    answer.silent()?;
    lab.unchanged_since(expected, &answer)?;
    Ok(answer)
}

fn one_stale(lab: &Lab<'_>) -> Trialled {
    node_in_use(lab)?;
    let kept = lab.target("kept")?;
    let result = lab.attached(&kept)?;
    let before = lab.snapshot()?;
    stale(lab, "pod1")?;
    cleans(lab, &valid(gc(lab), &list(&[(&kept, "eth0")])), &before)?;
    lab.check(&kept, &result).run()?.silent()
}

fn stale_interface(lab: &Lab<'_>) -> Trialled {
    node_in_use(lab)?;
    separate_subnets(lab)?;
    let target = lab.target("kept")?;
    let previous = second_interface(lab, &target)?;
    let result = lab.attached(&target)?;
    let other = second(lab.add(&target), previous.as_ref()).run()?.result()?;
    // The link itself is nothing that GC has to care for.
    target.pod.sh("! [ -e /proc/sys/net/ipv4/conf/eth1 ] || ip link del eth1")?;
    let answer = valid(gc(lab), &list(&[(&target, "eth0")])).run()?;
    answer.silent()?;
    lab.check(&target, &result).run()?.silent()?;
    let after_gc = lab.snapshot()?;
    second(lab.del(&target, Some(&other)), None).run()?.silent()?;
    let left = after_gc.diff(&lab.snapshot()?);
    answer.ensure(left.is_empty(), "GC leaves nothing for DEL", left)
}

fn other_network(lab: &Lab<'_>) -> Trialled {
    node_in_use(lab)?;
    let kept = lab.target("kept")?;
    let name = format!("{NETWORK}2");
    let result = lab.add(&kept).key("name", name.as_str()).run()?.result()?;
    let before = lab.snapshot()?;
    stale(lab, "pod1")?;
    cleans(lab, &valid(gc(lab), &list(&[])), &before)?;
    lab.check(&kept, &result).key("name", name.as_str()).run()?.silent()
}

fn none_stale(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    cleans(lab, &valid(gc(lab), &list(&[])), &before)?;
    Ok(())
}

/// With the list in these keys, what is listed stays and what is not goes.
fn understood(lab: &Lab<'_>, keys: &[&str]) -> Trialled {
    node_in_use(lab)?;
    let kept = lab.target("kept")?;
    let result = lab.attached(&kept)?;
    let before = lab.snapshot()?;
    stale(lab, "pod1")?;
    let list = list(&[(&kept, "eth0")]);
    let call = keys.iter().fold(gc(lab), |call, key| call.key(key, list.clone()));
    cleans(lab, &call, &before)?;
    lab.check(&kept, &result).run()?.silent()
}

fn newer_key(lab: &Lab<'_>) -> Trialled {
    understood(lab, &[VALID])
}

fn first_key(lab: &Lab<'_>) -> Trialled {
    understood(lab, &[FIRST])
}

fn both_keys(lab: &Lab<'_>) -> Trialled {
    understood(lab, &[VALID, FIRST])
}

/// A node where what containers share is there, and one attachment of another network.
fn without_attachments(lab: &Lab<'_>) -> Result<Snapshot, Stop> {
    if lab.subject.role == Role::Loopback {
        return lab.snapshot();
    }
    let other = lab.target("other")?;
    lab.add(&other).key("name", format!("{NETWORK}2")).run()?.ok()?;
    let gone = lab.target("gone")?;
    let result = lab.attached(&gone)?;
    lab.detached(&gone, &result)?;
    let before = lab.snapshot()?;
    stale(lab, "pod1")?;
    stale(lab, "pod2")?;
    Ok(before)
}

fn empty(lab: &Lab<'_>) -> Trialled {
    let before = without_attachments(lab)?;
    cleans(lab, &valid(gc(lab), &json!([])), &before)?;
    Ok(())
}

fn null(lab: &Lab<'_>) -> Trialled {
    let before = without_attachments(lab)?;
    cleans(lab, &valid(gc(lab), &Value::Null), &before)?;
    Ok(())
}

/// libcni means by it that nothing is valid; the specification demands a list, so it may be refused, too.
fn absent(lab: &Lab<'_>) -> Trialled {
    let before = without_attachments(lab)?;
    let answer = gc(lab).run()?;
    if !answer.output.success() {
        answer.refused()?.code_in(&[7])?;
        return Ok(());
    }
    answer.silent()?;
    lab.unchanged_since(&before, &answer)
}

fn namespaces_gone(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    stale(lab, "pod1")?;
    let target = lab.target("pod2")?;
    lab.attached(&target)?;
    target.pod.unmount_only()?;
    cleans(lab, &valid(gc(lab), &list(&[])), &before)?;
    Ok(())
}

fn carries_on(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let msg = "an address cannot be released";
    lab.ipam()?.on("GC", Reply::Error { code: 11, msg, status: 1 })?;
    stale(lab, "pod1")?;
    stale(lab, "pod2")?;
    let answer = valid(gc(lab), &list(&[])).run()?;
    answer.refused()?.mentions(msg)?;
    lab.unchanged_since(&before, &answer)
}

fn delegated(lab: &Lab<'_>) -> Trialled {
    let list = list(&[]);
    let answer = valid(gc(lab), &list).run()?;
    answer.silent()?;
    let calls = lab.ipam()?.calls()?;
    let Some(call) = calls.iter().find(|call| call.verb() == "GC") else {
        return answer.fault("the IPAM plugin's GC", format!("{:?}", lab.ipam()?.verbs()?));
    };
    let input: Value = serde_json::from_slice(&call.stdin).unwrap_or_default();
    let seen = (&input[VALID], &input[FIRST]);
    answer.ensure(seen == (&list, &list), format!("both lists for the IPAM plugin: {list}"), input)
}

fn silent(lab: &Lab<'_>) -> Trialled {
    node_in_use(lab)?;
    valid(gc(lab), &list(&[])).run()?.silent()?;
    valid(gc(lab), &json!([])).run()?.silent()
}

fn delegate_error(lab: &Lab<'_>) -> Trialled {
    let msg = "garbage cannot be collected";
    lab.ipam()?.on("GC", Reply::Error { code: 11, msg, status: 1 })?;
    valid(gc(lab), &json!([])).run()?.refused()?.mentions(msg)?;
    Ok(())
}

fn no_variables(lab: &Lab<'_>) -> Trialled {
    valid(gc(lab).unset("CNI_ARGS"), &json!([])).run()?.silent()?;
    let empty = gc(lab).without_key("capabilities");
    let empty = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"]
        .iter()
        .fold(empty, |call, variable| call.var(variable, ""));
    valid(empty, &json!([])).run()?.silent()
}

fn del_after(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    valid(gc(lab), &list(&[])).run()?.silent()?;
    let answer = lab.detached(&target, &result)?;
    target.pod.delete()?;
    lab.unchanged_since(&before, &answer)?;
    on(lab.del(&target, None), "eth1").run()?.silent()
}
