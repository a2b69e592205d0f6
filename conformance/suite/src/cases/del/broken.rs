//! DEL with input that became invalid after ADD. It may be the last chance to clean up.

use serde_json::{Value, json};

use super::super::tools::node_in_use;
use crate::call::Call;
use crate::outcome::{TestResult, skip};
use crate::test_context::TestContext;

/// A plugin's name, a key of its configuration, and an invalid value for the key.
const SPOILT: &[(&str, &str, &str)] = &[
    ("bridge", "vlan", "9999"),
    ("ptp", "mtu", "-1"),
    ("macvlan", "mode", "\"nonsense\""),
    ("ipvlan", "mode", "\"nonsense\""),
    ("vlan", "vlanId", "9999"),
    ("dummy", "mtu", "-1"),
    ("tap", "owner", "-1"),
    ("host-local", "ipam.ranges", "[[{\"subnet\": \"nonsense\"}]]"),
    ("shared", "ipam.blockSize", "7"),
    ("static", "ipam.addresses", "[{\"address\": \"nonsense\"}]"),
    (
        "portmap",
        "runtimeConfig.portMappings",
        "[{\"hostPort\": 0, \"containerPort\": 0, \"protocol\": \"\"}]",
    ),
    ("bandwidth", "ingressBurst", "0"),
];

/// Calls ADD with valid input and DEL with invalid input. Expects nothing left on the node.
fn tried(test: &TestContext<'_>, spoil: impl Fn(Call<'_>) -> Call<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let answer = spoil(test.del(&target, Some(&result))).run()?;
    answer.silent()?;
    target.pod.delete()?;
    test.unchanged_since(&before, &answer)
}

pub(super) fn unknown_args(test: &TestContext<'_>) -> TestResult {
    tried(test, |del| del.var("CNI_ARGS", "TRIAL_OF_CNI=1"))
}

pub(super) fn bad_args(test: &TestContext<'_>) -> TestResult {
    tried(test, |del| del.var("CNI_ARGS", "IgnoreUnknown=1;IP=nonsense;MAC=nonsense;GATEWAY=nonsense"))
}

pub(super) fn no_args(test: &TestContext<'_>) -> TestResult {
    tried(test, |del| del.var("CNI_ARGS", "nonsense;;=="))
}

pub(super) fn previous(test: &TestContext<'_>) -> TestResult {
    let version = test.version.to_string();
    tried(test, |del| {
        del.previous(&json!({"cniVersion": version, "ips": [{"address": "nonsense", "interface": 7}]}))
    })
}

pub(super) fn runtime_config(test: &TestContext<'_>) -> TestResult {
    let damaged =
        json!({"portMappings": "nonsense", "ips": ["nonsense"], "mac": "nonsense", "bandwidth": []});
    tried(test, |del| del.key("runtimeConfig", damaged.clone()))
}

pub(super) fn own_key(test: &TestContext<'_>) -> TestResult {
    let Some((_, path, text)) = SPOILT.iter().find(|(plugin, ..)| *plugin == test.plugin.name) else {
        return skip("the suite knows no key of this plugin that DEL does not need");
    };
    let value: Value = serde_json::from_str(text)?;
    tried(test, |mut del| match path.split_once('.') {
        None => del.key(path, value.clone()),
        Some((object, key)) => {
            if let Some(object) = del.config.get_mut(object).and_then(Value::as_object_mut) {
                object.insert(key.to_owned(), value.clone());
            }
            del
        }
    })
}
