//! Rules and tables: ADD makes them, CHECK compares them, DEL removes the rules.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;
use std::process::Command;

use cni_lab::testing::{
    Origin, PluginDir, VERSIONS, ask, assert_unchanged, has_check, is_per_family, network_config, overlay,
    routes, serve,
};
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{attached, config, destinations, net1, rules};
use serde_json::{Value, json};

const RULES: [&str; 2] = ["10.1.0.2 100", "fd01::2 101"];
const V4: [&str; 4] = ["default", "10.1.0.0/24", "10.8.0.0/16", "10.9.0.0/16"];
const V6: [&str; 3] = ["fd01::/64", "fd08::/64", "default"];
const ETH0: [&str; 4] = ["default", "10.0.0.0/24", "fd00::/64", "default"];

#[test]
fn routes_move_into_a_table_for_each_address() {
    for version in VERSIONS.into_iter().filter(|version| !is_per_family(version)) {
        let (ctx, pod) = attached();
        let (net, conf) = (pod.attachment("net1"), config(version, &json!({})));
        let before = Snapshot::take(&pod).unwrap();
        let link_local = routes(&pod, "-6 fe80::/64");
        let mut expected = conf["prevResult"].clone();
        if version < "1.0.0" {
            expected["dns"] = json!({});
        }
        for attempt in 0..2 {
            assert_eq!(ctx.add(&net, &conf), expected, "{version}");
            assert_eq!(rules(&pod), RULES, "{version}, {attempt}");
            assert_eq!(destinations(&pod, "100"), V4, "{version}, {attempt}");
            assert_eq!(destinations(&pod, "101"), V6, "{version}, {attempt}");
            assert_eq!(destinations(&pod, "main"), ETH0, "{version}, {attempt}");
        }
        let multipath = &routes(&pod, "table 100 10.8.0.0/16")[0]["nexthops"];
        assert_eq!(multipath.as_array().unwrap().len(), 2, "{multipath}");
        assert_eq!(routes(&pod, "table 100 10.9.0.0/16")[0]["metric"], 7);
        assert_eq!(routes(&pod, "-6 fe80::/64"), link_local);
        if has_check(version) {
            ctx.check(&net, &conf);
        }
        // Neither the configuration nor the result matters.
        ctx.del(&net, &network_config("sbr", version, &json!({"table": "x", "gateways": 5})));
        assert_unchanged(&pod, &before, version);
    }
}

/// The ping of an address that is on the pod's other network comes in by `net1`, and the answer leaves there.
#[test]
fn answers_leave_by_the_interface_of_their_source() {
    let (ctx, pod) = attached();
    // Host of both networks: its own addresses, of the first network, are routed through `net1`.
    ctx.node
        .sh("ip addr add 10.0.0.1/24 dev host0 && ip addr add 10.1.0.1/24 dev host1 && ip link set lo up
             ip -6 addr add fd00::1/64 dev host0 nodad && ip -6 addr add fd01::1/64 dev host1 nodad
             sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.host1.rp_filter=0
             ip addr add 192.0.2.1/32 dev lo && ip -6 addr add 2001:db8::1/128 dev lo nodad")
        .unwrap();
    serve(&pod, "pod", 80);
    let net = pod.attachment("net1");
    let seen_by = |link: &str, to: &str, from: &str| {
        let count = || {
            let text = ctx.node.sh(&format!("ip -s -j link show {link}")).unwrap();
            let links: Value = serde_json::from_str(&text).unwrap();
            links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
        };
        let ping = |count: &str| {
            let mut ping = Command::new("ping");
            ping.args(["-c", count, "-i", "0.01", "-W", "2", "-I", from, to]);
            ctx.node.exec(&mut ping).unwrap().status.success()
        };
        // Until both sides know their neighbours.
        assert!(eventually(TIMEOUT, || ping("1")), "{to}");
        let before = count();
        // More than other packets, such as neighbour solicitations.
        (ping("20"), count() - before >= 20)
    };
    for (to, from) in [("10.1.0.2", "192.0.2.1"), ("fd01::2", "2001:db8::1")] {
        // Without sbr the answers take the default route, through eth0.
        assert_eq!(seen_by("host0", to, from), (true, true), "{to}");
    }
    ctx.add(&net, &config("1.0.0", &json!({})));
    for (to, from) in [("10.1.0.2", "192.0.2.1"), ("fd01::2", "2001:db8::1")] {
        assert_eq!(seen_by("host1", to, from), (true, true), "{to}");
        assert_eq!(seen_by("host0", to, from), (true, false), "{to}");
        let address: SocketAddr = (to.parse::<std::net::IpAddr>().unwrap(), 80).into();
        assert!(eventually(TIMEOUT, || ask(&ctx.node, "tcp", address).is_ok()), "{to}");
    }
}

/// The kernel makes one multipath route of two IPv6 routes to the same destination with the same metric, and names attributes
/// of the first one alone.
#[test]
fn next_hops_leave_an_ipv6_multipath_route() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({})));
    pod.sh("ip -6 route replace default via fd00::1 dev eth0 proto static src fd00::2
            ip -6 route append default via fd01::1 dev net1 && ip -6 route append default via fd01::9 dev net1")
        .unwrap();
    let before = Snapshot::take(&pod).unwrap();
    let hops = |table: &str| -> Vec<Vec<String>> {
        let hops = |route: &Value| -> Vec<String> {
            let single = [route.clone()];
            let hops = route["nexthops"].as_array().map_or(single.as_slice(), Vec::as_slice);
            hops.iter().map(|hop| format!("{} {}", hop["gateway"], hop["dev"]).replace('"', "")).collect()
        };
        routes(&pod, &format!("-6 table {table} default")).iter().map(hops).collect()
    };
    for _ in 0..2 {
        ctx.add(&net, &conf);
        assert_eq!(hops("main"), [["fd00::1 eth0"]]);
        assert_eq!(hops("101"), [["fd01::1 net1", "fd01::9 net1"]]);
        assert_eq!(routes(&pod, "-6 table 101 default")[0]["prefsrc"], Value::Null);
        assert_eq!(routes(&pod, "-6 default")[0]["prefsrc"], "fd00::2");
    }
    ctx.check(&net, &conf);
    ctx.del(&net, &conf);
    assert_unchanged(&pod, &before, "DEL");
    // A failed ADD puts them back.
    let wrong = overlay(&conf, &json!({"gateways": ["172.16.0.9"]}));
    pod.sh("ip route del default").unwrap();
    ctx.fail("ADD", &net, &wrong).expect(999, "Failed to add default route to 172.16.0.9");
    pod.sh("ip route add default via 10.0.0.1").unwrap();
    assert_unchanged(&pod, &before, "a failed ADD");
}

