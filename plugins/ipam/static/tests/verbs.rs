//! All verbs in all versions, as an interface plugin calls them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::{Expect as _, VERSIONS, has_check, is_per_family, network_config, overlay, with_prev};
use cni_runner::{Attachment, Exec, Output};
use serde_json::{Value, json};

const OURS: &str = env!("CARGO_BIN_EXE_static");

/// Calls the plugin with a namespace that does not exist: an IPAM plugin never opens it.
fn call(verb: &str, config: &Value) -> Output {
    let attachment = Attachment::new("c1", "/no/such/netns", "eth0");
    let mut exec = Exec::new(OURS, verb).attachment(&attachment).path("/some/path");
    exec.inherit = false;
    exec.stdin(config.to_string()).run().unwrap()
}

fn config(version: &str) -> Value {
    let ipam = json!({
        "type": "static",
        "addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.2", "mtu": 1400}],
        "dns": {"nameservers": ["10.1.0.1"], "domain": "example.com"}
    });
    network_config("bridge", version, &json!({"ipam": ipam}))
}

#[test]
fn each_version_has_its_layout() {
    let dns = json!({"nameservers": ["10.1.0.1"], "domain": "example.com"});
    for version in VERSIONS {
        let mut route = json!({"dst": "10.9.0.0/16", "gw": "10.1.0.2"});
        if version == "1.1.0" {
            route["mtu"] = json!(1400);
        }
        let routes = json!([{"dst": "0.0.0.0/0"}, route]);
        let mut ips = json!([{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd00::5/64"}]);
        if version < "1.0.0" {
            (ips[0]["version"], ips[1]["version"]) = (json!("4"), json!("6"));
        }
        let expected = if is_per_family(version) {
            let ip4 = json!({"ip": "10.1.0.5/24", "gateway": "10.1.0.1", "routes": routes});
            json!({"cniVersion": version, "ip4": ip4, "ip6": {"ip": "fd00::5/64"}, "dns": dns})
        } else {
            json!({"cniVersion": version, "ips": ips, "routes": routes, "dns": dns})
        };
        let result = call("ADD", &config(version)).result();
        assert_eq!(result, expected, "{version}");
        if has_check(version) {
            call("CHECK", &with_prev(&config(version), &result)).ok();
        }
        call("DEL", &config(version)).ok();
    }
}

#[test]
fn no_addresses() {
    let empty = |version| overlay(&config(version), &json!({"ipam": {"type": "static"}}));
    assert_eq!(call("ADD", &empty("1.1.0")).result(), json!({"cniVersion": "1.1.0"}));
    let error = call("ADD", &empty("0.2.0")).error();
    assert_eq!(error.msg, "cannot convert: no valid IP addresses");
}

#[test]
fn check_requires_every_configured_address() {
    let config = config("1.0.0");
    let result = call("ADD", &config).result();
    call("CHECK", &config).error().expect(7, "Required prevResult missing");
    let mut more = result.clone();
    more["ips"].as_array_mut().unwrap().push(json!({"address": "10.7.0.5/24"}));
    // Another plugin of the chain may add a gateway or an address.
    more["ips"][1]["gateway"] = json!("fd00::1");
    call("CHECK", &with_prev(&config, &more)).ok();
    for (pointer, value, why) in [
        ("/ips/0/address", "10.1.0.6/24", "prevResult does not have the address"),
        ("/ips/0/address", "10.1.0.5/16", "prevResult has 10.1.0.5/16, configured is 10.1.0.5/24"),
        ("/ips/0/gateway", "10.1.0.9", "prevResult has gateway 10.1.0.9, configured is gateway 10.1.0.1"),
    ] {
        let mut altered = result.clone();
        *altered.pointer_mut(pointer).unwrap() = json!(value);
        let error = call("CHECK", &with_prev(&config, &altered)).error().with_code(999);
        assert_eq!(error.msg, "static: Failed to match addr 10.1.0.5 on interface eth0");
        assert_eq!(error.details, why);
    }
}

#[test]
fn status_checks_the_configuration() {
    call("STATUS", &config("1.1.0")).ok();
    // The runtime may name all addresses.
    call("STATUS", &overlay(&config("1.1.0"), &json!({"ipam": {"type": "static"}}))).ok();
    let bad = json!({"ipam": {"type": "static", "addresses": [{"address": "10.1.0.5"}]}});
    call("STATUS", &overlay(&config("1.1.0"), &bad)).error().expect(50, "got: '10.1.0.5'");
    call("STATUS", &overlay(&config("1.1.0"), &json!({"ipam": null}))).error().expect(50, "'ipam' key");
}

#[test]
fn del_and_gc_accept_any_configuration() {
    let bad = json!({"ipam": {"type": "static", "addresses": "x"}, "prevResult": "x"});
    for verb in ["DEL", "GC"] {
        call(verb, &overlay(&config("1.1.0"), &bad)).ok();
    }
}
