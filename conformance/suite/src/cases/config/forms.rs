//! Other spellings of the same configuration: case of keys, `null`, order, escapes, empty strings.

use serde_json::{Value, json};

use crate::call::Call;
use crate::cases::life::{add_check_del, same_effect};
use crate::layout;
use crate::outcome::{Stop, TestResult, mismatch};
use crate::test_context::TestContext;

/// A rate in bits per second.
const RATE: u64 = 8_000_000;
/// The burst that CRI-O sends if only a rate was configured.
const LARGE_BURST: u64 = 34_359_738_359;

pub(super) fn case_of_host_ports(test: &TestContext<'_>) -> TestResult {
    let usual = json!({"hostPort": 18081, "containerPort": 81, "protocol": "tcp", "hostIP": "192.0.2.7"});
    let other = json!({"HostPort": 18081, "ContainerPort": 81, "Protocol": "tcp", "HostIP": "192.0.2.7"});
    same_effect(test, &json!({"portMappings": [usual]}), &json!({"portMappings": [other]}))
}

/// Removes the limits from the configuration of a bandwidth plugin, so that those of the runtime apply.
fn without_limits(call: Call<'_>) -> Call<'_> {
    let keys = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
    keys.iter().fold(call, |call, key| call.without_key(key))
}

pub(super) fn case_of_rates(test: &TestContext<'_>) -> TestResult {
    let usual = json!({"ingressRate": RATE, "ingressBurst": RATE, "egressRate": RATE, "egressBurst": RATE});
    let other = json!({"IngressRate": RATE, "IngressBurst": RATE, "EgressRate": RATE, "EgressBurst": RATE});
    same_effect(test, &json!({"bandwidth": usual}), &json!({"bandwidth": other}))
}

pub(super) fn case_of_ranges(test: &TestContext<'_>) -> TestResult {
    let range = json!({"Subnet": "10.99.0.0/24", "RangeStart": "10.99.0.9", "Gateway": "10.99.0.254"});
    let answer =
        test.add(&test.target("pod1")?).key("runtimeConfig", json!({"ipRanges": [[range]]})).run()?;
    let seen = layout::addresses(&answer.result()?);
    let is_given = seen.iter().any(|address| address == "10.99.0.9/24");
    answer.ensure(is_given, "the address 10.99.0.9/24", format!("{seen:?}"))
}

pub(super) fn nulls(test: &TestContext<'_>) -> TestResult {
    let change = |call: Call<'_>| {
        let mut config = call.config.clone();
        for key in ["dns", "args", "capabilities", "runtimeConfig", "prevResult", "ipMasq", "trialKey"] {
            // Keep existing values.
            config.entry(key).or_insert(Value::Null);
        }
        config
    };
    add_check_del(test, &test.target("pod1")?, |mut call| {
        call.config = change(call.clone());
        call
    })
    .map(drop)
}

pub(super) fn nulls_of_the_runtime(test: &TestContext<'_>) -> TestResult {
    let values = json!({
        "portMappings": null, "bandwidth": null, "ipRanges": null, "ips": null, "mac": null, "aliases": null,
        "deviceID": null, "cgroupPath": null, "infinibandGUID": null,
        "dns": {"Servers": null, "Searches": null, "Options": null, "servers": null},
        "io.kubernetes.cri.pod-annotations": null});
    add_check_del(test, &test.target("pod1")?, |call| call.key("runtimeConfig", values.clone())).map(drop)
}

pub(super) fn nulls_of_the_plugin(test: &TestContext<'_>) -> TestResult {
    let keys: &[&str] = match test.plugin.name.as_str() {
        "bridge" => {
            &["mtu", "vlan", "hairpinMode", "promiscMode", "forceAddress", "isDefaultGateway", "ipMasq"]
        }
        "macvlan" => &["mtu", "mode", "mac", "linkInContainer"],
        "ipvlan" => &["mtu", "mode", "linkInContainer"],
        "vlan" => &["mtu", "linkInContainer"],
        "dummy" => &["dns"],
        "tap" => &["mtu", "mac", "multiQueue", "owner", "group", "bridge", "selinuxContext"],
        "ptp" => &["mtu", "ipMasq", "dns"],
        "portmap" => {
            &["snat", "conditionsV4", "conditionsV6", "markMasqBit", "externalSetMarkChain", "backend"]
        }
        "bandwidth" => &["ingressRate", "ingressBurst"],
        _ => &[],
    };
    add_check_del(test, &test.target("pod1")?, |call| {
        let mut call = keys.iter().fold(call, |call, key| call.key(key, Value::Null));
        if test.plugin.name == "host-local" {
            let range = json!({"subnet": "10.77.0.0/24", "rangeStart": null, "rangeEnd": null, "gateway": null});
            call.config["ipam"] = json!({
                "type": "host-local", "ranges": [[range]], "routes": null, "dataDir": null, "resolvConf": null,
                "rangeStart": null, "rangeEnd": null, "gateway": null});
        }
        call
    })
    .map(drop)
}

