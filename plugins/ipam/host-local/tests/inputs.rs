//! Invalid configurations and variables: one error document with the right code and text, and no file is
//! changed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::Expect as _;
use common::{Net, OURS, listing, run};
use serde_json::{Value, json};

/// Changes of a valid configuration, CNI_ARGS, and the expected code and message. An empty message stands for
/// any message of the JSON decoder.
type Row = (Value, &'static str, u64, String);

fn invalid(changes: Value, msg: &str) -> Row {
    (changes, "", 7, msg.to_owned())
}

fn range(range: Value, msg: &str) -> Row {
    invalid(json!({ "/ipam/ranges": [[range]] }), &format!("invalid range set 0: {msg}"))
}

fn undecodable(changes: Value) -> Row {
    (changes, "", 6, String::new())
}

fn rows() -> Vec<Row> {
    vec![
        invalid(json!({ "/ipam": null }), "IPAM config missing 'ipam' key"),
        undecodable(json!({ "/ipam": "x" })),
        invalid(json!({ "/ipam/ranges": [] }), "no IP ranges specified"),
        invalid(json!({ "/ipam/ranges": [], "/ipam/rangeStart": "10.0.0.5" }), "no IP ranges specified"),
        invalid(json!({ "/ipam/ranges": [[]] }), "invalid range set 0: empty range set"),
        invalid(json!({ "/ipam/ranges": [null] }), "invalid range set 0: empty range set"),
        invalid(json!({ "/ipam/ranges": [[null]] }), "invalid range set 0: IP <nil> not v4 nor v6"),
        undecodable(json!({ "/ipam/ranges": [{}] })),
        undecodable(json!({ "/ipam/ranges": [[{ "subnet": 5 }]] })),
        range(json!({}), "IP <nil> not v4 nor v6"),
        invalid(json!({ "/ipam/ranges": [[{ "subnet": "" }]] }), "invalid CIDR address: "),
        invalid(json!({ "/ipam/ranges": [[{ "subnet": "10.0.0.0" }]] }), "invalid CIDR address: 10.0.0.0"),
        range(json!({ "subnet": "10.1.2.0/31" }), "Network 10.1.2.0/31 too small to allocate from"),
        range(json!({ "subnet": "fd00::/127" }), "Network fd00::/127 too small to allocate from"),
        undecodable(json!({ "/ipam/exclude": "10.0.0.9" })),
        invalid(
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24", "exclude": ["10.1.2.9/24"] }]] }),
            "exclude \"10.1.2.9/24\" is neither an address nor a network",
        ),
        range(
            json!({ "subnet": "10.1.2.0/24", "exclude": ["10.1.2.9", "10.1.3.9"] }),
            "exclude 10.1.3.9/32 not in network 10.1.2.0/24",
        ),
        range(json!({ "subnet": "::ffff:10.1.2.0/120" }), "IPNet IP and Mask version mismatch"),
        range(
            json!({ "subnet": "10.1.2.3/24" }),
            "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
        ),
        range(
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1" }),
            "RangeStart 10.1.3.1 not in network 10.1.2.0/24",
        ),
        range(
            json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.8" }),
            "RangeStart 10.1.2.9 not in network 10.1.2.0/24",
        ),
        range(
            json!({ "subnet": "10.1.2.0/24", "rangeEnd": "10.1.3.1" }),
            "RangeEnd 10.1.3.1 not in network 10.1.2.0/24",
        ),
        invalid(
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2" }]] }),
            "invalid IP address: 10.1.2",
        ),
        invalid(
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24", "gateway": "010.1.2.1" }]] }),
            "invalid IP address: 010.1.2.1",
        ),
        range(
            json!({ "subnet": "10.1.2.0/24", "gateway": "fd00::1" }),
            "gateway fd00::1 and network 10.1.2.0/24 have different address families",
        ),
        invalid(
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "fd00::/64" }]] }),
            "invalid range set 0: mixed address families",
        ),
        invalid(
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "10.1.0.0/16" }]] }),
            "invalid range set 0: subnets 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254 overlap",
        ),
        invalid(
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }], [{ "subnet": "10.1.0.0/16" }]] }),
            "range set 0 overlaps with 2",
        ),
        invalid(
            json!({ "/cniVersion": "0.2.0", "/ipam/ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.3.0/24" }]] }),
            "CNI version 0.2.0 does not support more than 1 address per family",
        ),
        invalid(json!({ "/ipam/subnet": "10.0.0.0/33" }), "invalid CIDR address: 10.0.0.0/33"),
        invalid(json!({ "/ipam/routes": [{ "gw": "10.0.0.1" }] }), "invalid CIDR address: "),
        invalid(json!({ "/ipam/routes": [{ "dst": "0.0.0.0/0", "gw": "x" }] }), "invalid IP address: x"),
        undecodable(json!({ "/ipam/routes": [{ "dst": "0.0.0.0/0", "mtu": -1 }] })),
        undecodable(json!({ "/ipam/dataDir": 7 })),
        (
            json!({ "/ipam/resolvConf": "/no/such" }),
            "",
            5,
            "open /no/such: no such file or directory".to_owned(),
        ),
        invalid(
            json!({ "/runtimeConfig": { "ips": [null] } }),
            "cannot understand ip: IP <nil> not v4 nor v6",
        ),
        invalid(
            json!({ "/args": { "cni": { "ips": [null] } } }),
            "cannot understand ip: IP <nil> not v4 nor v6",
        ),
        invalid(
            json!({ "/args": { "cni": { "ips": [""] } } }),
            "cannot understand ip: IP <nil> not v4 nor v6",
        ),
        invalid(json!({ "/args": { "cni": { "ips": ["bogus"] } } }), "invalid IP address bogus"),
        invalid(json!({ "/runtimeConfig": { "ips": ["10.0.0.5/99"] } }), "invalid IP address 10.0.0.5/99"),
        invalid(
            json!({ "/runtimeConfig": { "ipRanges": [{}] } }),
            "invalid range set 0: IP <nil> not v4 nor v6",
        ),
        invalid(json!({ "/runtimeConfig": { "ipRanges": [null] } }), "invalid range set 0: empty range set"),
        undecodable(json!({ "/runtimeConfig": { "ipRanges": ["x"] } })),
        (json!({}), "IP", 4, "ARGS: invalid pair \"IP\"".to_owned()),
        (json!({}), "MAC=1", 4, "ARGS: unknown args [\"MAC=1\"]".to_owned()),
        (
            json!({}),
            "IP=bogus",
            4,
            "ARGS: error parsing value of pair \"IP=bogus\": invalid IP address bogus".to_owned(),
        ),
    ]
}

