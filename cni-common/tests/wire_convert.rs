//! Tests of result conversion: between all versions (CONV-01 to CONV-08), and of incomplete results (CONV-10,
//! CONV-11).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_common::spec::{AddResult, Code, Json, NetConf, SpecVersion};
use serde_json::{Value, json};

fn version(text: &str) -> SpecVersion {
    SpecVersion::parse(text).expect(text)
}

fn document(value: &Value) -> Json {
    Json::parse(value.to_string().as_bytes()).unwrap()
}

fn convert(from: &Value, to: &str) -> Value {
    AddResult::from_json(&document(from), SpecVersion::NEWEST).unwrap().to_json(version(to)).unwrap()
}

const OLDEST: [&str; 2] = ["0.1.0", "0.2.0"];
const MIDDLE: [&str; 3] = ["0.3.0", "0.3.1", "0.4.0"];
const NEWER: [&str; 2] = ["1.0.0", "1.1.0"];

fn oldest(version: &str) -> Value {
    json!({ "cniVersion": version,
            "ip4": { "ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{ "dst": "10.9.0.0/16", "gw": "10.1.0.9" }] },
            "ip6": { "ip": "fd00::5/64", "routes": [{ "dst": "::/0" }] },
            "dns": { "nameservers": ["10.1.0.53"] } })
}

/// The same result in a layout with lists; with `interfaces` if the source version has them.
fn listed(version: &str, interfaces: bool) -> Value {
    let mut all = json!({
        "cniVersion": version,
        "ips": [{ "address": "10.1.0.5/16", "gateway": "10.1.0.1" }, { "address": "fd00::5/64" }],
        "routes": [{ "dst": "10.9.0.0/16", "gw": "10.1.0.9" }, { "dst": "::/0" }],
        "dns": { "nameservers": ["10.1.0.53"] } });
    if interfaces {
        all["interfaces"] =
            json!([{ "name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/a" }]);
        all["ips"][0]["interface"] = json!(0);
        all["ips"][1]["interface"] = json!(0);
    }
    if MIDDLE.contains(&version) {
        all["ips"][0]["version"] = json!("4");
        all["ips"][1]["version"] = json!("6");
    }
    all
}

#[test]
fn from_the_oldest() {
    for from in OLDEST {
        for to in OLDEST {
            assert_eq!(convert(&oldest(from), to), oldest(to), "{from} to {to}");
        }
        for to in MIDDLE.iter().chain(&NEWER) {
            assert_eq!(convert(&oldest(from), to), listed(to, false), "{from} to {to}");
        }
    }
}

#[test]
fn from_lists_to_lists() {
    for from in MIDDLE.iter().chain(&NEWER) {
        for to in MIDDLE.iter().chain(&NEWER) {
            assert_eq!(convert(&listed(from, true), to), listed(to, true), "{from} to {to}");
        }
    }
}

#[test]
fn conversion_to_the_oldest_versions_drops_interfaces() {
    for from in MIDDLE.iter().chain(&NEWER) {
        for to in OLDEST {
            assert_eq!(convert(&listed(from, true), to), oldest(to), "{from} to {to}");
        }
    }
}

#[test]
fn the_oldest_versions_keep_one_address_per_family_and_the_routes_of_that_family() {
    let result = json!({ "cniVersion": "1.0.0",
        "ips": [{ "address": "10.1.0.5/16" }, { "address": "10.2.0.5/16" }],
        "routes": [{ "dst": "::/0" }, { "dst": "0.0.0.0/0" }] });
    let want = json!({ "cniVersion": "0.2.0", "dns": {},
        "ip4": { "ip": "10.1.0.5/16", "routes": [{ "dst": "0.0.0.0/0" }] } });
    assert_eq!(convert(&result, "0.2.0"), want);
}

/// The reference's IPAM plugins write these attributes in all versions.
#[test]
fn attributes_of_1_1_0_are_decoded_in_all_list_layouts_but_encoded_only_in_1_1_0() {
    for from in MIDDLE.iter().chain(&NEWER) {
        let mut source = listed(from, true);
        source["routes"][0]["priority"] = json!(5);
        source["routes"][1]["table"] = json!(0);
        source["interfaces"][0]["mtu"] = json!(9000);
        let mut want = listed("1.1.0", true);
        want["routes"] = source["routes"].clone();
        want["interfaces"] = source["interfaces"].clone();
        assert_eq!(convert(&source, "1.1.0"), want, "{from}");
        for to in MIDDLE.iter().chain(&["1.0.0"]) {
            assert_eq!(convert(&source, to), listed(to, true), "{from} to {to}");
        }
    }
}

#[test]
fn unknown_keys_are_dropped_and_nulls_are_absent() {
    let source = json!({ "cniVersion": "0.4.0", "zzz": 1, "interfaces": null, "routes": null, "dns": null, "ip4": null,
        "ips": [{ "version": "4", "address": "10.1.0.5/16", "gateway": null, "interface": null, "zzz": {} }] });
    let want =
        json!({ "cniVersion": "0.4.0", "ips": [{ "version": "4", "address": "10.1.0.5/16" }], "dns": {} });
    assert_eq!(convert(&source, "0.4.0"), want);
    let source = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.1.0.5/16" }],
        "dns": { "nameservers": null, "domain": null }, "interfaces": [{ "name": "eth0", "mac": null, "mtu": null }],
        "routes": [{ "dst": "0.0.0.0/0", "gw": null, "mtu": null, "table": null }] });
    let want = json!({ "cniVersion": "1.1.0", "ips": [{ "address": "10.1.0.5/16" }],
        "interfaces": [{ "name": "eth0" }], "routes": [{ "dst": "0.0.0.0/0" }] });
    assert_eq!(convert(&source, "1.1.0"), want);
}

