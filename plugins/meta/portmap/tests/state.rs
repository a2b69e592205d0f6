//! Kernel state after ADD, CHECK, DEL and GC, in sequence and in parallel. The tests need root and `nft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::thread;

use cni_lab::Place as _;
use cni_lab::Snapshot;
use cni_lab::testing::{ask, silent};
use cni_runner::{Attachment, ValidAttachment};
use common::{World, both, mapping, more, network_of, over_tcp, pods};
use ferrule_kit::boot::BootMark;
use serde_json::{Value, json};

const LISTED: &str = include_str!("listed.txt");

#[test]
fn listing_is_as_documented() {
    let world = World::new();
    let mappings = json!([
        mapping("tcp", "", 8080, 80),
        mapping("sctp", "192.0.2.1", 8081, 81),
        mapping("UDP", "2001:db8::1", 8082, 82)
    ]);
    let added = world.add("one", &pods(json!({})), &mappings);
    let boot = format!("0x{:08x}", BootMark::current().0);
    assert_eq!(world.table(), LISTED.replace("BOOT", &boot));
    assert_eq!(added.check(), Ok(()));
    let empty = world.table().lines().filter(|line| !line.contains("elements = ")).count();
    added.del();
    let left = world.table();
    assert!(!left.contains("elements") && !left.contains("-from-"), "{left}");
    assert!(left.lines().count() < empty);
}

#[test]
fn second_add_replaces_the_containers_host_ports() {
    let world = World::new();
    let network = pods(json!({}));
    let one = world.add("one", &network, &both(8080, 80));
    let mut config = one.config();
    config["prevResult"]["ips"][0]["address"] = json!("10.1.0.77/24");
    config["runtimeConfig"]["portMappings"] =
        json!([mapping("tcp", "", 8080, 81), mapping("tcp", "", 8090, 80)]);
    world.ctx.add(&one.attachment, &config);
    let table = world.table();
    assert_eq!(world.count(), 4, "{table}");
    assert_eq!(table.matches("10.1.0.77 . 81").count(), 1, "{table}");
    assert!(!table.contains("udp") && !table.contains(&format!("{} .", one.address(false))), "{table}");
    world.check(&one.attachment, &config);
    // Another ADD of the same mappings changes nothing.
    world.ctx.add(&one.attachment, &config);
    assert_eq!(world.table(), table);
    one.del();
    assert_eq!(world.count(), 0);
}

/// Any machine of the network can be a router.
#[test]
fn a_host_port_leads_to_no_address_of_a_router() {
    let world = World::new();
    let base = world.add("base", &pods(json!({})), &json!([]));
    let mut config = base.config();
    config["prevResult"]["ips"] = json!([{"address": "10.1.0.50/24", "gateway": "10.1.0.1", "interface": 2},
        {"address": "2001:db8:7::5/64", "interface": 2}]);
    config["runtimeConfig"]["portMappings"] = json!([mapping("tcp", "", 8080, 80)]);
    for (lifetime, count) in [("1000", 1), ("forever", 2)] {
        let address = format!(
            "ip address replace 2001:db8:7::5/64 dev eth0 nodad valid_lft {lifetime} preferred_lft {lifetime}"
        );
        base.pod.sh(&address).unwrap();
        world.ctx.add(&base.attachment, &config);
        assert_eq!(world.count(), count, "{lifetime}: {}", world.table());
        world.check(&base.attachment, &config);
    }
}

