//! Test cases of CHECK.

mod damage;

use serde_json::{Value, json};

use super::tools::{altered, dual_stack};
use crate::outcome::{Stop, TestResult};
use crate::plugin_under_test::{PLUGINS, Role};
use crate::stub::Reply;
use crate::test_case::TestCase;
use crate::test_context::{Target, TestContext};
use cni_lab::Place as _;

/// The role of plugins that make an interface.
const INTERFACE: &[Role] = &[Role::Interface];
/// Roles of plugins that work on a container's interface.
const WORKERS: &[Role] = &[Role::Interface, Role::Chained];
/// Plugins that use the packet filter.
const FILTERING: &[&str] = &["bridge", "ptp", "portmap", "firewall"];
const FORWARDING: &[&str] = &["bridge", "ptp"];
const BRIDGE: &[&str] = &["bridge"];
const BANDWIDTH: &[&str] = &["bandwidth"];
/// How many containers are checked right after their ADD.
const TIMES: usize = 20;

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("CHK-01", "prev-result-absent-or-null", WORKERS, without_previous),
    TestCase::new("CHK-01", "prev-result-has-another-address", INTERFACE, other_address).delegating(),
    TestCase::new("CHK-02", "another-route", WORKERS, another_route),
    TestCase::new("CHK-02", "another-address", WORKERS, another_address),
    TestCase::new("CHK-02", "another-mtu", INTERFACE, another_mtu),
    TestCase::new("CHK-02", "another-interface", WORKERS, another_interface),
    TestCase::new("CHK-02", "another-interface-in-prev-result", WORKERS, another_interface_told),
    TestCase::new("CHK-03", "the-interface-is-gone", INTERFACE, damage::no_interface).each_version(),
    TestCase::new("CHK-03", "the-namespace-is-gone", INTERFACE, damage::no_namespace),
    TestCase::new("CHK-03", "the-address-is-gone", INTERFACE, damage::no_address).delegating().each_version(),
    TestCase::new("CHK-03", "the-address-has-another-prefix", INTERFACE, damage::other_prefix).delegating(),
    TestCase::new("CHK-03", "the-ipv6-address-is-gone", INTERFACE, damage::no_ipv6_address).delegating(),
    TestCase::new("CHK-03", "the-route-is-gone", INTERFACE, damage::no_route).delegating().each_version(),
    TestCase::new("CHK-03", "the-hardware-address-is-another", INTERFACE, damage::other_mac),
    TestCase::new("CHK-03", "the-bridge-is-gone", INTERFACE, damage::no_bridge).only(BRIDGE),
    TestCase::new("CHK-04", "the-firewall-was-flushed", WORKERS, damage::flushed).only(FILTERING),
    TestCase::new("CHK-04", "the-reservation-is-gone", &[Role::Ipam], damage::no_reservation)
        .only(&["host-local"]),
    TestCase::new("CHK-04", "the-shaping-towards-it-is-gone", WORKERS, damage::no_ingress).only(BANDWIDTH),
    TestCase::new("CHK-04", "the-shaping-from-it-is-gone", WORKERS, damage::no_egress).only(BANDWIDTH),
    TestCase::new("CHK-04", "the-setting-is-undone", WORKERS, damage::setting_undone).only(&["tuning"]),
    TestCase::new("CHK-04", "the-gateway-address-is-gone", INTERFACE, damage::no_gateway).only(FORWARDING),
    TestCase::new("CHK-05", "the-interface-is-down", INTERFACE, damage::down),
    TestCase::new("CHK-05", "lo-is-down", &[Role::Loopback], damage::lo_down),
    TestCase::new("CHK-05", "it-is-no-port-of-the-bridge", INTERFACE, damage::no_port).only(BRIDGE),
    TestCase::new("CHK-05", "the-bridge-is-down", INTERFACE, damage::bridge_down).only(BRIDGE),
    TestCase::new("CHK-05", "forwarding-is-off", INTERFACE, damage::no_forwarding).only(FORWARDING),
    TestCase::new("CHK-06", "at-once", PLUGINS, at_once).each_version(),
    TestCase::new("CHK-06", "at-once-after-each-of-many", PLUGINS, many),
    TestCase::new("CHK-06", "at-once-with-both-families", INTERFACE, many_dual_stack).delegating(),
    TestCase::new("CHK-07", "the-ipam-plugin-is-called", INTERFACE, delegated).delegating().each_version(),
    TestCase::new("CHK-07", "the-ipam-plugin-fails", INTERFACE, delegate_fails).delegating().each_version(),
    TestCase::new("CHK-08", "nothing-is-changed", PLUGINS, harmless),
    TestCase::new("CHK-08", "nothing-is-repaired", WORKERS, no_repair),
];

fn without_previous(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    test.attached(&target)?;
    let check = test.call_for("CHECK", &target);
    check.run()?.refused()?;
    check.key("prevResult", ()).run()?.refused()?;
    Ok(())
}

fn other_address(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let mut result = test.attached(&target)?;
    if let Some(address) = result.pointer_mut("/ips/0/address") {
        *address = "10.77.0.99/24".into();
    }
    test.check(&target, &result).run()?.refused()?;
    Ok(())
}