#[test]
fn a_result_without_a_version_has_the_version_of_the_configuration() {
    for (assumed, source) in [
        ("0.2.0", json!({ "ip4": { "ip": "10.1.0.5/16" } })),
        ("0.4.0", json!({ "cniVersion": "", "ips": [{ "version": "4", "address": "10.1.0.5/16" }] })),
        ("1.1.0", json!({ "cniVersion": null, "ips": [{ "address": "10.1.0.5/16" }] })),
    ] {
        let result = AddResult::from_json(&document(&source), version(assumed)).unwrap();
        assert_eq!(result.ips[0].address.to_string(), "10.1.0.5/16", "{assumed}");
    }
    let nothing = AddResult::from_json(&document(&Value::Null), SpecVersion::V1_0_0).unwrap();
    assert_eq!(nothing, AddResult::default());
}

#[test]
fn errors_of_invalid_results_name_the_reason() {
    for (source, reason) in [
        (json!({ "cniVersion": "9.9.9" }), "9.9.9"),
        (json!({ "cniVersion": 1 }), "cniVersion"),
        (json!([]), "expected"),
        (
            json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.0.5" }] }),
            "invalid CIDR address: 10.1.0.5",
        ),
        (json!({ "cniVersion": "1.0.0", "ips": [{}] }), "invalid CIDR address: "),
        (json!({ "cniVersion": "1.0.0", "ips": [null] }), "ips[0]"),
        (
            json!({ "cniVersion": "1.0.0", "ips": [{ "address": "10.1.0.5/8", "gateway": "x" }] }),
            "invalid IP address: x",
        ),
        (
            json!({ "cniVersion": "0.4.0", "routes": [{ "dst": "0.0.0.0/0", "gw": "x" }] }),
            "invalid IP address: x",
        ),
        (
            json!({ "cniVersion": "0.2.0", "ip4": { "ip": "10.1.0.5/33" } }),
            "invalid CIDR address: 10.1.0.5/33",
        ),
        (json!({ "cniVersion": "1.1.0", "routes": [{ "dst": "::/0", "mtu": -1 }] }), "routes[0].mtu"),
    ] {
        let error = AddResult::from_json(&document(&source), SpecVersion::NEWEST).unwrap_err();
        assert!(error.contains(reason), "{source}: {error}");
    }
}

fn prev_result(config: &str, prev: &Value) -> Result<Option<AddResult>, cni_common::spec::CniError> {
    let config_json = json!({ "cniVersion": config, "name": "n", "prevResult": prev });
    NetConf::parse(config_json.to_string().into_bytes()).unwrap().prev_result(version(config))
}

#[test]
fn prev_result_must_have_the_layout_of_the_configuration() {
    let families: [(&[&str], &str); 3] =
        [(&OLDEST, "[0.1.0 0.2.0]"), (&MIDDLE, "[0.3.0 0.3.1 0.4.0]"), (&NEWER, "[1.0.0 1.1.0]")];
    for (members, shown) in families {
        for config in members {
            for prev in OLDEST.iter().chain(&MIDDLE).chain(&NEWER) {
                let sample = if OLDEST.contains(prev) { oldest(prev) } else { listed(prev, true) };
                let outcome = prev_result(config, &sample);
                if members.contains(prev) {
                    assert!(outcome.unwrap().is_some_and(|result| result.ips.len() == 2));
                    continue;
                }
                let error = outcome.unwrap_err();
                let want = format!(
                    "could not parse prevResult: result type supports {shown} but unmarshalled CNIVersion is {prev:?}"
                );
                assert_eq!((error.code, error.msg), (Code::InvalidConfig, want));
            }
            let error = prev_result(config, &json!({ "cniVersion": "9.9.9" })).unwrap_err();
            let want = format!(
                "could not parse prevResult: result type supports {shown} but unmarshalled CNIVersion is \"9.9.9\""
            );
            assert_eq!(error.msg, want);
        }
    }
}

#[test]
fn prev_result_without_a_version_has_the_version_of_the_configuration_and_null_is_none() {
    assert_eq!(prev_result("1.0.0", &Value::Null).unwrap(), None);
    let mut sample = listed("0.4.0", true);
    sample["cniVersion"].take();
    assert_eq!(prev_result("0.3.1", &sample).unwrap().unwrap().ips.len(), 2);
    let error = prev_result("0.3.1", &json!(5)).unwrap_err();
    assert_eq!(error.code, Code::InvalidConfig);
    assert!(error.msg.starts_with("could not parse prevResult: "), "{error}");
}
