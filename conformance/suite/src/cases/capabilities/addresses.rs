//! Requested addresses, by every means of requesting them.

use serde_json::{Value, json};

use crate::call::Call;
use crate::layout;
use crate::outcome::TestResult;
use crate::test_context::TestContext;

/// Expects this address as the first one of a modified ADD, and as the only one if `alone`.
fn gives<'l>(
    test: &'l TestContext<'_>,
    address: &str,
    alone: bool,
    change: impl FnOnce(Call<'l>) -> Call<'l>,
) -> TestResult {
    let answer = change(test.add(&test.target("pod1")?)).run()?;
    let seen = layout::addresses(&answer.result()?);
    let is_first = seen.first().is_some_and(|first| first == address);
    answer.ensure(
        is_first && (!alone || seen.len() == 1),
        format!("the address {address}"),
        format!("{seen:?}"),
    )
}

/// Ranges that the test's configuration does not have.
fn ranges() -> Value {
    json!({"ipRanges": [[{"subnet": "10.99.0.0/24", "rangeStart": "10.99.0.9", "rangeEnd": "10.99.0.19"}]]})
}

pub(super) fn ranges_alone(test: &TestContext<'_>) -> TestResult {
    gives(test, "10.99.0.9/24", true, |call| {
        call.key("runtimeConfig", ranges()).key("ipam", json!({"type": test.plugin.name}))
    })
}

pub(super) fn ranges_first(test: &TestContext<'_>) -> TestResult {
    gives(test, "10.99.0.9/24", false, |call| call.key("runtimeConfig", ranges()))
}

fn asked_by_runtime(test: &TestContext<'_>, asked: &str) -> TestResult {
    gives(test, "10.77.0.77/24", true, |call| call.key("runtimeConfig", json!({"ips": [asked]})))
}

pub(super) fn plain_ips(test: &TestContext<'_>) -> TestResult {
    asked_by_runtime(test, "10.77.0.77")
}

pub(super) fn prefixed_ips(test: &TestContext<'_>) -> TestResult {
    asked_by_runtime(test, "10.77.0.77/24")
}

/// Removes the addresses from a static plugin's configuration; it uses an address in CNI_ARGS only if it has
/// none itself.
fn without_addresses(call: Call<'_>) -> Call<'_> {
    let mut ipam = call.config.get("ipam").cloned().unwrap_or_default();
    if let Some(ipam) = ipam.as_object_mut() {
        ipam.remove("addresses");
    }
    call.key("ipam", ipam)
}

fn asked_by_args(test: &TestContext<'_>, args: &str) -> TestResult {
    gives(test, "10.77.0.77/24", true, |call| without_addresses(call).var("CNI_ARGS", args))
}

pub(super) fn plain_arg(test: &TestContext<'_>) -> TestResult {
    asked_by_args(test, "IP=10.77.0.77")
}

pub(super) fn prefixed_arg(test: &TestContext<'_>) -> TestResult {
    asked_by_args(test, "IP=10.77.0.77/24")
}

pub(super) fn arg_among_others(test: &TestContext<'_>) -> TestResult {
    asked_by_args(test, "IgnoreUnknown=1;K8S_POD_NAME=pod1;IP=10.77.0.77/24;A=b")
}

pub(super) fn json_ips(test: &TestContext<'_>) -> TestResult {
    gives(test, "10.77.0.77/24", true, |call| call.key("args", json!({"cni": {"ips": ["10.77.0.77/24"]}})))
}

pub(super) fn both_ways(test: &TestContext<'_>) -> TestResult {
    gives(test, "10.77.0.77/24", true, |call| {
        call.key("args", json!({"cni": {"ips": ["10.77.0.77/24"]}})).var("CNI_ARGS", "IP=10.77.0.78/24")
    })
}
