//! Network configurations as a runtime sends them.

use serde_json::{Value, json};

/// The configuration of network `net` with one plugin, merged with `keys`.
pub fn network_config(plugin: &str, version: &str, keys: &Value) -> Value {
    overlay(&json!({"cniVersion": version, "name": "net", "type": plugin}), keys)
}

/// `base` with the members of `keys` added or replaced.
pub fn overlay(base: &Value, keys: &Value) -> Value {
    let mut merged = base.as_object().unwrap().clone();
    merged.extend(keys.as_object().unwrap().clone());
    Value::Object(merged)
}

/// The configuration with `prevResult`, as CHECK and DEL get it.
pub fn with_prev(config: &Value, result: &Value) -> Value {
    overlay(config, &json!({"prevResult": result}))
}

/// An `ipam` section for host-local with one range set for each subnet.
pub fn host_local(subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"type": "host-local", "ranges": ranges})
}
