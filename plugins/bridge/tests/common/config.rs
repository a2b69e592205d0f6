//! Configurations as a runtime would send them.

use serde_json::{Value, json};

/// The configuration of network `net` on bridge `br0`, with these keys on top.
pub(crate) fn config(version: &str, keys: &Value) -> Value {
    let base = json!({"cniVersion": version, "name": "net", "type": "bridge", "bridge": "br0"});
    overlay(&base, keys)
}

/// The object with the other's members in place of or beside its own.
pub(crate) fn overlay(base: &Value, keys: &Value) -> Value {
    let mut merged = base.as_object().unwrap().clone();
    merged.extend(keys.as_object().unwrap().clone());
    Value::Object(merged)
}

/// The same configuration with a result, as CHECK and DEL get it.
pub(crate) fn with_prev(config: &Value, result: &Value) -> Value {
    overlay(config, &json!({"prevResult": result}))
}

/// `ipam` for host-local: an address of each of these subnets.
pub(crate) fn host_local(subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"type": "host-local", "ranges": ranges})
}
