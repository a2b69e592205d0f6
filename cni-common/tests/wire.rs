//! Tests of results in JSON: the exact layout in each version, and decoding.
//!
//! Requirements RES-01 to RES-16 of the seven specification versions. Every test also checks `cniVersion`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_common::spec::{AddResult, Dns, Interface, IpConfig, Json, Route, SpecVersion};
use serde_json::{Value, json};

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn version(text: &str) -> SpecVersion {
    SpecVersion::parse(text).expect(text)
}

fn ip(address: &str, gateway: Option<&str>, interface: Option<i64>) -> IpConfig {
    IpConfig { address: address.parse().unwrap(), gateway: gateway.map(|gw| gw.parse().unwrap()), interface }
}

fn route(dst: &str, gw: Option<&str>) -> Route {
    Route::new(dst.parse().unwrap(), gw.map(|gw| gw.parse().unwrap()))
}

/// A result in which every member of every version is set.
fn everything() -> AddResult {
    let host =
        Interface { name: "cni0".into(), mac: "00:11:22:33:44:55".into(), mtu: 1500, ..Interface::default() };
    let pod = Interface {
        name: "eth0".into(),
        mac: "99:88:77:66:55:44".into(),
        mtu: 1400,
        sandbox: "/run/netns/pod".into(),
        socket_path: "/run/vhost.sock".into(),
        pci_id: "0000:00:1f.6".into(),
    };
    AddResult {
        interfaces: vec![host, pod],
        ips: vec![
            ip("10.1.0.5/16", Some("10.1.0.1"), Some(1)),
            ip("10.2.0.5/16", None, Some(0)),
            ip("fd00::5/64", Some("fd00::1"), Some(1)),
        ],
        routes: vec![
            Route {
                mtu: 1300,
                advmss: 1260,
                priority: 7,
                table: Some(100),
                scope: Some(253),
                ..route("0.0.0.0/0", Some("10.1.0.254"))
            },
            route("fd01::/64", None),
            Route { table: Some(0), scope: Some(0), ..route("::/0", Some("fd00::ff")) },
        ],
        dns: Dns {
            nameservers: vec!["10.1.0.53".into(), "fd00::53".into()],
            domain: "example.org".into(),
            search: vec!["a.example.org".into()],
            options: vec!["ndots:5".into()],
        },
    }
}

fn dns() -> Value {
    json!({ "nameservers": ["10.1.0.53", "fd00::53"], "domain": "example.org",
            "search": ["a.example.org"], "options": ["ndots:5"] })
}

/// [`everything`] in the layout of a version: without members that the version lacks, and before 0.3.0
/// without the second address of a family.
fn everything_in(version: &str) -> Value {
    if version <= "0.2.0" {
        return json!({
            "cniVersion": version,
            "ip4": { "ip": "10.1.0.5/16", "gateway": "10.1.0.1",
                     "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.0.254" }] },
            "ip6": { "ip": "fd00::5/64", "gateway": "fd00::1",
                     "routes": [{ "dst": "fd01::/64" }, { "dst": "::/0", "gw": "fd00::ff" }] },
            "dns": dns(),
        });
    }
    let mut all = json!({
        "cniVersion": version,
        "interfaces": [
            { "name": "cni0", "mac": "00:11:22:33:44:55" },
            { "name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/run/netns/pod" },
        ],
        "ips": [
            { "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1 },
            { "address": "10.2.0.5/16", "interface": 0 },
            { "address": "fd00::5/64", "gateway": "fd00::1", "interface": 1 },
        ],
        "routes": [
            { "dst": "0.0.0.0/0", "gw": "10.1.0.254" }, { "dst": "fd01::/64" }, { "dst": "::/0", "gw": "fd00::ff" },
        ],
        "dns": dns(),
    });
    if version <= "0.4.0" {
        for (index, family) in ["4", "4", "6"].iter().enumerate() {
            all["ips"][index]["version"] = json!(family);
        }
    }
    if version == "1.1.0" {
        all["interfaces"][0]["mtu"] = json!(1500);
        all["interfaces"][1] = json!({
            "name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/run/netns/pod",
            "mtu": 1400, "socketPath": "/run/vhost.sock", "pciID": "0000:00:1f.6" });
        all["routes"][0] = json!({ "dst": "0.0.0.0/0", "gw": "10.1.0.254",
            "mtu": 1300, "advmss": 1260, "priority": 7, "table": 100, "scope": 253 });
        // Table 0 and scope 0 (global) differ from an absent table and scope.
        all["routes"][2] = json!({ "dst": "::/0", "gw": "fd00::ff", "table": 0, "scope": 0 });
    }
    all
}

fn write(result: &AddResult, to: &str) -> Value {
    result.to_json(version(to)).unwrap()
}

fn read(document: &Value, assumed: &str) -> Result<AddResult, String> {
    AddResult::from_json(&Json::parse(document.to_string().as_bytes()).unwrap(), version(assumed))
}