/// The kernel deletes a route through a next hop object only by the object.
#[test]
fn routes_through_next_hop_objects_move() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({})));
    pod.sh("ip nexthop add id 7 via 10.1.0.1 dev net1 && ip nexthop add id 8 via 10.1.0.9 dev net1
            ip nexthop add id 9 group 7/8 && ip route add 10.6.0.0/16 nhid 9 && ip route add 10.7.0.0/16 nhid 7
            ip -6 nexthop add id 17 via fd01::9 dev net1 && ip -6 route add fd07::/64 nhid 17")
        .unwrap();
    let before = Snapshot::take(&pod).unwrap();
    ctx.add(&net, &conf);
    assert_eq!(destinations(&pod, "main"), ETH0);
    for (table, dst) in [("100", "10.6.0.0/16"), ("100", "10.7.0.0/16"), ("101", "-6 fd07::/64")] {
        let (family, dst) = dst.split_once(' ').unwrap_or(("", dst));
        let id = &routes(&pod, &format!("{family} table {table} {dst}"))[0]["nhid"];
        assert!(id.is_number(), "{dst}: {id}");
    }
    ctx.del(&net, &conf);
    assert_unchanged(&pod, &before, "DEL");
}

/// An installation or a rollback changes the program while containers run.
#[test]
fn ours_and_the_reference_take_over_from_each_other() {
    let (ours, pod) = attached();
    let reference = ours.with_plugins(PluginDir::installed(Origin::Reference, "sbr"));
    let (net, conf) = (pod.attachment("net1"), config("1.0.0", &json!({})));
    for (first, second) in [(&ours, &reference), (&reference, &ours)] {
        first.add(&net, &conf);
        assert_eq!(rules(&pod), RULES);
        second.check(&net, &conf);
        second.del(&net, &conf);
        assert_eq!(rules(&pod), [""; 0]);
        pod.sh("ip link del net1").unwrap();
        net1(&ours, &pod);
    }
}

#[test]
fn unused_tables_are_taken() {
    let (ctx, pod) = attached();
    pod.sh("ip rule add fwmark 1 lookup 100; ip route add 10.77.0.0/16 dev eth0 table 101").unwrap();
    pod.sh("ip -6 route add fd77::/64 dev eth0 table 103").unwrap();
    ctx.add(&pod.attachment("net1"), &config("1.0.0", &json!({})));
    assert_eq!(rules(&pod), ["10.1.0.2 102", "fd01::2 104"]);
}

