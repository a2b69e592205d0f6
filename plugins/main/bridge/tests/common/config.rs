//! Network configurations as a runtime sends them.

use serde_json::{Value, json};

/// The configuration of network `net` on bridge `br0`, merged with `keys`.
pub(crate) fn config(version: &str, keys: &Value) -> Value {
    let base = json!({"cniVersion": version, "name": "net", "type": "bridge", "bridge": "br0"});
    overlay(&base, keys)
}

/// `base` with the members of `keys` added or replaced.
pub(crate) fn overlay(base: &Value, keys: &Value) -> Value {
    let mut merged = base.as_object().unwrap().clone();
    merged.extend(keys.as_object().unwrap().clone());
    Value::Object(merged)
}

/// The configuration with `prevResult`, as CHECK and DEL get it.
pub(crate) fn with_prev(config: &Value, result: &Value) -> Value {
    overlay(config, &json!({"prevResult": result}))
}

/// An `ipam` section for host-local with one range set for each subnet.
pub(crate) fn host_local(subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"type": "host-local", "ranges": ranges})
}