fn changed(mut conf: Value, changes: &Value) -> Value {
    for (pointer, value) in changes.as_object().unwrap() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        conf.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    conf
}

#[test]
fn invalid_input_fails_and_creates_nothing() {
    for (changes, args, code, msg) in rows() {
        let net = Net::of("10.0.0.0/24");
        let conf = changed(net.conf.clone(), &changes);
        let command = net.exec(OURS, "ADD", "c1", "eth0").env("CNI_ARGS", args);
        let error = run(command, &conf).error();
        assert_eq!(error.code, code, "{changes} {args}: {error:?}");
        assert!(msg.is_empty() && !error.msg.is_empty() || error.msg == msg, "{changes} {args}: {error:?}");
        assert!(listing(net.root()).is_empty(), "{changes}: {:?}", listing(net.root()));
    }
}

/// CHECK refuses the same configurations. DEL works with all of them.
#[test]
fn del_works_with_any_configuration() {
    for (changes, args, code, _) in rows() {
        // These two changes make DEL use another directory, where it has nothing to do.
        let uses_other_directory = changes.get("/ipam").is_some() || changes.get("/ipam/dataDir").is_some();
        let net = Net::of("10.0.0.0/24");
        net.add("c1").result();
        net.add("c2").result();
        let conf = changed(net.conf.clone(), &changes);
        let run_with_args = |verb: &str, conf: &Value| {
            let command = net.exec(OURS, verb, "c1", "eth0").env("CNI_ARGS", args);
            run(command, conf)
        };
        if conf["cniVersion"] == "1.0.0" && code != 5 {
            let before = listing(net.root());
            assert_eq!(run_with_args("CHECK", &conf).error().code, code, "{changes}");
            assert_eq!(listing(net.root()), before);
        }
        if !uses_other_directory {
            run_with_args("DEL", &conf).ok();
            assert_eq!(net.reservations().into_keys().collect::<Vec<_>>(), ["10.0.0.3"], "{changes}");
        }
    }
}

#[test]
fn status_refuses_the_same_configurations_as_add() {
    for (changes, args, code, msg) in rows() {
        let is_about_the_configuration = args.is_empty() && code != 5 && changes.get("/cniVersion").is_none();
        if !is_about_the_configuration {
            continue;
        }
        let net = Net::of("10.0.0.0/24").with(|conf| conf["cniVersion"] = "1.1.0".into());
        let error = run(net.exec(OURS, "STATUS", "", ""), &changed(net.conf.clone(), &changes)).error();
        assert_eq!(error.code, 50, "{changes}");
        assert!(msg.is_empty() || error.msg == msg, "{changes}: {error:?}");
    }
}
