//! Test cases of container IDs, interface names and network namespaces.

use std::process::Command;

use serde_json::Value;

use super::life::{add_check_del, calls};
use crate::outcome::{Stop, TestResult, ensure, skip};
use crate::plugin_under_test::{PLUGINS, Role};
use crate::test_case::TestCase;
use crate::test_context::{Target, TestContext};
use cni_lab::{Place as _, Snapshot};
use cni_runner::Version;

/// The role of plugins that make the interface CNI_IFNAME.
const INTERFACE: &[Role] = &[Role::Interface];
/// Roles of plugins that must enter the container's namespace.
const ENTERING: &[Role] = &[Role::Loopback, Role::Interface];
/// Roles of plugins that use CNI_IFNAME, not only validate it.
const NAMED: &[Role] = &[Role::Interface, Role::Ipam, Role::Chained];

const BAD_IDS: [&str; 10] = ["-a", "_a", ".a", "a b", "a/b", "a:b", "a+b", "../a", "é", "a\n"];
const BAD_NAMES: [&str; 9] =
    [".", "..", "a/b", "a:b", "a b", "a\tb", "a\n", "sixteen-letters-", "a-name-of-thirty-letters-or-so"];
const LONG_ID: usize = 300;

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("CID-01", "every-valid-form", PLUGINS, good_ids),
    TestCase::new("CID-01", "forms-that-are-not-valid", PLUGINS, bad_ids),
    TestCase::new("CID-02", "the-code-of-an-id-that-is-not-valid", PLUGINS, code_of_bad_ids).each_version(),
    TestCase::new("CID-03", "an-id-of-300-characters", PLUGINS, long_id),
    TestCase::new("IFN-01", "every-valid-form", NAMED, good_names),
    TestCase::new("IFN-01", "forms-that-are-not-valid", PLUGINS, bad_names).each_version(),
    TestCase::new("IFN-02", "the-name-as-it-was-given", INTERFACE, exact_name).each_version(),
    TestCase::new("IFN-02", "a-template-for-the-kernel", INTERFACE, template),
    TestCase::new("IFN-03", "a-name-that-is-taken", INTERFACE, taken_name),
    TestCase::new("IFN-03", "the-same-add-twice", INTERFACE, second_add),
    TestCase::new("IFN-04", "names-that-the-kernel-refuses", INTERFACE, kernel_names),
    TestCase::new("NNS-01", "below-proc", PLUGINS, netns_of_process),
    TestCase::new("NNS-01", "another-bind-mount", PLUGINS, netns_bound_again),
    TestCase::new("NNS-01", "by-way-of-a-symbolic-link", PLUGINS, netns_by_link),
    TestCase::new("NNS-02", "add-without-a-namespace", ENTERING, add_without_netns),
    TestCase::new("NNS-02", "check-without-a-namespace", ENTERING, check_without_netns),
    TestCase::new("NNS-03", "the-path-as-it-was-given", ENTERING, sandbox).each_version(),
    TestCase::new("NNS-04", "the-own-namespace", ENTERING, own_netns),
    TestCase::new("NNS-05", "del-after-the-namespace-has-gone", PLUGINS, del_of_gone_netns).each_version(),
    TestCase::new("NNS-05", "del-without-a-namespace", PLUGINS, del_without_netns).each_version(),
    TestCase::new("NNS-06", "nothing-is-made-at-the-path", PLUGINS, nothing_made),
];

fn good_ids(test: &TestContext<'_>) -> TestResult {
    let hex = "0123456789abcdef".repeat(4);
    for id in ["a", "7", "A0", "a-b_c.d", "a..", hex.as_str()] {
        let target = test.target(id)?;
        add_check_del(test, &target, |call| call)?;
    }
    Ok(())
}

fn bad_ids(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let before = test.snapshot()?;
    for id in BAD_IDS {
        let answer = test.add(&target).var("CNI_CONTAINERID", id).run()?;
        answer.refused()?;
        if id == "../a" {
            test.unchanged_since(&before, &answer)?;
        }
    }
    Ok(())
}

fn code_of_bad_ids(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    for call in calls(test, &target, &result) {
        for id in ["a/b", "-a"] {
            call.clone().var("CNI_CONTAINERID", id).run()?.refused()?.code_in(&[4])?;
        }
    }
    Ok(())
}

fn long_id(test: &TestContext<'_>) -> TestResult {
    let mut target = test.target("pod1")?;
    target.container_id = "a".repeat(LONG_ID);
    add_check_del(test, &target, |call| call).map(drop)
}

