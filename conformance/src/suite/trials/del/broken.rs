//! DEL with input that became invalid after ADD. There may be no other chance to clean up.

use serde_json::{Value, json};

use super::super::tools::node_in_use;
use crate::suite::call::Call;
use crate::suite::lab::Lab;
use crate::suite::outcome::{Trialled, skip};

/// A plugin's name, and where in its configuration there is what instead of a value that is valid.
const SPOILT: &[(&str, &str, &str)] = &[
    ("bridge", "vlan", "9999"),
    ("ptp", "mtu", "-1"),
    ("macvlan", "mode", "\"nonsense\""),
    ("host-local", "ipam.ranges", "[[{\"subnet\": \"nonsense\"}]]"),
    ("static", "ipam.addresses", "[{\"address\": \"nonsense\"}]"),
    (
        "portmap",
        "runtimeConfig.portMappings",
        "[{\"hostPort\": 0, \"containerPort\": 0, \"protocol\": \"\"}]",
    ),
    ("bandwidth", "ingressBurst", "0"),
];

/// After an ADD with everything in order, a DEL with something that is not, and nothing is left.
fn tried(lab: &Lab<'_>, spoil: impl Fn(Call<'_>) -> Call<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    let answer = spoil(lab.del(&target, Some(&result))).run()?;
    answer.silent()?;
    target.pod.delete()?;
    lab.unchanged_since(&before, &answer)
}

pub(super) fn unknown_args(lab: &Lab<'_>) -> Trialled {
    tried(lab, |del| del.var("CNI_ARGS", "TRIAL_OF_CNI=1"))
}

pub(super) fn bad_args(lab: &Lab<'_>) -> Trialled {
    tried(lab, |del| del.var("CNI_ARGS", "IgnoreUnknown=1;IP=nonsense;MAC=nonsense;GATEWAY=nonsense"))
}

pub(super) fn no_args(lab: &Lab<'_>) -> Trialled {
    tried(lab, |del| del.var("CNI_ARGS", "nonsense;;=="))
}

pub(super) fn previous(lab: &Lab<'_>) -> Trialled {
    let version = lab.version.to_string();
    tried(lab, |del| {
        del.previous(&json!({"cniVersion": version, "ips": [{"address": "nonsense", "interface": 7}]}))
    })
}

pub(super) fn runtime_config(lab: &Lab<'_>) -> Trialled {
    let damaged =
        json!({"portMappings": "nonsense", "ips": ["nonsense"], "mac": "nonsense", "bandwidth": []});
    tried(lab, |del| del.key("runtimeConfig", damaged.clone()))
}

pub(super) fn own_key(lab: &Lab<'_>) -> Trialled {
    let Some((_, path, text)) = SPOILT.iter().find(|(plugin, ..)| *plugin == lab.subject.name) else {
        return skip("no key of it is known that removing does not need");
    };
    let value: Value = serde_json::from_str(text)?;
    tried(lab, |mut del| match path.split_once('.') {
        None => del.key(path, value.clone()),
        Some((object, key)) => {
            if let Some(object) = del.config.get_mut(object).and_then(Value::as_object_mut) {
                object.insert(key.to_owned(), value.clone());
            }
            del
        }
    })
}