#[test]
fn concurrent_adds_and_dels() {
    for round in 0..3 {
        let world = World::new();
        let network = pods(json!({}));
        // The bridge plugin runs only once, so that only portmap runs in parallel.
        let base = world.add("base", &network, &json!([]));
        let config = |number: usize| {
            let mut config = base.config();
            config["prevResult"]["ips"] = json!([{"address": format!("10.1.0.{}/24", number + 50), "interface": 2},
                {"address": format!("fd00::{number:x}/64"), "interface": 2}]);
            config["runtimeConfig"]["portMappings"] = both(u16::try_from(number).unwrap() + 8000, 80);
            config
        };
        let attachment =
            |number: usize| Attachment::new(format!("pod{number}"), base.attachment.netns.clone(), "eth0");
        let world = &world;
        thread::scope(|scope| {
            for number in 1..=16 {
                let (attachment, config) = (attachment(number), config(number));
                scope.spawn(move || {
                    world.ctx.add(&attachment, &config);
                });
            }
        });
        assert_eq!(world.count(), 16 * 4, "round {round}: {}", world.table());
        for number in 1..=16 {
            assert!(world.call("CHECK", &attachment(number), &config(number)).success(), "{}", world.table());
        }
        thread::scope(|scope| {
            for _ in 0..8 {
                let (attachment, config) = (attachment(1), config(1));
                scope.spawn(move || world.del(&attachment, &config));
            }
            for number in 17..=20 {
                let (attachment, config) = (attachment(number), config(number));
                scope.spawn(move || world.ctx.add(&attachment, &config));
            }
        });
        assert_eq!(world.count(), 19 * 4);
    }
}

#[test]
fn del_succeeds_with_every_configuration() {
    let world = World::new();
    let added = world.add("one", &pods(json!({})), &both(8080, 80));
    let good = added.config();
    let with = |key: &str, value: Value| {
        let mut config = good.clone();
        config[key] = value;
        config
    };
    let mappings = |value: Value| with("runtimeConfig", json!({"portMappings": value}));
    for config in [
        with("prevResult", json!({"ips": "nonsense", "cniVersion": "1.1.0"})),
        with("prevResult", Value::Null),
        mappings(json!([mapping("tcp", "", 0, 80)])),
        mappings(json!([mapping("icmp", "no address", 7000, 80), {"hostPort": 70000}])),
        mappings(json!("nonsense")),
        mappings(over_tcp(8080, 80)),
        mappings(json!([mapping("tcp", "", 8080, 80), mapping("udp", "", 1, 80), mapping("tcp", "", 2, 80)])),
        mappings(json!([])),
        with("runtimeConfig", Value::Null),
        with("backend", json!("ebpf")),
        with("conditionsV4", json!(["tcp dport 80"])),
        with("markMasqBit", json!(99)),
        with("snat", json!("perhaps")),
    ] {
        assert_eq!(world.count(), 4);
        let output = world.call("DEL", &added.attachment, &config);
        assert!(output.success(), "{config}: {output:?}");
        assert_eq!(world.count(), 0, "{config}");
        // A second DEL, without host ports and without a namespace.
        let mut gone = added.attachment.clone();
        gone.netns = String::new();
        world.del(&gone, &config);
        world.ctx.add(&added.attachment, &good);
    }
}

#[test]
fn without_mappings_nothing_is_created() {
    let world = World::new();
    let bridge = {
        let mut network = pods(json!({}));
        network.plugins.truncate(1);
        network
    };
    let pod = world.pod("bare");
    world.runtime().add(&bridge, &pod.attachment("eth0")).unwrap();
    let before = Snapshot::take(&world.node).unwrap();
    for mappings in [json!([]), Value::Null] {
        let attachment = pod.attachment("eth1").with_capability("portMappings", mappings);
        world.runtime().add(&pods(json!({})), &attachment).unwrap();
        world.runtime().check(&pods(json!({})), &attachment).unwrap();
        world.runtime().del(&pods(json!({})), &attachment).unwrap();
    }
    let after = Snapshot::take(&world.node).unwrap();
    let addresses = ["/var/lib/cni/networks", "/var/lib/cni: networks", "last_reserved"];
    assert_eq!(before.ignoring(&addresses).diff(&after.ignoring(&addresses)), "");
    assert!(!world.listing().contains("cni_portmap"));
}

