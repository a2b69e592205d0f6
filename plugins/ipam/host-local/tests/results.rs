//! The results of ADD, and the files that it leaves.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cni_lab::Machine;
use cni_lab::testing::{Expect as _, in_place_of_the_plugin, run_command, stdin_file, with_prev};
use common::{Net, OURS, go, listing, run};
use serde_json::{Value, json};

fn dual() -> Net {
    Net::new(json!([
        [{ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.20", "gateway": "10.1.2.254" }],
        [{ "subnet": "2001:db8::/64" }],
    ]))
    .with(|conf| {
        conf["ipam"]["routes"] = json!([
            { "dst": "0.0.0.0/0" },
            { "dst": "192.168.0.0/16", "gw": "10.1.2.253", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 0,
              "scope": 253 },
            { "dst": "::/0", "gw": "" },
        ]);
    })
}

#[test]
fn each_version_has_its_layout() {
    let with_resolv = |net: Net| {
        fs::write(net.root().join("resolv.conf"), "nameserver 192.0.2.3\nsearch a b\n").unwrap();
        let path = net.root().join("resolv.conf");
        net.with(|conf| conf["ipam"]["resolvConf"] = path.to_str().into())
    };
    let dns = json!({ "nameservers": ["192.0.2.3"], "search": ["a", "b"] });
    let plain_routes = json!([
        { "dst": "0.0.0.0/0" }, { "dst": "192.168.0.0/16", "gw": "10.1.2.253" }, { "dst": "::/0" },
    ]);
    for version in ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let net = with_resolv(dual()).with(|conf| conf["cniVersion"] = version.into());
        let expected = match version {
            "" | "0.1.0" | "0.2.0" => json!({
                "cniVersion": if version.is_empty() { "0.1.0" } else { version },
                "ip4": { "ip": "10.1.2.9/24", "gateway": "10.1.2.254", "routes": [
                    { "dst": "0.0.0.0/0" }, { "dst": "192.168.0.0/16", "gw": "10.1.2.253" },
                ] },
                "ip6": { "ip": "2001:db8::2/64", "gateway": "2001:db8::1", "routes": [{ "dst": "::/0" }] },
                "dns": dns,
            }),
            "0.3.0" | "0.3.1" | "0.4.0" => json!({
                "cniVersion": version,
                "ips": [
                    { "version": "4", "address": "10.1.2.9/24", "gateway": "10.1.2.254" },
                    { "version": "6", "address": "2001:db8::2/64", "gateway": "2001:db8::1" },
                ],
                "routes": plain_routes,
                "dns": dns,
            }),
            _ => json!({
                "cniVersion": version,
                "ips": [
                    { "address": "10.1.2.9/24", "gateway": "10.1.2.254" },
                    { "address": "2001:db8::2/64", "gateway": "2001:db8::1" },
                ],
                "routes": plain_routes,
                "dns": dns,
            }),
        };
        let mut result = net.add("c1").result();
        if version == "1.1.0" {
            let attributes = result["routes"][1].as_object_mut().unwrap();
            for (key, value) in
                [("mtu", 1400), ("advmss", 1300), ("priority", 7), ("table", 0), ("scope", 253)]
            {
                assert_eq!(attributes.remove(key), Some(Value::from(value)), "{key}");
            }
        }
        assert_eq!(result, expected, "{version}");
        net.del("c1").ok();
    }
}

/// With the same input, both programs leave files of the same names, contents and modes.
#[test]
fn store_equals_the_references() {
    let theirs = dual();
    theirs.exec(go(), "ADD", "c1", "eth0").run().unwrap().result();
    theirs.exec(go(), "ADD", "c1", "eth1").run().unwrap().result();
    let ours = dual();
    ours.add("c1").result();
    ours.exec(OURS, "ADD", "c1", "eth1").run().unwrap().result();
    assert_eq!(ours.files(), theirs.files());
    assert_eq!(ours.files()["10.1.2.9"], "c1\r\neth0");
    assert_eq!(ours.files()["last_reserved_ip.1"], "2001:db8::3");
    for name in ours.files().keys() {
        let mode = |net: &Net| fs::metadata(net.store().join(name)).unwrap().permissions().mode() & 0o7777;
        // Debian's 1.1.1 precedes the reference's change of the file mode to 0600.
        let expected = if name == "lock" { mode(&theirs) } else { 0o600 };
        assert_eq!(mode(&ours), expected, "{name}");
    }
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    let net = Net::of("10.0.0.0/24");
    let exec = net.exec(OURS, "ADD", "c1", "eth0");
    let shell = &mut in_place_of_the_plugin("sh", &["-c", "umask 0; exec \"$0\"", OURS], &exec);
    run_command(&Machine, shell.stdin(stdin_file(&exec))).result();
    let modes: Vec<(String, u32)> = listing(&net.root().join("data"))
        .into_iter()
        .filter(|(_, (mode, _))| mode & 0o170_000 != 0o120_000)
        .map(|(path, (mode, _))| {
            (path.strip_prefix(net.root()).unwrap().display().to_string(), mode & 0o7777)
        })
        .collect();
    let expected = [
        ("data/.ferrule", 0o700),
        ("data/.ferrule/net", 0o700),
        ("data/net", 0o755),
        ("data/net/10.0.0.2", 0o600),
        ("data/net/last_reserved_ip.0", 0o600),
        ("data/net/lock", 0o750),
    ];
    assert_eq!(modes, expected.map(|(path, mode)| (path.to_owned(), mode)));
}

#[test]
fn requested_addresses_of_all_sources() {
    let net = Net::new(
        json!([[{ "subnet": "10.0.1.0/24" }], [{ "subnet": "10.0.2.0/24" }], [{ "subnet": "fd00::/64" }]]),
    )
    .with(|conf| {
        conf["args"] = json!({ "cni": { "ips": ["10.0.2.77/8", "10.0.1.66"] } });
        conf["runtimeConfig"] = json!({ "ips": ["fd00::9", "10.0.1.66/24"] });
    });
    let add = |conf: &Value| {
        let command = net
            .exec(OURS, "ADD", "c1", "eth0")
            .env("CNI_ARGS", "IgnoreUnknown=1;IP=10.0.1.67;K8S_POD_NAME=x");
        let ips = run(command, conf).ips();
        net.del("c1").ok();
        ips
    };
    // Addresses in `args` disable CNI_ARGS (CONVENTIONS.md); `runtimeConfig` is added to both.
    assert_eq!(add(&net.conf), ["10.0.1.66", "10.0.2.77", "fd00::9"]);
    let mut conf = net.conf.clone();
    conf["args"] = json!({ "cni": { "ips": [] } });
    conf["runtimeConfig"] = json!({ "ips": ["fd00::9"] });
    assert_eq!(add(&conf), ["10.0.1.67", "10.0.2.78", "fd00::9"]);
}

#[test]
fn order_of_range_sets_of_all_sources() {
    let net = Net::new(json!([[{ "subnet": "10.3.0.0/24" }]])).with(|conf| {
        conf["ipam"]["subnet"] = "10.2.0.0/24".into();
        conf["ipam"]["rangeStart"] = "10.2.0.50".into();
        conf["runtimeConfig"] = json!({ "ipRanges": [[{ "subnet": "10.1.0.0/24" }]] });
    });
    assert_eq!(net.add("c1").ips(), ["10.1.0.2", "10.2.0.50", "10.3.0.2"]);
    // The keys and values that go-cni sends: single ranges, Go field names, empty strings.
    let net = Net::new(json!([])).with(|conf| {
        conf["runtimeConfig"] = json!({ "ipRanges": [
            { "Subnet": "10.4.0.0/24", "RangeStart": "", "RangeEnd": "", "Gateway": "" },
            { "Subnet": "fd00::/64", "RangeStart": "fd00::7", "RangeEnd": null, "Gateway": "fd00::8" },
        ] });
    });
    assert_eq!(net.add("c1").ips(), ["10.4.0.2", "fd00::7"]);
}

/// A container that has an address keeps it when the configuration excludes it.
#[test]
fn excluded_addresses_are_never_given() {
    let net = Net::of("10.0.0.0/29");
    assert_eq!(net.add("before").ips(), ["10.0.0.2"]);
    let result = net.run("ADD", "held").result();
    let net = net.with(|conf| conf["ipam"]["ranges"][0][0]["exclude"] = json!(["10.0.0.2/31", "10.0.0.5"]));
    assert_eq!([net.add("c1").ips(), net.add("c2").ips()], [["10.0.0.4"], ["10.0.0.6"]]);
    let full = "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.6";
    assert_eq!(net.add("c3").error().pair(), (999, full.to_owned()));
    let ask = |ip: &str| {
        run(net.exec(OURS, "ADD", "c4", "eth0").env("CNI_ARGS", format!("IP={ip}")), &net.conf).error().msg
    };
    assert_eq!(
        ask("10.0.0.5"),
        "failed to allocate for range 0: requested ip 10.0.0.5 is excluded from range set 10.0.0.1-10.0.0.6"
    );
    let checked = net.exec(OURS, "CHECK", "held", "eth0");
    assert!(run(checked, &with_prev(&net.conf, &result)).status.success());
    // Its address is not given to another container, and neither is the other one after DEL.
    net.del("before").ok();
    net.del("held").ok();
    assert_eq!(net.add("c5").error().pair(), (999, full.to_owned()));
    // The keys of `ipam` itself are a range too.
    let net = Net::new(json!([])).with(|conf| {
        conf["ipam"]["subnet"] = "10.2.0.0/24".into();
        conf["ipam"]["exclude"] = json!(["10.2.0.2", "10.2.0.4/30"]);
    });
    assert_eq!([net.add("c1").ips(), net.add("c2").ips()], [["10.2.0.3"], ["10.2.0.8"]]);
}

#[test]
fn round_robin_continues_across_both_programs() {
    let net = Net::of("10.0.0.0/29");
    let mut got = Vec::new();
    for (i, program) in [OURS, go(), OURS, go(), OURS].iter().enumerate() {
        got.extend(net.exec(program, "ADD", &format!("c{i}"), "eth0").run().unwrap().ips());
    }
    assert_eq!(got, ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    let full = "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.6";
    assert_eq!(net.add("c9").error().pair(), (999, full.to_owned()));
    net.del("c1").ok();
    assert_eq!(net.add("c9").ips(), ["10.0.0.3"]);
}

#[test]
fn free_address_far_from_the_last_one_is_found() {
    let net = Net::of("10.0.0.0/24");
    for n in (2..=254).filter(|n| *n != 200) {
        net.seed(&format!("10.0.0.{n}"), &format!("other{n}\r\neth0"));
    }
    assert_eq!(net.add("c1").ips(), ["10.0.0.200"]);
}
