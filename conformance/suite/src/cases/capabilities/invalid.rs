//! Invalid values in runtimeConfig.

use serde_json::{Value, json};

use super::with_value;
use crate::outcome::TestResult;
use crate::test_context::TestContext;

/// Expects ADD to fail with each of these values.
fn refused(test: &TestContext<'_>, key: &str, values: impl IntoIterator<Item = Value>) -> TestResult {
    for (number, value) in values.into_iter().enumerate() {
        let target = test.target(&format!("pod{number}"))?;
        let mut call = with_value(test.add(&target), key, value);
        call.config.retain(|key, _| !key.ends_with("Rate") && !key.ends_with("Burst"));
        call.run()?.refused()?;
    }
    Ok(())
}

pub(super) fn mappings(test: &TestContext<'_>) -> TestResult {
    let usual = json!({"hostPort": 18081, "containerPort": 80, "protocol": "tcp"});
    let mut bad = vec![usual.clone(), json!(["8080:80"])];
    for (key, value) in [
        ("hostPort", json!(65_536)),
        ("hostPort", json!(-1)),
        ("hostPort", json!("8080")),
        ("containerPort", json!(0)),
        ("containerPort", json!(65_536)),
        ("protocol", json!("banana")),
        ("protocol", Value::Null),
        ("hostIP", json!("banana")),
    ] {
        let mut mapping = usual.clone();
        mapping[key] = value;
        bad.push(json!([mapping]));
    }
    refused(test, "portMappings", bad)
}

pub(super) fn rates(test: &TestContext<'_>) -> TestResult {
    refused(
        test,
        "bandwidth",
        [
            json!({"ingressRate": 8_000_000}),
            json!({"egressBurst": 8_000_000}),
            json!({"ingressRate": -8_000_000, "ingressBurst": 8_000_000}),
            json!({"egressRate": "8M", "egressBurst": 8_000_000}),
            json!([8_000_000, 8_000_000]),
        ],
    )
}

pub(super) fn addresses(test: &TestContext<'_>) -> TestResult {
    refused(test, "ips", [json!(["banana"]), json!(["10.77.0.300/24"]), json!("10.77.0.9/24"), json!([7])])
}

pub(super) fn ranges(test: &TestContext<'_>) -> TestResult {
    refused(
        test,
        "ipRanges",
        [
            // Some plugins accept a plain list of ranges, which a client of containerd sends, as one set.
            json!("10.99.0.0/24"),
            json!([[{"subnet": "banana"}]]),
            json!([[{"subnet": "10.99.0.0/24", "rangeStart": "10.98.0.9"}]]),
        ],
    )
}

pub(super) fn macs(test: &TestContext<'_>) -> TestResult {
    refused(test, "mac", ["banana", "02:00:00:00:00", "02:00:00:00:00:zz"].map(Value::from))
}