#[test]
fn check_notices_every_change() {
    let world = World::new();
    let added = world.add(
        "one",
        &pods(json!({})),
        &json!([mapping("tcp", "192.0.2.1", 8080, 80), mapping("udp", "", 53, 53)]),
    );
    let table = "inet cni_portmap";
    for change in [
        format!("delete element {table} dnat4 {{ udp . 53 }}"),
        format!(
            "delete element {table} dnat4 {{ udp . 53 }}; add element {table} dnat4 {{ udp . 53 : 10.9.9.9 . 53 }}"
        ),
        format!("delete element {table} mark4_ip {{ 192.0.2.1 . tcp . 8080 }}"),
        format!("flush set {table} owners"),
        format!("flush chain {table} output"),
        format!("flush chain {table} hostports"),
        format!("insert rule {table} hostports accept"),
        format!("insert rule {table} prerouting ip saddr 10.0.0.1 accept"),
        format!("flush chain {table} postrouting"),
        format!("flush chain {table} guard"),
        format!("flush chain {table} KUBE-MARK-MASQ"),
        format!("flush chain {table} KUBE-MARK-MASQ-from-10.1.0.0/24"),
        format!("delete table {table}"),
    ] {
        assert_eq!(added.check(), Ok(()), "before {change}");
        world.nft(&change);
        assert!(added.check().is_err(), "{change}");
        // The next ADD repairs it.
        let output = world.call("ADD", &added.attachment, &added.config());
        assert!(output.success(), "{change}: {output:?}");
    }
}

#[test]
fn gc_keeps_valid_attachments_and_other_networks() {
    let world = World::new();
    let dead = world.add("dead", &pods(json!({})), &both(8080, 80));
    let alive = world.add("alive", &pods(json!({})), &both(8081, 80));
    let other = world.add("other", &more(json!({})), &both(8082, 80));
    let mut config = alive.config();
    config.as_object_mut().unwrap().remove("prevResult");
    config["cni.dev/valid-attachments"] = json!([{"containerID": "alive", "ifname": "eth0"}]);
    world.succeed("GC", &Attachment::default(), &config);
    assert!(dead.check().is_err());
    assert_eq!((alive.check(), other.check()), (Ok(()), Ok(())));
    world.runtime().gc(&pods(json!({})), Some(&[] as &[ValidAttachment])).unwrap();
    assert_eq!(world.count(), 4);
    assert_eq!(other.check(), Ok(()));
    other.del();
    assert!(!world.table().contains("-from-"), "{}", world.table());
}

#[test]
fn conditions_apply_to_their_network_only() {
    let world = World::new();
    let not_outside = json!({"conditionsV4": ["ip saddr != { 192.0.2.2, 203.0.113.0/24 }"], "conditionsV6": ["iifname != \"out*\""]});
    let strict = world.add("strict", &pods(not_outside), &over_tcp(8080, 80));
    let free = world.add("free", &more(json!({})), &over_tcp(8081, 80));
    // The same port with other conditions is free.
    let picky = network_of(
        "picky",
        "cni2",
        2,
        "1.0.0",
        json!({"conditionsV4": ["ip", "saddr", "192.0.2.2"], "backend": "nftables"}),
    );
    let picky = world.add("picky", &picky, &json!([mapping("tcp", "0.0.0.0", 8080, 80)]));
    for added in [&strict, &free, &picky] {
        added.serve(80);
        assert_eq!(added.check(), Ok(()), "{}", world.table());
    }
    for v6 in [false, true] {
        let (outside, node) = (&world.outside[usize::from(v6)], world.address(v6));
        let to = |port| std::net::SocketAddr::new(node, port);
        assert_eq!(ask(outside, "tcp", to(8081)), Ok(format!("free {}", outside.address())));
        assert_eq!(ask(&world.node, "tcp", to(8080)), Ok(format!("strict {node}")));
        if v6 {
            assert!(silent(outside, "tcp", to(8080)));
        } else {
            assert_eq!(ask(outside, "tcp", to(8080)), Ok(format!("picky {}", outside.address())));
        }
    }
    strict.del();
    assert_eq!((free.check(), picky.check()), (Ok(()), Ok(())));
    world.nft("flush chain inet cni_portmap networks");
    assert!(picky.check().unwrap_err().contains("\"networks\""));
    // GC deletes the conditions of a network without host ports, and no others.
    world.ctx.add(&picky.attachment, &picky.config());
    world.runtime().gc(&pods(json!({})), Some(&[])).unwrap();
    let table = world.table();
    assert!(!table.contains("pods: ") && !table.contains("chain network6"), "{table}");
    assert_eq!((free.check(), picky.check()), (Ok(()), Ok(())));
    picky.del();
    world.runtime().gc(&pods(json!({})), Some(&[])).unwrap();
    assert!(!world.table().contains("chain network4"), "{}", world.table());
    assert_eq!(free.check(), Ok(()));
}

