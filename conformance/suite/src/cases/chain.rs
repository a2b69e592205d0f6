//! Test cases of `prevResult` and of chains.

use serde_json::{Value, json};

use super::tools::{node_in_use, released_without_namespace};
use crate::call::Answer;
use crate::kernel;
use crate::layout::{list, normalised};
use crate::outcome::{Stop, TestResult, skip};
use crate::plugin_under_test::{PLUGINS, Role};
use crate::test_case::TestCase;
use crate::test_context::{Target, TestContext};
use cni_lab::Place as _;
use cni_runner::Version;

const CHAINED: &[Role] = &[Role::Chained];
/// Roles of plugins whose result is part of a chain's result.
const IN_CHAINS: &[Role] = &[Role::Loopback, Role::Interface, Role::Chained];

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("PREV-01", "what-was-there-before-is-handed-on", IN_CHAINS, handed_on).each_version(),
    TestCase::new("PREV-02", "with-nothing-to-do-the-result-stays", CHAINED, nothing_to_do).each_version(),
    TestCase::new("PREV-03", "what-was-there-before-is-handed-on", IN_CHAINS, handed_on).each_version(),
    TestCase::new("CHN-01", "an-add-without-an-earlier-result-is-refused", CHAINED, without_previous)
        .each_version(),
    TestCase::new("CHN-02", "only-its-own-part-of-the-result-changes", CHAINED, only_its_own).each_version(),
    TestCase::new("CHN-03", "an-interface-of-another-kind-will-do", CHAINED, another_kind)
        .only(&["portmap", "tuning", "firewall"]),
    TestCase::new("CHN-04", "unusual-earlier-results-crash-nothing", IN_CHAINS, unusual),
    TestCase::new("CHN-05", "later-plugins-may-have-added-things", PLUGINS, final_result).each_version(),
    TestCase::new("CHN-06", "del-cleans-up-while-the-interface-is-there", CHAINED, del_with_interface)
        .each_version(),
    TestCase::new("CHN-06", "del-cleans-up-when-the-namespace-is-gone", CHAINED, released_without_namespace)
        .each_version(),
];

/// A container with an interface, and the result of that interface with more that a plugin might lose: DNS
/// and a second route. A plugin that is not chained gets the result of another interface.
fn rich(test: &TestContext<'_>) -> Result<(Target, Value), Stop> {
    let target = test.target("pod1")?;
    let mut previous = match &target.previous {
        Some(previous) => previous.clone(),
        None => test.interface_for(&target.pod, &target.netns, "before0")?,
    };
    previous["dns"] = json!({
        "nameservers": ["192.0.2.53"], "domain": "trial.example", "search": ["example"], "options": ["ndots:5"]});
    if let Some(routes) = previous["routes"].as_array_mut() {
        let mut route = json!({"dst": "198.51.100.0/24", "gw": "10.76.2.1"});
        if test.version >= Version::V1_1_0 {
            route["mtu"] = 1400.into();
        }
        routes.push(route);
    }
    Ok((target, previous))
}

fn handed_on(test: &TestContext<'_>) -> TestResult {
    let (target, previous) = rich(test)?;
    let answer = test.add(&target).previous(&previous).run()?;
    let result = answer.result()?;
    // The key identifies an entry of a list; its other keys may change.
    for (part, key) in [("interfaces", "name"), ("ips", "address"), ("routes", "dst")] {
        for item in list(&previous, part) {
            let is_there = list(&result, part).any(|other| other[key] == item[key]);
            answer.ensure(is_there, format!("{part} with the entry of prevResult {item}"), &result[part])?;
        }
    }
    answer.ensure(!normalised(&result)["dns"].is_null(), "the dns of prevResult", answer.shown())
}

/// A plugin without its own keys has nothing to do, or refuses to work.
fn nothing_to_do(test: &TestContext<'_>) -> TestResult {
    let (target, previous) = rich(test)?;
    let mut call = test.add(&target).previous(&previous);
    for key in test.plugin.description.config.keys() {
        call = call.without_key(key);
    }
    let answer = call.run()?;
    if !answer.output.success() {
        return skip("the plugin refuses to work without its own keys");
    }
    let (expected, seen) = (normalised(&previous), normalised(&answer.result()?));
    answer.ensure(expected == seen, expected, seen)
}

fn without_previous(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    test.add(&target).without_key("prevResult").run()?.refused()?;
    Ok(())
}

fn only_its_own(test: &TestContext<'_>) -> TestResult {
    let (target, previous) = rich(test)?;
    let answer = test.add(&target).previous(&previous).run()?;
    let result = answer.result()?;
    // Addresses refer to interfaces by index, so a plugin must append its interfaces.
    for (index, interface) in list(&previous, "interfaces").enumerate() {
        let now = &result["interfaces"][index];
        let is_own = interface["name"].as_str() == Some(&target.ifname);
        let is_same = if is_own { now["name"] == interface["name"] } else { now == interface };
        answer.ensure(is_same, format!("interface {index} unchanged: {interface}"), now)?;
    }
    let (before, after) = (normalised(&previous), normalised(&result));
    for key in ["ips", "routes", "dns"] {
        answer.ensure(before[key] == after[key], format!("{key} unchanged: {}", before[key]), &after[key])?;
    }
    Ok(())
}