/// Changes an attachment, or its result, in a way that CHECK must accept.
fn tolerated(test: &TestContext<'_>, change: impl Fn(&Target, &mut Value) -> Result<(), Stop>) -> TestResult {
    let target = test.target("pod1")?;
    let mut result = test.attached(&target)?;
    change(&target, &mut result)?;
    test.check(&target, &result).run()?.silent()
}

fn another_route(test: &TestContext<'_>) -> TestResult {
    tolerated(test, |target, _| {
        altered(&target.pod, &format!("ip route add 198.51.100.0/24 dev {}", target.ifname))
    })
}

fn another_address(test: &TestContext<'_>) -> TestResult {
    tolerated(test, |target, _| {
        altered(&target.pod, &format!("ip addr add 192.0.2.9/24 dev {}", target.ifname))
    })
}

fn another_mtu(test: &TestContext<'_>) -> TestResult {
    tolerated(test, |target, _| altered(&target.pod, &format!("ip link set {} mtu 1300", target.ifname)))
}

fn make_another(target: &Target) -> Result<(), Stop> {
    target.pod.sh(
        "ip link add other0 type veth peer name other1 && ip link set other0 up && ip link set other1 up && \
         ip addr add 192.0.2.2/24 dev other0",
    )?;
    Ok(())
}

fn another_interface(test: &TestContext<'_>) -> TestResult {
    tolerated(test, |target, _| make_another(target))
}

/// The result is what libcni would have after a later plugin that makes an interface.
fn another_interface_told(test: &TestContext<'_>) -> TestResult {
    let family = (test.version < cni_runner::Version::V1_0_0).then_some("4");
    tolerated(test, |target, result| {
        make_another(target)?;
        let mac = target.pod.sh("ip -o link show other0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'")?;
        let interfaces = result["interfaces"].as_array().map_or(0, Vec::len);
        let interface = json!({"name": "other0", "mac": mac.trim(), "sandbox": target.netns});
        let mut ip = json!({"address": "192.0.2.2/24", "interface": interfaces});
        if let (Some(family), Some(ip)) = (family, ip.as_object_mut()) {
            ip.insert("version".to_owned(), family.into());
        }
        for (key, item) in [("interfaces", interface), ("ips", ip)] {
            match result.get_mut(key).and_then(Value::as_array_mut) {
                Some(items) => items.push(item),
                None => {
                    if let Some(result) = result.as_object_mut() {
                        result.insert(key.to_owned(), json!([item]));
                    }
                }
            }
        }
        Ok(())
    })
}

fn at_once(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.check(&target, &result).run()?.silent()
}

/// Calls ADD and CHECK for one container after the other, then CHECK for all of them.
fn checked_at_once(test: &TestContext<'_>, times: usize) -> TestResult {
    let mut attached = Vec::new();
    for number in 0..times {
        let target = test.target(&format!("pod{number}"))?;
        let result = test.attached(&target)?;
        test.check(&target, &result).run()?.silent()?;
        // static and loopback give all containers the same address, which does no harm here.
        attached.push((target, result));
    }
    for (target, result) in &attached {
        test.check(target, result).run()?.silent()?;
    }
    Ok(())
}

fn many(test: &TestContext<'_>) -> TestResult {
    checked_at_once(test, TIMES)
}

fn many_dual_stack(test: &TestContext<'_>) -> TestResult {
    dual_stack(test)?;
    checked_at_once(test, 5)
}

fn delegated(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let answer = test.check(&target, &result).run()?;
    answer.silent()?;
    let verbs = test.ipam()?.verbs()?;
    answer.ensure(
        verbs.last().is_some_and(|verb| verb == "CHECK"),
        "a call of the IPAM plugin's CHECK",
        verbs.join(", "),
    )
}

fn delegate_fails(test: &TestContext<'_>) -> TestResult {
    let msg = "the address is not reserved";
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.ipam()?.on("CHECK", Reply::Error { code: 11, msg, status: 1 })?;
    test.check(&target, &result).run()?.refused()?.mentions(msg)?;
    Ok(())
}

fn harmless(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let (node, pod) = (test.snapshot()?, test.snapshot_of(&target.pod)?);
    let answer = test.check(&target, &result).run()?;
    answer.silent()?;
    let changes = node.diff(&test.snapshot()?) + &pod.diff(&test.snapshot_of(&target.pod)?);
    answer.ensure(changes.is_empty(), "no change on the node or in the namespace", changes)
}

/// CHECK must report damage but not repair it.
fn no_repair(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    altered(&target.pod, &format!("ip addr flush dev {}", target.ifname))?;
    altered(test.node()?, damage::EMPTY)?;
    let (node, pod) = (test.snapshot()?, test.snapshot_of(&target.pod)?);
    let answer = test.check(&target, &result).run()?;
    let changes = node.diff(&test.snapshot()?) + &pod.diff(&test.snapshot_of(&target.pod)?);
    answer.ensure(changes.is_empty(), "no change on the node or in the namespace", changes)
}