#[test]
fn with_a_table_only_the_rules_are_added() {
    let (ctx, pod) = attached();
    let before = destinations(&pod, "main");
    let conf = config("1.0.0", &json!({"table": 500}));
    let net = pod.attachment("net1");
    ctx.add(&net, &conf);
    ctx.add(&net, &conf);
    assert_eq!(rules(&pod), ["10.1.0.2 500", "fd01::2 500"]);
    assert_eq!(destinations(&pod, "main"), before);
    ctx.check(&net, &conf);
    ctx.fail("CHECK", &net, &config("1.0.0", &json!({"table": 501})))
        .expect(999, "rule 'from 10.1.0.2 lookup 501' not found in the container");
    // The table has changed since.
    ctx.del(&net, &config("1.0.0", &json!({"table": 501})));
    assert_eq!(rules(&pod), [""; 0]);
}

#[test]
fn configured_gateways_and_source_hints() {
    let (ctx, pod) = attached();
    pod.sh("ip route add default via 10.1.0.9 dev net1 metric 50").unwrap();
    let before = Snapshot::take(&pod).unwrap();
    let net = pod.attachment("net1");
    let gateway = |family: &str| {
        let default =
            &routes(&pod, &format!("{family} table {} default", if family.is_empty() { 100 } else { 101 }))
                [0];
        default["gateway"].as_str().unwrap().to_owned()
    };
    // The default route of the interface comes before the address's gateway, the configured one before both.
    ctx.add(&net, &config("1.0.0", &json!({})));
    assert_eq!((gateway(""), gateway("-6")), ("10.1.0.9".to_owned(), "fd01::1".to_owned()));
    ctx.del(&net, &config("1.0.0", &json!({})));
    let conf = config("1.0.0", &json!({"gateways": ["10.1.0.7", "fd01::7"], "addSourceHints": true}));
    ctx.add(&net, &conf);
    ctx.check(&net, &conf);
    assert_eq!((gateway(""), gateway("-6")), ("10.1.0.7".to_owned(), "fd01::7".to_owned()));
    let expected = [
        "default",
        "10.0.0.0/24",
        "10.1.0.0/24",
        "10.9.0.0/16",
        "fd00::/64",
        "fd01::/64",
        "fd01::/64",
        "default",
    ];
    assert_eq!(destinations(&pod, "main"), expected);
    for (to, from) in [("10.1.0.5", "10.1.0.2"), ("fd01::5", "fd01::2")] {
        let found = pod.sh(&format!("ip route get {to}")).unwrap();
        assert!(found.contains("dev net1 ") && found.contains(&format!(" src {from} ")), "{found}");
    }
    ctx.del(&net, &conf);
    // Only the default route that `gateways` replaced does not return.
    pod.sh("ip route add default via 10.1.0.9 dev net1 metric 50").unwrap();
    assert_unchanged(&pod, &before, "DEL");
}

/// As by the reference since 1.6. Another link may have the address.
#[test]
fn with_a_table_each_address_of_the_result_gets_a_rule() {
    let (ctx, pod) = attached();
    pod.sh("ip -6 addr flush dev net1 scope global; ip addr del 10.1.0.2/24 dev net1; ip addr add 10.1.0.2/32 dev lo")
        .unwrap();
    let (net, conf) = (pod.attachment("net1"), config("1.0.0", &json!({"table": 500})));
    ctx.add(&net, &conf);
    assert_eq!(rules(&pod), ["10.1.0.2 500", "fd01::2 500"]);
    ctx.check(&net, &conf);
    pod.sh("ip -6 rule del from fd01::2").unwrap();
    ctx.fail("CHECK", &net, &conf).expect(999, "rule 'from fd01::2 lookup 500' not found in the container");
    ctx.del(&net, &conf);
    assert_eq!(rules(&pod), [""; 0]);
}

/// Results of other vendors' plugins: without a sandbox, or without interfaces.
#[test]
fn results_without_a_sandbox_or_interfaces() {
    let (ctx, pod) = attached();
    let net = pod.attachment("net1");
    for interfaces in [json!([{"name": "host1"}, {"name": "net1"}]), json!([]), Value::Null] {
        let mut conf = config("1.0.0", &json!({}));
        conf["prevResult"]["interfaces"] = interfaces;
        ctx.add(&net, &conf);
        assert_eq!(rules(&pod), RULES);
        // The address is all that DEL knows.
        pod.sh("ip link del net1; ip addr add 10.1.0.2/32 dev lo; ip -6 addr add fd01::2/128 dev lo")
            .unwrap();
        ctx.del(&net, &conf);
        assert_eq!(rules(&pod), [""; 0]);
        pod.sh("ip addr flush dev lo; ip -6 addr flush dev lo").unwrap();
        net1(&ctx, &pod);
    }
}

