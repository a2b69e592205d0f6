//! Test cases of ADD.

mod cleanup;
mod twice;

use std::time::Duration;

use serde_json::Value;

use super::tools::{dual_stack, link_names, links};
use crate::layout;
use crate::outcome::{Stop, TestResult, mismatch};
use crate::plugin_under_test::{PLUGINS, Role, STATEFUL};
use crate::test_case::TestCase;
use crate::test_context::{NETWORK, Target, TestContext};
use cni_lab::Place;

/// The role of plugins that make an interface.
const INTERFACE: &[Role] = &[Role::Interface];
/// Roles of plugins that work on an interface.
const WORKERS: &[Role] = &[Role::Loopback, Role::Interface, Role::Chained];
const CHAINED: &[Role] = &[Role::Chained];
/// A small part of the four minutes that the kubelet allows for a whole pod. The slowest reference plugin
/// takes 5 seconds.
const WELL_WITHIN: Duration = Duration::from_secs(10);

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("ADD-01", "the-interface-is-there", INTERFACE, interface_made).each_version(),
    TestCase::new("ADD-01", "lo-is-up", &[Role::Loopback], lo_is_up).each_version(),
    TestCase::new("ADD-01", "something-is-adjusted", CHAINED, adjusted).only(&[
        "portmap",
        "bandwidth",
        "tuning",
        "firewall",
    ]),
    TestCase::new("ADD-02", "what-the-result-says-is-so", WORKERS, described).each_version(),
    TestCase::new("ADD-02", "the-result-has-the-interface-and-its-address", INTERFACE, interface_told)
        .delegating()
        .each_version(),
    TestCase::new("ADD-02", "the-result-has-an-address", &[Role::Ipam], address_told).each_version(),
    TestCase::new("ADD-03", "a-foreign-interface-has-the-name", INTERFACE, name_taken).each_version(),
    TestCase::new("ADD-03", "an-interface-of-another-network-has-the-name", INTERFACE, name_taken_by_itself),
    TestCase::new("ADD-04", "the-ipam-plugin-fails", INTERFACE, cleanup::ipam_fails).delegating(),
    TestCase::new("ADD-04", "the-name-is-taken", INTERFACE, cleanup::name_taken),
    TestCase::new("ADD-04", "the-namespace-does-not-exist", WORKERS, cleanup::no_namespace),
    TestCase::new("ADD-04", "the-interface-does-not-exist", CHAINED, cleanup::no_interface),
    TestCase::new(
        "ADD-04",
        "one-of-two-addresses-is-not-to-be-had",
        &[Role::Ipam],
        cleanup::half_of_addresses,
    )
    .only(&["host-local"]),
    TestCase::new("ADD-05", "a-second-add-does-no-harm", STATEFUL, twice::same_attachment),
    TestCase::new("ADD-06", "one-container-with-two-interfaces", STATEFUL, twice::two_interfaces),
    TestCase::new("ADD-06", "one-container-in-two-networks", STATEFUL, twice::two_networks),
    TestCase::new("ADD-07", "beside-a-default-route-of-another-network", INTERFACE, default_route)
        .delegating(),
    TestCase::new("ADD-08", "killed-during-add", STATEFUL, cleanup::killed_add),
    TestCase::new("ADD-08", "killed-during-del", STATEFUL, cleanup::killed_del),
    TestCase::new("ADD-09", "ipv4", PLUGINS, in_time),
    TestCase::new("ADD-09", "both-families", INTERFACE, in_time_dual_stack).delegating(),
];

fn interface_made(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let answer = test.add(&target).run()?;
    answer.ok()?;
    let names = link_names(&target.pod)?;
    let expected = format!("an interface {} in the namespace", target.ifname);
    answer.ensure(names.contains(&target.ifname), expected, names.join(", "))
}

fn lo_is_up(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let answer = test.add(&target).run()?;
    answer.ok()?;
    let shown = target.pod.sh("ip -o link show lo")?;
    answer.ensure(shown.contains(",UP"), "lo to be up", shown)
}

fn adjusted(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let (node, pod) = (test.snapshot()?, test.snapshot_of(&target.pod)?);
    let answer = test.add(&target).run()?;
    answer.ok()?;
    let changes = node.diff(&test.snapshot()?) + &pod.diff(&test.snapshot_of(&target.pod)?);
    answer.ensure(!changes.is_empty(), "a change on the node or in the namespace", "none")
}

