//! Invalid configurations and variables: one error document with the right code and text, and no file is
//! changed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::Expect as _;
use common::{Net, OURS, listing, run};
use serde_json::{Value, json};

/// Changes of a valid configuration, CNI_ARGS, and the expected code and message. An empty message stands for
/// any message of the JSON decoder.
fn rows() -> Vec<(Value, &'static str, u64, &'static str)> {
    let range = |range: Value| json!({ "/ipam/ranges": [[range]] });
    vec![
        (json!({ "/ipam": null }), "", 7, "IPAM config missing 'ipam' key"),
        (json!({ "/ipam": "x" }), "", 6, ""),
        (json!({ "/ipam/ranges": [] }), "", 7, "no IP ranges specified"),
        (json!({ "/ipam/ranges": [], "/ipam/rangeStart": "10.0.0.5" }), "", 7, "no IP ranges specified"),
        (json!({ "/ipam/ranges": [[]] }), "", 7, "invalid range set 0: empty range set"),
        (json!({ "/ipam/ranges": [null] }), "", 7, "invalid range set 0: empty range set"),
        (json!({ "/ipam/ranges": [[null]] }), "", 7, "invalid range set 0: IP <nil> not v4 nor v6"),
        (json!({ "/ipam/ranges": [{}] }), "", 6, ""),
        (json!({ "/ipam/ranges": [[{ "subnet": 5 }]] }), "", 6, ""),
        (range(json!({})), "", 7, "invalid range set 0: IP <nil> not v4 nor v6"),
        (range(json!({ "subnet": "" })), "", 7, "invalid CIDR address: "),
        (range(json!({ "subnet": "10.0.0.0" })), "", 7, "invalid CIDR address: 10.0.0.0"),
        (
            range(json!({ "subnet": "10.1.2.0/31" })),
            "",
            7,
            "invalid range set 0: Network 10.1.2.0/31 too small to allocate from",
        ),
        (
            range(json!({ "subnet": "fd00::/127" })),
            "",
            7,
            "invalid range set 0: Network fd00::/127 too small to allocate from",
        ),
        (
            range(json!({ "subnet": "::ffff:10.1.2.0/120" })),
            "",
            7,
            "invalid range set 0: IPNet IP and Mask version mismatch",
        ),
        (
            range(json!({ "subnet": "10.1.2.3/24" })),
            "",
            7,
            "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
        ),
        (
            range(json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1" })),
            "",
            7,
            "invalid range set 0: RangeStart 10.1.3.1 not in network 10.1.2.0/24",
        ),
        (
            range(json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.8" })),
            "",
            7,
            "invalid range set 0: RangeStart 10.1.2.9 not in network 10.1.2.0/24",
        ),
        (
            range(json!({ "subnet": "10.1.2.0/24", "rangeEnd": "10.1.3.1" })),
            "",
            7,
            "invalid range set 0: RangeEnd 10.1.3.1 not in network 10.1.2.0/24",
        ),
        (
            range(json!({ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2" })),
            "",
            7,
            "invalid IP address: 10.1.2",
        ),
        (
            range(json!({ "subnet": "10.1.2.0/24", "gateway": "010.1.2.1" })),
            "",
            7,
            "invalid IP address: 010.1.2.1",
        ),
        (
            range(json!({ "subnet": "10.1.2.0/24", "gateway": "fd00::1" })),
            "",
            7,
            "invalid range set 0: gateway fd00::1 and network 10.1.2.0/24 have different address families",
        ),
        (
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "fd00::/64" }]] }),
            "",
            7,
            "invalid range set 0: mixed address families",
        ),
        (
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24" }, { "subnet": "10.1.0.0/16" }]] }),
            "",
            7,
            "invalid range set 0: subnets 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254 overlap",
        ),
        (
            json!({ "/ipam/ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }], [{ "subnet": "10.1.0.0/16" }]] }),
            "",
            7,
            "range set 0 overlaps with 2",
        ),
        (
            json!({ "/cniVersion": "0.2.0", "/ipam/ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "10.1.3.0/24" }]] }),
            "",
            7,
            "CNI version 0.2.0 does not support more than 1 address per family",
        ),
        (json!({ "/ipam/subnet": "10.0.0.0/33" }), "", 7, "invalid CIDR address: 10.0.0.0/33"),
        (json!({ "/ipam/routes": [{ "gw": "10.0.0.1" }] }), "", 7, "invalid CIDR address: "),
        (json!({ "/ipam/routes": [{ "dst": "0.0.0.0/0", "gw": "x" }] }), "", 7, "invalid IP address: x"),
        (json!({ "/ipam/routes": [{ "dst": "0.0.0.0/0", "mtu": -1 }] }), "", 6, ""),
        (json!({ "/ipam/dataDir": 7 }), "", 6, ""),
        (json!({ "/ipam/resolvConf": "/no/such" }), "", 5, "open /no/such: no such file or directory"),
        (
            json!({ "/runtimeConfig": { "ips": [null] } }),
            "",
            7,
            "cannot understand ip: IP <nil> not v4 nor v6",
        ),
        (
            json!({ "/args": { "cni": { "ips": [null] } } }),
            "",
            7,
            "cannot understand ip: IP <nil> not v4 nor v6",
        ),
        (
            json!({ "/args": { "cni": { "ips": [""] } } }),
            "",
            7,
            "cannot understand ip: IP <nil> not v4 nor v6",
        ),
        (json!({ "/args": { "cni": { "ips": ["bogus"] } } }), "", 7, "invalid IP address bogus"),
        (json!({ "/runtimeConfig": { "ips": ["10.0.0.5/99"] } }), "", 7, "invalid IP address 10.0.0.5/99"),
        (
            json!({ "/runtimeConfig": { "ipRanges": [{}] } }),
            "",
            7,
            "invalid range set 0: IP <nil> not v4 nor v6",
        ),
        (json!({ "/runtimeConfig": { "ipRanges": [null] } }), "", 7, "invalid range set 0: empty range set"),
        (json!({ "/runtimeConfig": { "ipRanges": ["x"] } }), "", 6, ""),
        (json!({}), "IP", 4, "ARGS: invalid pair \"IP\""),
        (json!({}), "MAC=1", 4, "ARGS: unknown args [\"MAC=1\"]"),
        (
            json!({}),
            "IP=bogus",
            4,
            "ARGS: error parsing value of pair \"IP=bogus\": invalid IP address bogus",
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
