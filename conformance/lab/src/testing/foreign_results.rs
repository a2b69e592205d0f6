//! Results of main plugins of other vendors, which report less of the container's interface than those of the reference.

use serde_json::{Value, json};

/// The addresses in the results.
pub const FOREIGN_ADDRESSES: [&str; 2] = ["10.1.0.9", "fd00::9"];

/// Results for the interface `eth0`, each with its peculiarity.
pub fn foreign_results() -> [(&'static str, Value); 7] {
    let ips = |interface: Value| {
        ["10.1.0.9/24", "fd00::9/64"].map(|address| json!({"address": address, "interface": interface}))
    };
    let result = |interfaces: Value, interface: Value| json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips(interface)});
    let eth0 = json!({"name": "eth0", "sandbox": "/var/run/netns/pod"});
    let on_host = json!({"name": "cali0"});
    [
        ("nothing", result(json!([on_host, eth0]), json!(1))),
        ("no sandbox", result(json!([on_host, {"name": "eth0"}]), json!(1))),
        ("only the host's end", result(json!([on_host]), json!(0))),
        ("no interfaces", result(json!([]), Value::Null)),
        ("no index", result(json!([on_host, eth0]), Value::Null)),
        ("an index out of range", result(json!([eth0]), json!(4))),
        (
            "version 0.2.0",
            json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.9/24"}, "ip6": {"ip": "fd00::9/64"}}),
        ),
    ]
}
