//! Test cases of GC.

use serde_json::{Value, json};

use super::tools::{node_in_use, on, second, second_interface, separate_subnets};
use crate::call::{Answer, Call};
use crate::outcome::{Stop, TestResult};
use crate::plugin_under_test::{PLUGINS, Role, STATEFUL};
use crate::stub::Reply;
use crate::test_case::TestCase;
use crate::test_context::{NETWORK, Target, TestContext};
use cni_lab::{Place as _, Snapshot};

/// The role of plugins that make an interface.
const INTERFACE: &[Role] = &[Role::Interface];
/// The key of the current specification.
const VALID: &str = "cni.dev/valid-attachments";
/// The key of the specification's tag 1.1.0.
const FIRST: &str = "cni.dev/attachments";

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("GC-01", "one-is-stale", STATEFUL, one_stale),
    TestCase::new("GC-01", "another-interface-of-a-listed-container-is-stale", STATEFUL, stale_interface),
    TestCase::new("GC-01", "of-two-networks-only-this-one", STATEFUL, other_network),
    TestCase::new("GC-01", "none-is-stale", PLUGINS, none_stale),
    TestCase::new("GC-02", "the-newer-key", STATEFUL, newer_key),
    TestCase::new("GC-02", "the-first-key", STATEFUL, first_key),
    TestCase::new("GC-02", "both-keys", STATEFUL, both_keys),
    TestCase::new("GC-03", "an-empty-list", PLUGINS, empty),
    TestCase::new("GC-03", "null", PLUGINS, null),
    TestCase::new("GC-03", "no-list", PLUGINS, absent),
    TestCase::new("GC-04", "namespaces-are-gone", STATEFUL, namespaces_gone),
    TestCase::new("GC-05", "the-ipam-plugin-fails", INTERFACE, carries_on).delegating(),
    TestCase::new("GC-06", "the-ipam-plugin-is-called", INTERFACE, delegated).delegating(),
    TestCase::new("GC-07", "nothing-is-printed", PLUGINS, silent),
    TestCase::new("GC-07", "an-error-is-printed", INTERFACE, delegate_error).delegating(),
    TestCase::new("GC-08", "no-variables-of-an-attachment", PLUGINS, no_variables),
    TestCase::new("GC-08", "del-after-gc", STATEFUL, del_after),
];

/// GC as libcni calls it: without values of an attachment.
fn gc<'a>(test: &'a TestContext<'_>) -> Call<'a> {
    let mut call = test.call("GC").without_key("runtimeConfig");
    for variable in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
        call = call.unset(variable);
    }
    call
}

/// A list of the neighbour's attachment, which exists on a node in use, and of these.
fn list(more: &[(&Target, &str)]) -> Value {
    let neighbour = json!({"containerID": "neighbour", "ifname": "eth0"});
    let more =
        more.iter().map(|(target, ifname)| json!({"containerID": target.container_id, "ifname": ifname}));
    Value::Array(std::iter::once(neighbour).chain(more).collect())
}

/// Sets both keys of the list, as libcni does.
fn valid<'a>(call: Call<'a>, list: &Value) -> Call<'a> {
    call.key(VALID, list.clone()).key(FIRST, list.clone())
}

/// Makes a container's attachment and deletes its namespace, so that only the plugin's own state is left.
fn stale(test: &TestContext<'_>, container: &str) -> Result<(), Stop> {
    let target = test.target(container)?;
    test.attached(&target)?;
    target.pod.delete()?;
    Ok(())
}

/// Calls GC, which must succeed, print nothing and restore this state of the node.
fn cleans(test: &TestContext<'_>, gc: &Call<'_>, expected: &Snapshot) -> Result<Answer, Stop> {
    let answer = gc.run()?;
    answer.silent()?;
    test.unchanged_since(expected, &answer)?;
    Ok(answer)
}

fn one_stale(test: &TestContext<'_>) -> TestResult {
    node_in_use(test)?;
    let kept = test.target("kept")?;
    let result = test.attached(&kept)?;
    let before = test.snapshot()?;
    stale(test, "pod1")?;
    cleans(test, &valid(gc(test), &list(&[(&kept, "eth0")])), &before)?;
    test.check(&kept, &result).run()?.silent()
}

fn stale_interface(test: &TestContext<'_>) -> TestResult {
    node_in_use(test)?;
    separate_subnets(test)?;
    let target = test.target("kept")?;
    let previous = second_interface(test, &target)?;
    let result = test.attached(&target)?;
    let other = second(test.add(&target), previous.as_ref()).run()?.result()?;
    // GC need not remove the link itself.
    target.pod.sh("! [ -e /proc/sys/net/ipv4/conf/eth1 ] || ip link del eth1")?;
    let answer = valid(gc(test), &list(&[(&target, "eth0")])).run()?;
    answer.silent()?;
    test.check(&target, &result).run()?.silent()?;
    let after_gc = test.snapshot()?;
    second(test.del(&target, Some(&other)), None).run()?.silent()?;
    let left = after_gc.diff(&test.snapshot()?);
    answer.ensure(left.is_empty(), "nothing left for DEL after GC", left)
}

