//! Values in runtimeConfig with which a plugin can do nothing.

use serde_json::{Value, json};

use super::with_value;
use crate::suite::lab::Lab;
use crate::suite::outcome::Trialled;

/// ADD has to fail with each of these values.
fn refused(lab: &Lab<'_>, key: &str, values: impl IntoIterator<Item = Value>) -> Trialled {
    for (number, value) in values.into_iter().enumerate() {
        let target = lab.target(&format!("pod{number}"))?;
        let mut call = with_value(lab.add(&target), key, value);
        call.config.retain(|key, _| !key.ends_with("Rate") && !key.ends_with("Burst"));
        call.run()?.refused()?;
    }
    Ok(())
}

pub(super) fn mappings(lab: &Lab<'_>) -> Trialled {
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
    refused(lab, "portMappings", bad)
}

pub(super) fn rates(lab: &Lab<'_>) -> Trialled {
    refused(
        lab,
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

pub(super) fn addresses(lab: &Lab<'_>) -> Trialled {
    refused(lab, "ips", [json!(["banana"]), json!(["10.77.0.300/24"]), json!("10.77.0.9/24"), json!([7])])
}

pub(super) fn ranges(lab: &Lab<'_>) -> Trialled {
    refused(
        lab,
        "ipRanges",
        [
            // Some take a plain list of ranges, which a client of containerd sends, for one set.
            json!("10.99.0.0/24"),
            json!([[{"subnet": "banana"}]]),
            json!([[{"subnet": "10.99.0.0/24", "rangeStart": "10.98.0.9"}]]),
        ],
    )
}

pub(super) fn macs(lab: &Lab<'_>) -> Trialled {
    refused(lab, "mac", ["banana", "02:00:00:00:00", "02:00:00:00:00:zz"].map(Value::from))
}