/// Nor is a gateway of its family reachable.
#[test]
fn addresses_that_the_interface_does_not_have_are_left_out() {
    let (ctx, pod) = attached();
    pod.sh("ip -6 addr flush dev net1 scope global").unwrap();
    let (net, conf) = (pod.attachment("net1"), config("1.0.0", &json!({})));
    ctx.add(&net, &conf);
    assert_eq!(rules(&pod), ["10.1.0.2 100"]);
    assert!(destinations(&pod, "main").contains(&"fd08::/64".to_owned()));
    ctx.check(&net, &conf);
}

#[test]
fn check_finds_what_is_missing() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.0.0", &json!({})));
    ctx.add(&net, &conf);
    for (harm, text, repair) in [
        (
            "ip rule del from 10.1.0.2",
            "rule 'from 10.1.0.2' not found",
            "ip rule add from 10.1.0.2 lookup 100",
        ),
        (
            "ip route del default table 100",
            "route 0.0.0.0/0 dev net1 not found in table 100",
            "ip route add default via 10.1.0.1 table 100",
        ),
        (
            "ip -6 route del fd01::/64 table 101",
            "route fd01::/64 dev net1 not found in table 101",
            "ip -6 route add fd01::/64 dev net1 table 101",
        ),
        (
            "ip -6 addr del fd01::2/64 dev net1",
            "interface \"net1\" does not have address fd01::2/64",
            "ip -6 addr add fd01::2/64 dev net1 nodad",
        ),
        ("ip link set net1 down", "interface \"net1\" of the container is down", "true"),
        ("ip link del net1", "Cannot find network interface net1: Link not found", "true"),
    ] {
        pod.sh(harm).unwrap();
        ctx.fail("CHECK", &net, &conf).expect(999, text);
        pod.sh(repair).unwrap();
    }
}

#[test]
fn a_failed_add_changes_nothing() {
    let (ctx, pod) = attached();
    let before = Snapshot::take(&pod).unwrap();
    let unchanged = |text: &str| assert_unchanged(&pod, &before, text);
    let (net, conf) = (pod.attachment("net1"), config("1.0.0", &json!({})));
    let gateway = |gateway: &str| overlay(&conf, &json!({"gateways": [gateway]}));
    for (config, code, text) in [
        (gateway("172.16.0.9"), 999, "Failed to add default route to 172.16.0.9"),
        (gateway("zz"), 7, "invalid static gateway IP address: zz"),
        (
            overlay(&conf, &json!({"prevResult": {"cniVersion": "1.0.0"}})),
            7,
            "No IP addresses supplied on interface: net1",
        ),
        (network_config("sbr", "0.2.0", &json!({})), 7, "This plugin must be called as chained plugin"),
    ] {
        // The route to the gateway of a static one must not exist.
        pod.sh("ip route del default").unwrap();
        ctx.fail("ADD", &net, &config).expect(code, text);
        pod.sh("ip route add default via 10.0.0.1").unwrap();
        unchanged(text);
    }
    let text = "Cannot find network interface net7: Link not found";
    let mut other = conf.clone();
    other["prevResult"]["interfaces"][1]["name"] = json!("net7");
    ctx.fail("ADD", &pod.attachment("net7"), &other).expect(999, text);
    unchanged(text);
}

#[test]
fn del_without_an_interface_or_a_namespace() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.0.0", &json!({})));
    let before = Snapshot::take(&pod).unwrap();
    pod.sh("ip rule add from 10.0.0.2 lookup 77 protocol 67; ip rule add from 10.5.0.1 lookup 78").unwrap();
    ctx.add(&net, &conf);
    pod.sh("ip link del net1").unwrap();
    ctx.del(&net, &network_config("sbr", "1.0.0", &json!({})));
    // The first rule is for an address of eth0, the second one is nobody's of ours.
    assert_eq!(rules(&pod), ["10.5.0.1 78", "10.0.0.2 77"]);
    pod.sh("ip rule del from 10.0.0.2; ip rule del from 10.5.0.1").unwrap();
    net1(&ctx, &pod);
    assert_unchanged(&pod, &before, "without the interface");
    let path = net.netns.clone();
    pod.delete().unwrap();
    ctx.del(&net, &conf);
    ctx.del(&Attachment { netns: String::new(), ..net }, &conf);
    assert!(ctx.node.sh(&format!("test -e {path}")).is_err(), "DEL has made a file at CNI_NETNS");
}