fn good_names(test: &TestContext<'_>) -> TestResult {
    let names = ["a", "fifteen-letters", "eth0.100", "A_b+c@d", "ééééééé"];
    for (number, name) in names.iter().enumerate() {
        let target = test.target_with(&format!("pod{number}"), name)?;
        add_check_del(test, &target, |call| call)?;
    }
    Ok(())
}

fn bad_names(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    for call in calls(test, &target, &result).iter().filter(|call| call.exec.command != "DEL") {
        for name in BAD_NAMES {
            call.clone().var("CNI_IFNAME", name).run()?.refused()?;
        }
    }
    Ok(())
}

/// The names of a pod's interfaces except `lo`, in the kernel's order.
fn interfaces(target: &Target) -> Result<Vec<String>, Stop> {
    let links: Value = serde_json::from_str(&target.pod.sh("ip -j link show")?)?;
    let names = links.as_array().into_iter().flatten().filter_map(|link| link["ifname"].as_str());
    Ok(names.filter(|name| *name != "lo").map(str::to_owned).collect())
}

fn exact_name(test: &TestContext<'_>) -> TestResult {
    for (number, name) in ["net1", "fifteen-letters"].iter().enumerate() {
        let target = test.target_with(&format!("pod{number}"), name)?;
        let answer = test.add(&target).run()?;
        let result = answer.result()?;
        let seen = interfaces(&target)?;
        answer.ensure(seen == [*name], format!("an interface {name}"), format!("{seen:?}"))?;
        let listed = result["interfaces"].as_array().into_iter().flatten();
        let inside =
            listed.filter(|interface| interface["sandbox"].as_str().is_some_and(|path| !path.is_empty()));
        let names: Vec<&Value> = inside.map(|interface| &interface["name"]).collect();
        answer.ensure(
            names == [*name],
            format!("an interface {name} in the result"),
            format!("{names:?}"),
        )?;
    }
    Ok(())
}

