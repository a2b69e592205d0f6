//! Rates and hardware addresses, checked on the links.

use serde_json::{Value, json};

use super::with_value;
use crate::layout;
use crate::outcome::{Stop, TestResult};
use crate::test_context::TestContext;
use cni_lab::Place as _;

/// Towards the container, in bits per second.
const INGRESS: u64 = 8_000_000;
/// From the container, in bits per second.
const EGRESS: u64 = 16_000_000;
/// In bits.
const BURST: u64 = 4_000_000;
const MAC: &str = "02:00:00:00:00:aa";

/// The rates of the node's queueing disciplines in bits per second: first those on the container's host link,
/// then those on other links.
fn seen_rates(test: &TestContext<'_>) -> Result<(Vec<u64>, Vec<u64>), Stop> {
    let disciplines: Value = serde_json::from_str(&test.node()?.sh("tc -j qdisc show")?)?;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for discipline in disciplines.as_array().into_iter().flatten() {
        // tc reports bytes per second.
        let Some(rate) = discipline["options"]["rate"].as_u64().map(|rate| rate * 8) else { continue };
        let is_own = discipline["dev"].as_str().is_some_and(|device| device.starts_with("host"));
        if is_own { own.push(rate) } else { others.push(rate) }
    }
    Ok((own, others))
}

/// Expects these rates after an ADD with these limits: `ingress` towards the container, `egress` from it.
fn limits(test: &TestContext<'_>, limits: Value, ingress: &[u64], egress: &[u64]) -> TestResult {
    let mut call = test.add(&test.target("pod1")?).key("runtimeConfig", json!({"bandwidth": limits}));
    call.config.retain(|key, _| !key.ends_with("Rate") && !key.ends_with("Burst"));
    let answer = call.run()?;
    answer.ok()?;
    let (own, others) = seen_rates(test)?;
    answer.ensure(
        own == ingress && others == egress,
        format!("rates of {ingress:?} bit/s on the container's link and of {egress:?} on another"),
        format!("{own:?} and {others:?}"),
    )
}

pub(super) fn rates(test: &TestContext<'_>) -> TestResult {
    let wanted = json!({
        "ingressRate": INGRESS, "ingressBurst": BURST, "egressRate": EGRESS, "egressBurst": BURST});
    limits(test, wanted, &[INGRESS], &[EGRESS])
}

pub(super) fn one_direction(test: &TestContext<'_>) -> TestResult {
    // Runtimes send zeros for a direction without a limit.
    let wanted = json!({"ingressRate": INGRESS, "ingressBurst": BURST, "egressRate": 0, "egressBurst": 0});
    limits(test, wanted, &[INGRESS], &[])
}

pub(super) fn mac(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let answer = with_value(test.add(&target), "mac", MAC.into()).run()?;
    let result = answer.result()?;
    let links = target.pod.sh(&format!("ip -o link show dev {} 2>&1; true", target.ifname))?;
    answer.ensure(
        links.contains(&format!("link/ether {MAC} ")),
        format!("the hardware address {MAC}"),
        links,
    )?;
    let inside =
        layout::list(&result, "interfaces").find(|interface| interface["name"] == target.ifname.as_str());
    let seen = inside.map_or(Value::Null, |interface| interface["mac"].clone());
    answer.ensure(seen == MAC, format!("{MAC} in the result"), seen)
}