/// Everything in a result exists.
fn described(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let (inside, outside) = (links(&target.pod)?, links(test.node()?)?);
    for interface in layout::list(&result, "interfaces") {
        let place =
            if interface["sandbox"].as_str().unwrap_or_default().is_empty() { &outside } else { &inside };
        let Some(link) = place.iter().find(|link| link["ifname"] == interface["name"]) else {
            return mismatch("the interfaces of the result to exist", interface);
        };
        // A missing hardware address is allowed here; `lo` has an all-zero address that no plugin reports.
        let mac = interface["mac"].as_str().unwrap_or_default();
        if !mac.is_empty() && !link["address"].as_str().unwrap_or_default().eq_ignore_ascii_case(mac) {
            return mismatch(format!("the hardware address {mac} of {}", interface["name"]), link);
        }
    }
    for address in layout::addresses(&result) {
        if !has_address(&inside, &address) {
            return mismatch(format!("the address {address} in the container"), Value::from(inside));
        }
    }
    Ok(())
}

fn has_address(links: &[Value], address: &str) -> bool {
    let infos = links.iter().flat_map(|link| layout::list(link, "addr_info"));
    let mut shown =
        infos.map(|info| format!("{}/{}", info["local"].as_str().unwrap_or_default(), info["prefixlen"]));
    shown.any(|shown| shown == address)
}

fn interface_told(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let answer = test.add(&target).run()?;
    let result = answer.result()?;
    let addresses = layout::addresses(&result);
    answer.ensure(addresses == ["10.77.0.2/24"], "the address 10.77.0.2/24 in the result", &result)?;
    // Results before 0.3.0 have no interfaces.
    let is_named = layout::list(&result, "interfaces")
        .any(|interface| interface["name"] == *target.ifname && interface["sandbox"] == *target.netns);
    let is_old = test.version < cni_runner::Version::V0_3_0;
    answer.ensure(is_named || is_old, format!("{} with its sandbox in the result", target.ifname), &result)
}

fn address_told(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    let result = answer.result()?;
    answer.ensure(!layout::addresses(&result).is_empty(), "a result with an address", &result)
}

/// Makes an interface with the target's name that belongs to no attachment.
fn occupy(target: &Target) -> Result<(), Stop> {
    target.pod.sh(&format!("ip link add {} type veth peer name other0", target.ifname))?;
    Ok(())
}

fn name_taken(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    occupy(&target)?;
    let before = test.snapshot_of(&target.pod)?;
    let answer = test.add(&target).run()?;
    answer.refused()?;
    let harm = super::tools::lost(&before, &test.snapshot_of(&target.pod)?);
    answer.ensure(harm.is_empty(), "no change of the existing interface", harm)
}

fn name_taken_by_itself(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    test.attached(&target)?;
    let before = test.snapshot_of(&target.pod)?;
    let answer = test.add(&target).key("name", format!("{NETWORK}2")).run()?;
    answer.refused()?;
    let harm = super::tools::lost(&before, &test.snapshot_of(&target.pod)?);
    answer.ensure(harm.is_empty(), "no change of the existing interface", harm)
}

fn default_route(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    target.pod.sh(
        "ip link add other0 type veth peer name other1 && ip link set other0 up && ip link set other1 up && \
         ip addr add 192.0.2.2/24 dev other0 && ip route add default via 192.0.2.1",
    )?;
    let answer = test.add(&target).run()?;
    answer.ok()?;
    let all = target.pod.sh("ip -4 route show")?;
    let device = format!("dev {} ", target.ifname);
    let routes: Vec<&str> = all.lines().filter(|route| format!("{route} ").contains(&device)).collect();
    let are_plain = !routes.is_empty() && routes.iter().all(|route| !route.contains("metric"));
    answer.ensure(are_plain, format!("routes through {} with metric 0", target.ifname), all)
}

fn in_time(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    answer.ok()?;
    let seen = format!("{:?}", answer.output.wall);
    answer.ensure(answer.output.wall < WELL_WITHIN, format!("an end within {WELL_WITHIN:?}"), seen)
}

fn in_time_dual_stack(test: &TestContext<'_>) -> TestResult {
    dual_stack(test)?;
    in_time(test)
}
