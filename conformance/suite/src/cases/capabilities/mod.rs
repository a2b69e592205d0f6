//! Test cases of runtimeConfig, `args` and CNI_ARGS.

mod addresses;
mod invalid;
mod links;
mod ports;

use serde_json::{Value, json};

use super::life::add_check_del;
use crate::call::Call;
use crate::layout;
use crate::outcome::TestResult;
use crate::plugin_under_test::{PLUGINS, Role};
use crate::test_case::TestCase;
use crate::test_context::TestContext;

/// The pairs that Kubernetes runtimes send in CNI_ARGS.
const KUBERNETES: [&str; 5] = [
    "IgnoreUnknown=1",
    "K8S_POD_NAMESPACE=default",
    "K8S_POD_NAME=pod1",
    "K8S_POD_INFRA_CONTAINER_ID=0123456789abcdef",
    "K8S_POD_UID=d2a9f3c0-7a4b-4a8e-9f0e-0123456789ab",
];
const CHAINED: &[Role] = &[Role::Chained];
const IPAM: &[Role] = &[Role::Ipam];
/// Roles of plugins that do not assign addresses.
const OTHERS: &[Role] = &[Role::Loopback, Role::Interface, Role::Chained];

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("CAP-01", "a-connection-from-outside", CHAINED, ports::tcp)
        .only(&["portmap"])
        .each_version(),
    TestCase::new("CAP-01", "a-datagram-from-outside", CHAINED, ports::udp).only(&["portmap"]),
    TestCase::new("CAP-01", "one-address-of-the-host", CHAINED, ports::host_address).only(&["portmap"]),
    TestCase::new("CAP-01", "several-mappings", CHAINED, ports::several).only(&["portmap"]),
    TestCase::new("CAP-02", "instead-of-the-configuration", IPAM, addresses::ranges_alone)
        .only(&["host-local"])
        .each_version(),
    TestCase::new("CAP-02", "before-the-configuration", IPAM, addresses::ranges_first).only(&["host-local"]),
    TestCase::new("CAP-03", "rates-of-each-direction", CHAINED, links::rates)
        .only(&["bandwidth"])
        .each_version(),
    TestCase::new("CAP-03", "one-direction-alone", CHAINED, links::one_direction).only(&["bandwidth"]),
    TestCase::new("CAP-05", "an-address", IPAM, addresses::plain_ips).only(&["host-local"]),
    TestCase::new("CAP-05", "an-address-with-a-prefix-length", IPAM, addresses::prefixed_ips)
        .only(&["host-local", "static"]),
    TestCase::new("CAP-06", "a-hardware-address", PLUGINS, links::mac).only(&["bridge", "macvlan", "tuning"]),
    TestCase::new("CAP-11", "annotations", PLUGINS, annotations),
    TestCase::new("CAP-20", "port-mappings", CHAINED, invalid::mappings).only(&["portmap"]),
    TestCase::new("CAP-20", "rates", CHAINED, invalid::rates).only(&["bandwidth"]),
    TestCase::new("CAP-20", "addresses", IPAM, invalid::addresses).only(&["host-local", "static"]),
    TestCase::new("CAP-20", "ranges", IPAM, invalid::ranges).only(&["host-local"]),
    TestCase::new("CAP-20", "hardware-addresses", PLUGINS, invalid::macs)
        .only(&["bridge", "macvlan", "tuning"]),
    TestCase::new("CAP-21", "an-empty-runtime-config", PLUGINS, empty),
    TestCase::new("CAP-21", "nothing-asked-for", CHAINED, nothing).only(&["bandwidth", "portmap"]),
    TestCase::new("ARG-01", "several-pairs", PLUGINS, several_pairs),
    TestCase::new("ARG-01", "each-pair-by-itself", IPAM, addresses::arg_among_others)
        .only(&["host-local", "static"]),
    TestCase::new("ARG-02", "an-unknown-key", PLUGINS, unknown_key).only(&[
        "bridge",
        "host-local",
        "macvlan",
        "static",
        "tuning",
    ]),
    TestCase::new("ARG-02", "unknown-keys-are-allowed", PLUGINS, allowed_keys),
    TestCase::new("ARG-03", "an-address", IPAM, addresses::plain_arg).only(&["host-local"]),
    TestCase::new("ARG-03", "an-address-with-a-prefix-length", IPAM, addresses::prefixed_arg)
        .only(&["host-local", "static"])
        .each_version(),
    TestCase::new("ARG-04", "kubernetes-in-any-order", PLUGINS, kubernetes),
    TestCase::new("ARG-05", "an-address-both-ways", IPAM, addresses::both_ways)
        .only(&["host-local", "static"]),
    TestCase::new("JARG-01", "labels", PLUGINS, labels),
    TestCase::new("JARG-01", "addresses-for-a-plugin-without-use-of-them", OTHERS, useless_ips),
    TestCase::new("JARG-01", "addresses-for-an-ipam-plugin", IPAM, addresses::json_ips)
        .only(&["host-local", "static"]),
];