fn another_kind(test: &TestContext<'_>) -> TestResult {
    if !kernel::works("ip link add probe2 type bridge")? {
        return skip("this kernel has no link type bridge");
    }
    let target = test.target("pod1")?;
    let pod = &target.pod;
    let Some(mut previous) = target.previous.clone() else { return skip("the plugin is not chained") };
    // Replace the veth by a bridge, which has no other end on the node.
    let address = list(&previous, "ips").next().and_then(|ip| ip["address"].as_str()).unwrap_or_default();
    pod.sh(&format!(
        "ip link del eth0 && ip link add eth0 type bridge && ip addr add {address} dev eth0 && ip link set eth0 up"
    ))?;
    let mac = pod
        .sh("cat /sys/class/net/eth0/address || ip -o link show eth0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'")?;
    previous["interfaces"] = json!([{"name": "eth0", "mac": mac.trim(), "sandbox": target.netns}]);
    for ip in previous["ips"].as_array_mut().into_iter().flatten() {
        ip["interface"] = 0.into();
    }
    let result = test.add(&target).previous(&previous).run()?.result()?;
    test.detached(&target, &result)?;
    Ok(())
}

/// Accepts a result or a proper error, but no crash.
fn unusual(test: &TestContext<'_>) -> TestResult {
    let (target, usual) = rich(test)?;
    let with = |key: &str, value: Value| {
        let mut previous = usual.clone();
        previous[key] = value;
        previous
    };
    let ip = |interface: Value| {
        let mut ip = usual["ips"][0].clone();
        ip["interface"] = interface;
        json!([ip])
    };
    let without = |key: &str| {
        let mut previous = usual.clone();
        if let Some(members) = previous.as_object_mut() {
            members.remove(key);
        }
        previous
    };
    let mut no_index = usual.clone();
    if let Some(ip) = no_index["ips"][0].as_object_mut() {
        ip.remove("interface");
    }
    let mut other_kind = json!([{"name": "vhost0"}, {"name": "tap0", "mac": "", "sandbox": "/run/qemu/vm1"}]);
    if test.version >= Version::V1_1_0 {
        other_kind[0]["socketPath"] = "/run/vhost.sock".into();
        other_kind[1]["pciID"] = "0000:3b:00.1".into();
    }
    for previous in [
        with("interfaces", other_kind),
        with("interfaces", json!([])),
        without("interfaces"),
        without("ips"),
        without("routes"),
        with("interfaces", Value::Null),
        with("ips", ip(7.into())),
        with("ips", ip(Value::Null)),
        no_index,
        json!({"cniVersion": test.version.to_string()}),
    ] {
        let result = answered(&test.add(&target).previous(&previous).run()?)?;
        if test.version >= Version::V0_4_0 {
            answered(&test.check(&target, &previous).run()?)?;
        }
        answered(&test.del(&target, Some(result.as_ref().unwrap_or(&previous))).run()?)?;
    }
    Ok(())
}

/// The answer of a plugin that has not crashed: a result or nothing if it succeeded, otherwise a proper
/// error.
fn answered(answer: &Answer) -> Result<Option<Value>, Stop> {
    if !answer.output.success() {
        answer.refused()?;
        return Ok(None);
    }
    if answer.output.stdout.iter().all(u8::is_ascii_whitespace) {
        Ok(None)
    } else {
        answer.document().map(Some)
    }
}

/// A later plugin has added another link on the node, and DNS.
fn final_result(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    let mut result = test.attached(&target)?;
    // Another test case checks whether CHECK succeeds without these additions.
    let succeeds_without = test.check(&target, &result).run()?.output.success();
    test.node()?.sh("ip link add later0 type veth peer name later1")?;
    let mac = test.node()?.sh("cat /sys/class/net/later0/address")?;
    let later = json!({"name": "later0", "mac": mac.trim()});
    match result["interfaces"].as_array_mut() {
        Some(interfaces) => interfaces.push(later),
        None => result["interfaces"] = json!([later]),
    }
    result["dns"] = json!({"nameservers": ["192.0.2.53"]});
    let check = test.check(&target, &result).run()?;
    check.ensure(
        check.output.success() || !succeeds_without,
        "success, as without the additions of a later plugin",
        check.shown(),
    )?;
    let answer = test.detached(&target, &result)?;
    test.node()?.sh("ip link del later0")?;
    target.pod.delete()?;
    test.unchanged_since(&before, &answer)
}

/// The interface belongs to the earlier plugin, whose DEL comes later.
fn del_with_interface(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let answer = test.detached(&target, &result)?;
    let is_there = target.pod.sh(&format!("ip link show {}", target.ifname)).is_ok();
    answer.ensure(is_there, "the interface, which belongs to another plugin", "it is gone")?;
    target.pod.delete()?;
    test.unchanged_since(&before, &answer)
}