#[test]
fn one_pod_with_1500_ports() {
    let world = World::new();
    let ports: Vec<Value> = (0..1500).map(|port| mapping("tcp", "", 10_000 + port, 1000 + port)).collect();
    let added = world.add("one", &pods(json!({})), &Value::Array(ports));
    added.serve(2499);
    assert_eq!(
        ask(&world.outside[0], "tcp", "192.0.2.1:11499".parse().unwrap()),
        Ok("one 192.0.2.2".to_owned())
    );
    assert_eq!(added.check(), Ok(()));
    added.del();
    assert_eq!(world.count(), 0);
}

#[test]
fn mark_bit_and_external_chain() {
    let world = World::new();
    let bit = world.add("bit", &pods(json!({"markMasqBit": 7})), &over_tcp(8080, 80));
    let named = world.add("named", &more(json!({"externalSetMarkChain": "MY-MARK"})), &over_tcp(8081, 80));
    for (added, mark) in [(&bit, "0x00000080"), (&named, "0x00004000")] {
        added.serve(80);
        let port = if mark == "0x00000080" { 8080 } else { 8081 };
        let to = std::net::SocketAddr::new(world.address(false), port);
        let seen = added.address(false).to_string().replace(".2", ".1");
        assert_eq!(ask(&added.pod, "tcp", to), Ok(format!("{} {seen}", added.pod.name())));
        assert_eq!(added.check(), Ok(()));
        assert!(world.table().contains(&format!("meta mark set meta mark | {mark}")), "{}", world.table());
    }
    // After a flush, the next ADD adds the rules for all bits again.
    world.nft("flush chain inet cni_portmap postrouting");
    world.add("third", &pods(json!({})), &over_tcp(8082, 80));
    assert_eq!((bit.check(), named.check()), (Ok(()), Ok(())));
}

#[test]
fn all_spec_versions() {
    let world = World::new();
    for (number, version) in
        ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].into_iter().enumerate()
    {
        let network = network_of(&format!("net{number}"), "cni0", 0, version, json!({}));
        let port = 8080 + u16::try_from(number).unwrap();
        let added = world.add(&format!("pod{number}"), &network, &over_tcp(port, 80));
        assert_eq!(added.result["cniVersion"], version);
        assert!(world.table().contains(&format!("tcp . {port} comment \"net{number}/eth0/pod{number}\"")));
        if number >= 4 {
            assert_eq!(added.check(), Ok(()));
        }
        world.runtime().status(&network).unwrap();
        added.del();
        world.runtime().gc(&network, None).unwrap();
        assert_eq!(world.count(), 0);
    }
}

#[test]
fn invalid_mapping_is_an_error_and_nothing_is_created() {
    let world = World::new();
    let base = world.add("base", &pods(json!({})), &json!([]));
    for (mapping, code, words) in [
        (mapping("tcp", "", 0, 80), 7, "Invalid host port number: 0"),
        (
            json!({"hostPort": 65536, "containerPort": 80, "protocol": "tcp"}),
            7,
            "Invalid host port number: 65536",
        ),
        (
            json!({"hostPort": 80, "containerPort": -1, "protocol": "tcp"}),
            7,
            "Invalid container port number: -1",
        ),
        (mapping("icmp", "", 80, 80), 7, "Invalid protocol: \"icmp\""),
        (mapping("tcp", "localhost", 80, 80), 7, "Invalid host IP: \"localhost\""),
        (json!({"hostPort": "80", "containerPort": 80, "protocol": "tcp"}), 6, "portMappings[1]"),
    ] {
        let mut config = base.config();
        config["runtimeConfig"]["portMappings"] = json!([mapping_ok(), mapping]);
        for verb in ["ADD", "CHECK"] {
            let error = world.fail(verb, &base.attachment, &config).with_code(code);
            assert!(error.msg.contains(words), "{error}");
        }
    }
    let mut config = base.config();
    config.as_object_mut().unwrap().remove("prevResult");
    let said = |verb| world.fail(verb, &base.attachment, &config).msg;
    assert_eq!(said("ADD"), "must be called as chained plugin");
    assert_eq!(said("CHECK"), "Required prevResult missing");
    assert_eq!(world.table(), "");
}

fn mapping_ok() -> Value {
    mapping("tcp", "", 8080, 80)
}