/// Adds a value to the runtimeConfig of the test's configuration.
fn with_value<'c>(call: Call<'c>, key: &str, value: Value) -> Call<'c> {
    let mut values = call.config.get("runtimeConfig").and_then(Value::as_object).cloned().unwrap_or_default();
    values.insert(key.to_owned(), value);
    call.key("runtimeConfig", values)
}

fn annotations(test: &TestContext<'_>) -> TestResult {
    let key = "io.kubernetes.cri.pod-annotations";
    let some =
        json!({"kubernetes.io/config.source": "api", "kubernetes.io/ingress-bandwidth": "10M", "": ""});
    for (number, value) in [some, json!({}), Value::Null].into_iter().enumerate() {
        let target = test.target(&format!("pod{number}"))?;
        add_check_del(test, &target, |call| with_value(call, key, value.clone()))?;
    }
    Ok(())
}

fn empty(test: &TestContext<'_>) -> TestResult {
    add_check_del(test, &test.target("pod1")?, |call| call.key("runtimeConfig", json!({}))).map(drop)
}

/// A chained plugin with nothing to do must pass on its `prevResult`.
fn nothing(test: &TestContext<'_>) -> TestResult {
    let limits = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
    let target = test.target("pod1")?;
    let before = test.snapshot()?;
    for values in [None, Some(json!({})), Some(Value::Null)] {
        let mut call = test.add(&target).without_key("runtimeConfig");
        call.config.retain(|key, _| !limits.contains(&key.as_str()));
        if let Some(values) = values {
            call = call.key("runtimeConfig", values);
        }
        let answer = call.run()?;
        let seen = layout::normalised(&answer.result()?);
        let expected = layout::normalised(target.previous.as_ref().unwrap_or(&Value::Null));
        answer.ensure(seen == expected, format!("the previous plugin's result: {expected}"), seen)?;
        test.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

/// Calls ADD, CHECK and DEL with each of these texts in CNI_ARGS.
fn lives(test: &TestContext<'_>, texts: &[&str]) -> TestResult {
    for (number, args) in texts.iter().enumerate() {
        add_check_del(test, &test.target(&format!("pod{number}"))?, |call| call.var("CNI_ARGS", *args))?;
    }
    Ok(())
}

fn several_pairs(test: &TestContext<'_>) -> TestResult {
    lives(test, &["IgnoreUnknown=1;A=b;C0=d-e_f.g/h:i"])
}

fn unknown_key(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    for args in ["TRIAL=1", "TRIAL=1;IgnoreUnknown=0", "IgnoreUnknown=false;TRIAL=1"] {
        test.add(&target).var("CNI_ARGS", args).run()?.refused()?;
    }
    Ok(())
}

fn allowed_keys(test: &TestContext<'_>) -> TestResult {
    lives(test, &["IgnoreUnknown=1;TRIAL=1", "TRIAL=1;IgnoreUnknown=true", "A=1;IgnoreUnknown=1;B=2"])
}

fn kubernetes(test: &TestContext<'_>) -> TestResult {
    let mut pairs = KUBERNETES;
    let usual = pairs.join(";");
    pairs.reverse();
    let last = pairs.join(";");
    pairs.rotate_left(2);
    lives(test, &[&usual, &last, &pairs.join(";")])
}

fn labels(test: &TestContext<'_>) -> TestResult {
    let args = json!({"cni": {"labels": [{"key": "app", "value": "trial"}]}});
    add_check_del(test, &test.target("pod1")?, |call| call.key("args", args.clone())).map(drop)
}

fn useless_ips(test: &TestContext<'_>) -> TestResult {
    let args = json!({"cni": {"ips": ["10.77.0.99"]}});
    add_check_del(test, &test.target("pod1")?, |call| call.key("args", args.clone())).map(drop)
}