/// Calls ADD for each name. ADD must make an interface of exactly that name, or fail and leave nothing
/// behind.
fn made_or_refused(test: &TestContext<'_>, names: &[&str]) -> TestResult {
    test.attached(&test.target("neighbour")?)?;
    for (number, name) in names.iter().enumerate() {
        let target = test.target_with(&format!("pod{number}"), name)?;
        let before = test.snapshot()?;
        let answer = test.add(&target).run()?;
        let seen = interfaces(&target)?;
        if answer.output.success() {
            answer.ensure(seen == [*name], format!("an interface {name}"), format!("{seen:?}"))?;
            continue;
        }
        answer.refused()?;
        answer.ensure(seen.is_empty(), "no interface after a failed ADD", format!("{seen:?}"))?;
        test.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

fn template(test: &TestContext<'_>) -> TestResult {
    made_or_refused(test, &["a%d"])
}

fn kernel_names(test: &TestContext<'_>) -> TestResult {
    // `all` and `default` are folders below /proc/sys/net/ipv4/conf. The second byte of "à" is 0xa0, which
    // the kernel's isspace() accepts as white space.
    made_or_refused(test, &["all", "default", "à"])
}

fn taken_name(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    target.pod.sh("ip link add eth0 type veth peer name other && ip addr add 192.0.2.9/24 dev eth0 && \
                   ip link set eth0 up")?;
    stays_as_it_is(test, &target)
}

fn second_add(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    test.attached(&target)?;
    stays_as_it_is(test, &target)
}

/// Expects ADD to fail and not to change the pod. The interface index shows whether eth0 was replaced.
fn stays_as_it_is(test: &TestContext<'_>, target: &Target) -> TestResult {
    let index = || target.pod.sh("ip -o link show eth0 | cut -d: -f1");
    let (before, number) = (test.snapshot_of(&target.pod)?, index()?);
    let answer = test.add(target).run()?;
    answer.refused()?;
    let diff = before.diff(&test.snapshot_of(&target.pod)?);
    answer.ensure(diff.is_empty(), "no change in the container", diff)?;
    let now = index()?;
    answer.ensure(now == number, "the same interface eth0 as before", format!("index {now}, not {number}"))
}

/// The same container with another path to its namespace, also in the previous result.
fn by_path(target: Target, path: &str) -> Target {
    let mut previous = target.previous;
    for interface in previous.iter_mut().flat_map(|result| result["interfaces"].as_array_mut()).flatten() {
        if interface["sandbox"] == target.netns.as_str() {
            interface["sandbox"] = path.into();
        }
    }
    Target { netns: path.to_owned(), previous, ..target }
}

fn netns_of_process(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let mut command = Command::new("sleep");
    command.arg("60");
    let mut process = target.pod.spawn(command)?;
    let path = format!("/proc/{}/ns/net", process.child().id());
    add_check_del(test, &by_path(target, &path), |call| call).map(drop)
}

fn netns_bound_again(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    test.node()?.sh(&format!("touch /run/elsewhere && mount --bind {} /run/elsewhere", target.netns))?;
    add_check_del(test, &by_path(target, "/run/elsewhere"), |call| call).map(drop)
}

/// A container whose path contains a symbolic link.
fn linked(test: &TestContext<'_>) -> Result<Target, Stop> {
    let target = test.target("pod1")?;
    test.node()?.sh("ln -s netns /run/linked")?;
    Ok(by_path(target, "/run/linked/pod1"))
}

fn netns_by_link(test: &TestContext<'_>) -> TestResult {
    add_check_del(test, &linked(test)?, |call| call).map(drop)
}

/// Ends the test case with a mismatch unless the node is unchanged after several calls.
fn unchanged(test: &TestContext<'_>, before: &Snapshot) -> TestResult {
    let changes = test.changes_since(before)?;
    ensure(changes.is_empty(), "no change on the node", changes)
}

/// Paths that are not a network namespace; the last one is a UTS namespace.
fn wrong_paths(test: &TestContext<'_>) -> Result<[&'static str; 5], Stop> {
    test.node()?.sh("touch /run/file")?;
    Ok(["/run/netns/none", "/run/none/none", "/run/file", "/run", "/proc/self/ns/uts"])
}

fn add_without_netns(test: &TestContext<'_>) -> TestResult {
    test.attached(&test.target("neighbour")?)?;
    let target = test.target("pod1")?;
    let paths = wrong_paths(test)?;
    let before = test.snapshot()?;
    for path in paths {
        test.add(&target).var("CNI_NETNS", path).run()?.refused()?;
    }
    unchanged(test, &before)
}

fn check_without_netns(test: &TestContext<'_>) -> TestResult {
    if test.version < Version::V0_4_0 {
        return skip("CHECK begins with version 0.4.0");
    }
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let paths = wrong_paths(test)?;
    let before = test.snapshot()?;
    for path in paths {
        test.check(&target, &result).var("CNI_NETNS", path).run()?.refused()?;
    }
    unchanged(test, &before)
}

fn sandbox(test: &TestContext<'_>) -> TestResult {
    let target = linked(test)?;
    let answer = test.add(&target).run()?;
    let result = answer.result()?;
    let mine = |interface: &&Value| interface["name"] == target.ifname.as_str();
    let interface = result["interfaces"].as_array().into_iter().flatten().find(mine);
    let seen = interface.map_or(Value::Null, |interface| interface["sandbox"].clone());
    answer.ensure(seen == target.netns.as_str(), format!("the sandbox {:?}", target.netns), seen)
}

fn own_netns(test: &TestContext<'_>) -> TestResult {
    let node = test.node()?;
    test.attached(&test.target("neighbour")?)?;
    let target = test.target("pod1")?;
    // This gives a loopback plugin something to change.
    node.sh("ip link set lo down")?;
    let before = test.snapshot()?;
    for path in ["/proc/self/ns/net", "/run/own"] {
        node.sh("[ -e /run/own ] || { touch /run/own && mount --bind /proc/self/ns/net /run/own; }")?;
        let answer = test.add(&target).var("CNI_NETNS", path).run()?;
        answer.refused()?;
        test.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

fn del_of_gone_netns(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    target.pod.delete()?;
    test.detached(&target, &result)?;
    test.detached(&target, &result).map(drop)
}

fn del_without_netns(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.del(&target, Some(&result)).var("CNI_NETNS", "").run()?.ok()
}

fn nothing_made(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    target.pod.delete()?;
    let calls = calls(test, &target, &result);
    for path in [target.netns.as_str(), "/run/none/none"] {
        for call in calls.iter().rev() {
            let answer = call.clone().var("CNI_NETNS", path).run()?;
            if test.node()?.sh(&format!("ls -d {path} /run/none 2>/dev/null; true"))?.trim().is_empty() {
                continue;
            }
            return answer
                .mismatch("nothing at the path in CNI_NETNS", format!("the call has created {path}"));
        }
    }
    Ok(())
}
