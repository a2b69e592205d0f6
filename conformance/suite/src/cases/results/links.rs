//! Whether the interfaces of a result match the kernel's links.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::Value;

use super::rich;
use crate::call::Answer;
use crate::layout;
use crate::outcome::{Stop, TestResult};
use crate::test_context::{Target, TestContext};
use cni_lab::Place;

/// The links in a network namespace by name, as `ip -j -d link show` prints them.
fn links(place: &impl Place) -> Result<BTreeMap<String, Value>, Stop> {
    let text = place.sh("ip -j -d link show")?;
    let list: Vec<Value> = serde_json::from_str(&text).context("parse the output of ip -j -d link show")?;
    let named = |link: Value| Some((link["ifname"].as_str()?.to_owned(), link));
    Ok(list.into_iter().filter_map(named).collect())
}

/// Whether an interface of a result is in the container.
fn is_inside(interface: &Value) -> bool {
    interface["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty())
}

/// An attachment with the links of the node and of the container.
struct Made {
    target: Target,
    answer: Answer,
    result: Value,
    outside: BTreeMap<String, Value>,
    inside: BTreeMap<String, Value>,
}

impl Made {
    fn new(test: &TestContext<'_>) -> Result<Made, Stop> {
        let target = test.target("pod1")?;
        let answer = test.add(&target).run()?;
        let result = answer.result()?;
        let (outside, inside) = (links(test.node()?)?, links(&target.pod)?);
        Ok(Made { target, answer, result, outside, inside })
    }

    /// The kernel's link of an interface in the result.
    fn link(&self, interface: &Value) -> Option<&Value> {
        let place = if is_inside(interface) { &self.inside } else { &self.outside };
        place.get(interface["name"].as_str()?)
    }
}

pub(super) fn indices(test: &TestContext<'_>) -> TestResult {
    let (_, answer, result) = rich::add(test)?;
    let count = layout::list(&result, "interfaces").count() as u64;
    for ip in layout::list(&result, "ips").filter(|ip| !ip["interface"].is_null()) {
        let is_index = ip["interface"].as_u64().is_some_and(|index| index < count);
        answer.ensure(is_index, format!("an index of {count} interfaces"), ip)?;
    }
    Ok(())
}

pub(super) fn owners(test: &TestContext<'_>) -> TestResult {
    let (target, answer, result) = rich::add(test)?;
    let interfaces: Vec<&Value> = layout::list(&result, "interfaces").collect();
    for ip in layout::list(&result, "ips") {
        let index = ip["interface"].as_u64().and_then(|index| usize::try_from(index).ok());
        let interface = index.and_then(|index| interfaces.get(index).copied());
        let is_right = interface.is_some_and(|it| it["name"] == target.ifname && is_inside(it));
        answer.ensure(is_right, format!("the index of {} in the container", target.ifname), &result)?;
    }
    Ok(())
}

/// The container's interface must be listed, so an empty list fails.
pub(super) fn places(test: &TestContext<'_>) -> TestResult {
    let made = Made::new(test)?;
    for interface in layout::list(&made.result, "interfaces") {
        let place = if is_inside(interface) { "container" } else { "node" };
        made.answer.ensure(
            made.link(interface).is_some(),
            format!("an interface that exists in the {place}"),
            interface,
        )?;
    }
    let is_own = |it: &Value| it["name"] == made.target.ifname && is_inside(it);
    let has_own = layout::list(&made.result, "interfaces").any(is_own);
    made.answer.ensure(has_own, format!("{} with a sandbox", made.target.ifname), &made.result)
}

pub(super) fn macs(test: &TestContext<'_>) -> TestResult {
    let made = Made::new(test)?;
    for interface in layout::list(&made.result, "interfaces") {
        let Some(mac) = made.link(interface).and_then(|link| link["address"].as_str()) else { continue };
        if mac.bytes().all(|byte| matches!(byte, b'0' | b':')) {
            continue;
        }
        let is_same = interface["mac"].as_str().is_some_and(|said| said.eq_ignore_ascii_case(mac));
        made.answer.ensure(is_same, format!("mac {mac}"), interface)?;
    }
    Ok(())
}

/// Whether the link is a VRF: a routing table with a name, which attachments share.
fn is_vrf(link: &Value) -> bool {
    link["linkinfo"]["info_kind"] == "vrf"
}

pub(super) fn complete(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let before = (links(test.node()?)?, links(&target.pod)?);
    let answer = test.add(&target).run()?;
    let result = answer.result()?;
    let after = (links(test.node()?)?, links(&target.pod)?);
    for (before, after, inside) in [(before.0, after.0, false), (before.1, after.1, true)] {
        let is_new = |(name, link): &(&String, &Value)| !before.contains_key(*name) && !is_vrf(link);
        for (name, _) in after.iter().filter(is_new) {
            let is_listed = layout::list(&result, "interfaces")
                .any(|interface| interface["name"] == **name && is_inside(interface) == inside);
            let place = if inside { "container" } else { "node" };
            answer.ensure(is_listed, format!("the new link {name} of the {place} in the result"), &result)?;
        }
    }
    Ok(())
}

pub(super) fn mtus(test: &TestContext<'_>) -> TestResult {
    let made = Made::new(test)?;
    for interface in layout::list(&made.result, "interfaces").filter(|it| !it["mtu"].is_null()) {
        let mtu = made.link(interface).map(|link| link["mtu"].clone()).unwrap_or_default();
        made.answer.ensure(interface["mtu"] == mtu, format!("mtu {mtu}"), interface)?;
    }
    Ok(())
}