/// How a JSON document is written.
#[derive(Debug, Clone, Copy)]
enum Form {
    Reversed,
    Escaped,
    Spaced,
}

/// The document in this form.
fn written(value: &Value, form: Form) -> String {
    let (open, separator) = match form {
        Form::Spaced => ("\r\n\t ", " \r\n\t,\t\n\r "),
        Form::Reversed | Form::Escaped => ("", ","),
    };
    match value {
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| {
                format!("{}{open}:{open}{}", text(key, form), written(value, form))
            };
            let mut members: Vec<String> = members.iter().map(member).collect();
            if matches!(form, Form::Reversed) {
                members.reverse();
            }
            format!("{open}{{{open}{}{open}}}{open}", members.join(separator))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written(item, form)).collect();
            format!("[{open}{}{open}]", items.join(separator))
        }
        Value::String(string) => text(string, form),
        other => other.to_string(),
    }
}

fn text(string: &str, form: Form) -> String {
    match form {
        Form::Escaped => {
            let units = string.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
            format!("\"{}\"", units.collect::<String>())
        }
        Form::Reversed | Form::Spaced => Value::from(string).to_string(),
    }
}

fn life_written(test: &TestContext<'_>, form: Form) -> TestResult {
    let target = test.target("pod1")?;
    let life = add_check_del(test, &target, |call| {
        let bytes = written(&Value::Object(call.config.clone()), form);
        call.bytes(bytes)
    });
    life.map(drop)
}

pub(super) fn reverse_order(test: &TestContext<'_>) -> TestResult {
    life_written(test, Form::Reversed)
}

pub(super) fn escapes(test: &TestContext<'_>) -> TestResult {
    life_written(test, Form::Escaped)
}

pub(super) fn white_space(test: &TestContext<'_>) -> TestResult {
    life_written(test, Form::Spaced)
}

pub(super) fn large_burst(test: &TestContext<'_>) -> TestResult {
    let limits = json!({"bandwidth": {
        "ingressRate": RATE, "ingressBurst": LARGE_BURST, "egressRate": RATE, "egressBurst": LARGE_BURST}});
    let life = add_check_del(test, &test.target("pod1")?, |call| {
        without_limits(call).key("runtimeConfig", limits.clone())
    });
    life.map(drop)
}

pub(super) fn empty_in_ranges(test: &TestContext<'_>) -> TestResult {
    let ipam = |range: Value| json!({"type": "host-local", "ranges": [[range]]});
    let absent = ipam(json!({"subnet": "10.77.0.0/24"}));
    let empty = ipam(json!({"subnet": "10.77.0.0/24", "rangeStart": "", "rangeEnd": "", "gateway": ""}));
    let target = test.target("pod1")?;
    let given = |ipam: &Value, name: &str| -> Result<Value, Stop> {
        // Each call gets its own network, because a network's containers get different addresses.
        let mut result = test.add(&target).key("name", name).key("ipam", ipam.clone()).run()?.result()?;
        result["routes"] = Value::Null;
        Ok(result)
    };
    let (expected, seen) = (given(&absent, "absent")?, given(&empty, "empty")?);
    if expected == seen {
        Ok(())
    } else {
        mismatch(format!("the same as without these keys: {expected}"), seen)
    }
}

pub(super) fn empty_host_address(test: &TestContext<'_>) -> TestResult {
    let absent = json!({"hostPort": 18081, "containerPort": 81, "protocol": "tcp"});
    let empty = json!({"hostPort": 18081, "containerPort": 81, "protocol": "tcp", "hostIP": ""});
    same_effect(test, &json!({"portMappings": [absent]}), &json!({"portMappings": [empty]}))
}

pub(super) fn leading_zeros(test: &TestContext<'_>) -> TestResult {
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "010.1.2.0/24"}]]});
    test.add(&test.target("pod1")?).key("ipam", ipam).run()?.refused().map(drop)
}