fn other_network(test: &TestContext<'_>) -> TestResult {
    node_in_use(test)?;
    let kept = test.target("kept")?;
    let name = format!("{NETWORK}2");
    let result = test.add(&kept).key("name", name.as_str()).run()?.result()?;
    let before = test.snapshot()?;
    stale(test, "pod1")?;
    cleans(test, &valid(gc(test), &list(&[])), &before)?;
    test.check(&kept, &result).key("name", name.as_str()).run()?.silent()
}

fn none_stale(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    cleans(test, &valid(gc(test), &list(&[])), &before)?;
    Ok(())
}

/// With the list in these keys, GC keeps a listed attachment and removes a stale one.
fn understood(test: &TestContext<'_>, keys: &[&str]) -> TestResult {
    node_in_use(test)?;
    let kept = test.target("kept")?;
    let result = test.attached(&kept)?;
    let before = test.snapshot()?;
    stale(test, "pod1")?;
    let list = list(&[(&kept, "eth0")]);
    let call = keys.iter().fold(gc(test), |call, key| call.key(key, list.clone()));
    cleans(test, &call, &before)?;
    test.check(&kept, &result).run()?.silent()
}

fn newer_key(test: &TestContext<'_>) -> TestResult {
    understood(test, &[VALID])
}

fn first_key(test: &TestContext<'_>) -> TestResult {
    understood(test, &[FIRST])
}

fn both_keys(test: &TestContext<'_>) -> TestResult {
    understood(test, &[VALID, FIRST])
}

/// A node with the state that containers share, one attachment of another network and two stale attachments.
/// The snapshot was taken before these two.
fn without_attachments(test: &TestContext<'_>) -> Result<Snapshot, Stop> {
    if test.plugin.role == Role::Loopback {
        return test.snapshot();
    }
    let other = test.target("other")?;
    test.add(&other).key("name", format!("{NETWORK}2")).run()?.ok()?;
    let gone = test.target("gone")?;
    let result = test.attached(&gone)?;
    test.detached(&gone, &result)?;
    let before = test.snapshot()?;
    stale(test, "pod1")?;
    stale(test, "pod2")?;
    Ok(before)
}

fn empty(test: &TestContext<'_>) -> TestResult {
    let before = without_attachments(test)?;
    cleans(test, &valid(gc(test), &json!([])), &before)?;
    Ok(())
}

fn null(test: &TestContext<'_>) -> TestResult {
    let before = without_attachments(test)?;
    cleans(test, &valid(gc(test), &Value::Null), &before)?;
    Ok(())
}

/// libcni sends no list to mean that no attachment is valid. The specification requires a list, so the plugin
/// may refuse the call.
fn absent(test: &TestContext<'_>) -> TestResult {
    let before = without_attachments(test)?;
    let answer = gc(test).run()?;
    if !answer.output.success() {
        answer.refused()?.code_in(&[7])?;
        return Ok(());
    }
    answer.silent()?;
    test.unchanged_since(&before, &answer)
}

fn namespaces_gone(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    stale(test, "pod1")?;
    let target = test.target("pod2")?;
    test.attached(&target)?;
    target.pod.unmount_only()?;
    cleans(test, &valid(gc(test), &list(&[])), &before)?;
    Ok(())
}

fn carries_on(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let msg = "an address cannot be released";
    test.ipam()?.on("GC", Reply::Error { code: 11, msg, status: 1 })?;
    stale(test, "pod1")?;
    stale(test, "pod2")?;
    let answer = valid(gc(test), &list(&[])).run()?;
    answer.refused()?.mentions(msg)?;
    test.unchanged_since(&before, &answer)
}

fn delegated(test: &TestContext<'_>) -> TestResult {
    let list = list(&[]);
    let answer = valid(gc(test), &list).run()?;
    answer.silent()?;
    let calls = test.ipam()?.calls()?;
    let Some(call) = calls.iter().find(|call| call.verb() == "GC") else {
        return answer.mismatch("a call of the IPAM plugin's GC", format!("{:?}", test.ipam()?.verbs()?));
    };
    let input: Value = serde_json::from_slice(&call.stdin).unwrap_or_default();
    let seen = (&input[VALID], &input[FIRST]);
    answer.ensure(
        seen == (&list, &list),
        format!("both keys with the list in the IPAM plugin's input: {list}"),
        input,
    )
}

fn silent(test: &TestContext<'_>) -> TestResult {
    node_in_use(test)?;
    valid(gc(test), &list(&[])).run()?.silent()?;
    valid(gc(test), &json!([])).run()?.silent()
}

fn delegate_error(test: &TestContext<'_>) -> TestResult {
    let msg = "garbage cannot be collected";
    test.ipam()?.on("GC", Reply::Error { code: 11, msg, status: 1 })?;
    valid(gc(test), &json!([])).run()?.refused()?.mentions(msg)?;
    Ok(())
}

fn no_variables(test: &TestContext<'_>) -> TestResult {
    valid(gc(test).unset("CNI_ARGS"), &json!([])).run()?.silent()?;
    let empty = gc(test).without_key("capabilities");
    let empty = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"]
        .iter()
        .fold(empty, |call, variable| call.var(variable, ""));
    valid(empty, &json!([])).run()?.silent()
}

fn del_after(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    valid(gc(test), &list(&[])).run()?.silent()?;
    let answer = test.detached(&target, &result)?;
    target.pod.delete()?;
    test.unchanged_since(&before, &answer)?;
    on(test.del(&target, None), "eth1").run()?.silent()
}