#[test]
fn everything_in_every_version() {
    for version in VERSIONS {
        assert_eq!(write(&everything(), version), everything_in(version), "{version}");
    }
}

#[test]
fn every_version_decodes_without_loss() {
    for version in VERSIONS {
        let golden = everything_in(version);
        assert_eq!(write(&read(&golden, "0.1.0").unwrap(), version), golden, "{version}");
    }
    assert_eq!(read(&everything_in("1.1.0"), "0.1.0").unwrap(), everything());
}

#[test]
fn one_address_and_nothing_else() {
    let result = AddResult { ips: vec![ip("10.1.0.5/24", None, None)], ..AddResult::default() };
    for version in VERSIONS {
        let golden = match version {
            "0.1.0" | "0.2.0" => json!({ "cniVersion": version, "ip4": { "ip": "10.1.0.5/24" }, "dns": {} }),
            "0.3.0" | "0.3.1" | "0.4.0" => {
                json!({ "cniVersion": version, "ips": [{ "version": "4", "address": "10.1.0.5/24" }], "dns": {} })
            }
            _ => json!({ "cniVersion": version, "ips": [{ "address": "10.1.0.5/24" }] }),
        };
        assert_eq!(write(&result, version), golden);
        assert_eq!(read(&golden, "1.1.0").unwrap(), result, "{version}");
    }
}

#[test]
fn ipv6_alone() {
    let result = AddResult {
        ips: vec![ip("2001:db8::a/64", Some("2001:db8::1"), None)],
        routes: vec![route("::/0", None), route("10.0.0.0/8", None)],
        ..AddResult::default()
    };
    assert_eq!(
        write(&result, "0.2.0"),
        json!({ "cniVersion": "0.2.0", "dns": {},
                "ip6": { "ip": "2001:db8::a/64", "gateway": "2001:db8::1", "routes": [{ "dst": "::/0" }] } }),
    );
    let address = json!({ "version": "6", "address": "2001:db8::a/64", "gateway": "2001:db8::1" });
    assert_eq!(write(&result, "0.4.0")["ips"], json!([address]));
}

#[test]
fn interface_index_0_and_indexes_out_of_range_are_kept() {
    for index in [0, 1, 99, -1] {
        let result = AddResult { ips: vec![ip("10.1.0.5/24", None, Some(index))], ..AddResult::default() };
        for version in &VERSIONS[2..] {
            let document = write(&result, version);
            assert_eq!(document["ips"][0]["interface"], json!(index), "{version}");
            let back = read(&document, version).unwrap();
            assert_eq!(back.ips[0].interface, Some(index));
            assert_eq!(back.interface_of(&back.ips[0]), None);
        }
    }
}

#[test]
fn an_empty_result_has_only_a_version() {
    for version in &VERSIONS[2..] {
        let mut golden = json!({ "cniVersion": version });
        if *version <= "0.4.0" {
            golden["dns"] = json!({});
        }
        assert_eq!(write(&AddResult::default(), version), golden);
        let empties = json!({ "cniVersion": version, "interfaces": [], "ips": [], "routes": [], "dns": {} });
        assert_eq!(read(&empties, "0.1.0").unwrap(), AddResult::default(), "{version}");
    }
}

#[test]
fn the_oldest_versions_require_an_address() {
    let layer2 = AddResult { ips: Vec::new(), ..everything() };
    for version in ["0.1.0", "0.2.0"] {
        let error = layer2.to_json(SpecVersion::parse(version).unwrap()).unwrap_err();
        assert_eq!((error.code.number(), error.msg.as_str()), (999, "cannot convert: no valid IP addresses"));
    }
}

#[test]
fn addresses_are_normalised() {
    let written_by_hand = json!({
        "cniVersion": "1.0.0",
        "ips": [
            { "address": "::ffff:10.1.0.5/120", "gateway": "::ffff:10.1.0.1" },
            { "address": "2001:DB8:0:0:0:0:0:A/64", "gateway": "" },
        ],
        "routes": [{ "dst": "::ffff:10.9.0.0/112", "gw": "" }, { "dst": "2001:DB8:0::/48", "gw": "FE80::1" }],
    });
    let result = read(&written_by_hand, "1.0.0").unwrap();
    assert_eq!(
        write(&result, "1.0.0"),
        json!({
            "cniVersion": "1.0.0",
            "ips": [{ "address": "10.1.0.5/24", "gateway": "10.1.0.1" }, { "address": "2001:db8::a/64" }],
            "routes": [{ "dst": "10.9.0.0/16" }, { "dst": "2001:db8::/48", "gw": "fe80::1" }],
        }),
    );
    // An IPv4-mapped address has family IPv4 in all layouts.
    assert_eq!(write(&result, "0.3.1")["ips"][0]["version"], "4");
    assert_eq!(write(&result, "0.2.0")["ip4"]["ip"], "10.1.0.5/24");
}
