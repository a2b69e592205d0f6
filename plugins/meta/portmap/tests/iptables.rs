//! The iptables backend, and the rules of both backends of the reference. The tests need root, `nft`, both
//! variants of `iptables` and the reference's plugins.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;
use std::thread;

use cni_lab::Place as _;
use cni_lab::testing::iptables::{VARIANTS, saved, slow_nft, variant};
use cni_lab::testing::{Origin, TestContext, ask, silent};
use cni_runner::{Attachment, Network, ValidAttachment};
use common::{World, both, mapping, more, network_of, plugins, pods};
use serde_json::{Value, json};

fn assert_same(found: &str, wanted: &str, what: &str) {
    let only = |of: &str, over: &str, sign: &str| -> Vec<String> {
        let missing = of.lines().filter(|line| !over.lines().any(|other| other == *line));
        missing.map(|line| format!("{sign} {line}")).collect()
    };
    let mut differences = only(found, wanted, "+");
    differences.extend(only(wanted, found, "-"));
    assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
    assert_eq!(found, wanted, "{what}: order");
}

fn versioned(mut keys: Value, ours: bool) -> Network {
    if ours && keys.get("backend").is_none() {
        keys["backend"] = json!("iptables");
    }
    network_of("pmnet", "cni0", 0, "1.0.0", keys)
}

fn mappings(variant: &str) -> Value {
    let mut mappings = json!([
        mapping("tcp", "", 8080, 80),
        mapping("udp", "", 8081, 81),
        mapping("tcp", "192.0.2.1", 8083, 83),
        mapping("tcp", "0.0.0.0", 8085, 85)
    ]);
    // For IPv4 only, if the reference adds them with ip6tables-legacy 1.8.9: that program reports a rule as
    // existing if another rule differs only in the port, and the reference then does not add it.
    let host_ip = if variant == "legacy" { "0.0.0.0" } else { "" };
    let many = (9000..9020).map(|port| mapping("tcp", host_ip, port, port));
    mappings.as_array_mut().unwrap().extend(many);
    mappings.as_array_mut().unwrap().push(mapping("tcp", "2001:db8::1", 8084, 84));
    mappings
}

#[test]
fn rules_are_those_of_the_reference_byte_for_byte() {
    for name in VARIANTS {
        let programs = variant(name);
        for keys in [
            json!({}),
            json!({"markMasqBit": 5}),
            json!({"snat": false}),
            json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}),
            json!({"conditionsV4": ["!", "-s", "192.0.2.200/32"], "conditionsV6": ["!", "-d", "2001:db8::200"]}),
        ] {
            let state = |by: Origin| {
                let world = World::by(by);
                for family in ["iptables", "ip6tables"] {
                    world.node.sh(&format!("{family}-{name} -t nat -N KUBE-MARK-MASQ")).unwrap();
                }
                let ctx = world.with_programs(programs.path());
                let runtime = ctx.runtime();
                let network = versioned(keys.clone(), by == Origin::Ours);
                for pod in ["cid-1", "cid-2"] {
                    let pod = world.pod(pod);
                    let mappings = if pod.name() == "cid-1" { mappings(name) } else { both(7000, 70) };
                    let attachment = pod.attachment("eth0").with_capability("portMappings", mappings);
                    runtime.add(&network, &attachment).unwrap();
                    // CHECK of Debian 12's reference looks for the rules of one family in the other's table.
                    if by == Origin::Ours {
                        runtime.check(&network, &attachment).unwrap();
                    }
                }
                saved(&world.node, name)
            };
            assert_same(&state(Origin::Ours), &state(Origin::Reference), &format!("{name} {keys}"));
        }
    }
}

/// Attaches a pod with one host port. Returns the network, the attachment and the result.
fn attached(ctx: &TestContext) -> (Network, Attachment, Value) {
    let network = versioned(json!({}), true);
    let attachment = ctx.pod("one").attachment("eth0").with_capability("portMappings", both(8080, 80));
    let result = ctx.runtime().add(&network, &attachment).unwrap();
    (network, attachment, result)
}

#[test]
fn second_add_replaces_the_containers_rules() {
    for name in VARIANTS {
        let (world, programs) = (World::new(), variant(name));
        let ctx = world.with_programs(programs.path());
        let (network, attachment, result) = attached(&ctx);
        let mut config = Value::Object(network.plugins[1].clone());
        config["name"] = json!("pmnet");
        config["cniVersion"] = json!("1.0.0");
        config["prevResult"] = result;
        config["runtimeConfig"] = json!({"portMappings": both(8090, 90)});
        config["prevResult"]["ips"][0]["address"] = json!("10.1.0.99/24");
        let call = |verb: &str| ctx.call(verb, &attachment, &config);
        assert!(call("ADD").success());
        let state = saved(&world.node, name);
        assert!(
            !state.contains("8080") && state.contains("10.1.0.99:90") && !state.contains("10.1.0.2:"),
            "{state}"
        );
        assert_eq!(state.matches("-j CNI-DN-").count(), 4, "{state}");
        assert!(call("ADD").success());
        assert_eq!(saved(&world.node, name), state);
        assert!(call("CHECK").success());
        // Half of the rules are missing, as after a killed DEL.
        let half = format!(
            "set -e; t='iptables-{name} -t nat'; chain=$($t -S | sed -n 's/^-N \\(CNI-DN-.*\\)/\\1/p')
            $t -F CNI-HOSTPORT-DNAT; $t -F $chain; $t -X $chain"
        );
        world.node.sh(&half).unwrap();
        assert!(!call("CHECK").success());
        assert!(call("ADD").success());
        assert_same(&saved(&world.node, name), &state, name);
    }
}

#[test]
fn connections_with_iptables() {
    let world = World::new();
    let network = versioned(json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}), true);
    // The external chain does not exist; ADD succeeds nevertheless.
    let server = world.add("server", &network, &both(8080, 80));
    let neighbour = world.add("neighbour", &network, &json!([]));
    server.serve(80);
    for v6 in [false, true] {
        let outside = &world.outside[usize::from(v6)];
        let to = SocketAddr::new(world.address(v6), 8080);
        let gateway = server.address(v6).to_string();
        let gateway = format!("server {}1", &gateway[..gateway.len() - 1]);
        for proto in ["tcp", "udp"] {
            assert_eq!(ask(outside, proto, to), Ok(format!("server {}", outside.address())));
            assert_eq!(ask(&server.pod, proto, to), Ok(gateway.clone()));
            assert_eq!(ask(&neighbour.pod, proto, to), Ok(gateway.clone()));
        }
    }
    assert_eq!(ask(&world.node, "tcp", "127.0.0.1:8080".parse().unwrap()), Ok("server 10.1.0.1".to_owned()));
    // Our nf_tables table has only the chains for packets that arrive.
    let table = world.table();
    assert!(table.contains("chain guard") && !table.contains("hostports"), "{table}");
    assert!(["0x00002000", "0x00004000"].iter().all(|bit| table.contains(bit)), "{table}");
    assert_eq!(server.check(), Ok(()));
    // ADD warns about the missing chain.
    let output = world.call("ADD", &server.attachment, &server.config());
    assert!(output.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("externalSetMarkChain \"KUBE-MARK-MASQ\" does not exist"), "{said}");
    // DEL deletes all rules.
    server.del();
    assert!(!saved(&world.node, "nft").contains("CNI-DN-"));
    assert!(silent(&world.outside[0], "tcp", SocketAddr::new(world.address(false), 8080)));
}

#[test]
fn check_notices_more_changes_than_the_reference() {
    for name in VARIANTS {
        let (world, programs) = (World::new(), variant(name));
        let ctx = world.with_programs(programs.path());
        let (network, attachment, _) = attached(&ctx);
        let runtime = ctx.runtime();
        let whole = world.node.tool(&format!("iptables-{name}-save"), &["-t", "nat"]).unwrap();
        for change in [
            "-F CNI-HOSTPORT-MASQ",
            "-F CNI-HOSTPORT-SETMARK",
            "-D PREROUTING 1",
            "-D OUTPUT 1",
            "-D POSTROUTING 1",
            "-D CNI-HOSTPORT-DNAT 1",
            "-A CNI-HOSTPORT-DNAT -p tcp -j $chain",
            "-D $chain 2",
            "-A $chain -p tcp --dport 1 -j ACCEPT",
            "-F",
        ] {
            runtime.check(&network, &attachment).unwrap_or_else(|error| panic!("before {change}: {error}"));
            let script = format!(
                "chain=$(iptables-{name} -t nat -S | sed -n 's/^-N \\(CNI-DN-.*\\)/\\1/p'); iptables-{name} -t nat {change}"
            );
            world.node.sh(&script).unwrap();
            assert!(runtime.check(&network, &attachment).is_err(), "{name} {change}");
            world.node.write_file("/run/saved", &whole).unwrap();
            world.node.sh(&format!("iptables-{name}-restore < /run/saved")).unwrap();
        }
    }
}

#[test]
fn check_del_and_gc_handle_iptables_rules_of_the_reference() {
    for name in VARIANTS {
        let programs = variant(name);
        let world = World::by(Origin::Reference);
        let theirs = world.with_programs(programs.path());
        let ours = theirs.with_plugins(plugins(Origin::Ours));
        let (go, us) = (theirs.runtime(), ours.runtime());
        let network = network_of("pmnet", "cni0", 0, "1.0.0", json!({}));
        let attachment = |pod: &str| {
            let pod = world.pod(pod);
            let mappings = if pod.name() == "one" { mappings(name) } else { both(7000, 70) };
            pod.attachment("eth0").with_capability("portMappings", mappings)
        };
        let (one, two) = (attachment("one"), attachment("two"));
        go.add(&network, &two).unwrap();
        let before = saved(&world.node, name);
        go.add(&network, &one).unwrap();
        // Chains of the old layout, used before 2019.
        let old = one_chain(&world, name).replace("DN", "SN");
        world
            .node
            .sh(&format!(
                "iptables-{name} -t nat -N CNI-HOSTPORT-SNAT; iptables-{name} -t nat -N {old};
            iptables-{name} -t nat -A CNI-HOSTPORT-SNAT -s 127.0.0.1 -j {old}"
            ))
            .unwrap();
        us.check(&network, &one).unwrap();
        us.check(&network, &two).unwrap();
        // Our default backend is nftables, but CHECK finds the rules of iptables.
        assert!(!world.listing().contains("cni_portmap"));
        us.del(&network, &one).unwrap();
        let after = saved(&world.node, name).replace("iptables :CNI-HOSTPORT-SNAT -\n", "");
        assert_same(&after, &before, name);
        us.check(&network, &two).unwrap();
        let newest = network_of("pmnet", "cni0", 0, "1.1.0", json!({}));
        us.gc(&newest, Some(&[ValidAttachment::new("two", "eth0")])).unwrap();
        assert!(saved(&world.node, name).contains("CNI-DN-"));
        // As after a lost DEL: libcni has no cached results.
        world.node.sh("rm -rf /var/lib/cni/results").unwrap();
        us.gc(&newest, Some(&[])).unwrap();
        assert!(!saved(&world.node, name).contains("CNI-DN-"), "{}", saved(&world.node, name));
    }
}

/// The chain of the container that has a mapping of port 8083.
fn one_chain(world: &World, name: &str) -> String {
    let listing =
        world.node.tool(&format!("iptables-{name}"), &["-t", "nat", "-S", "CNI-HOSTPORT-DNAT"]).unwrap();
    let line = listing.lines().find(|line| line.contains("8083")).unwrap();
    line.rsplit(' ').next().unwrap().to_owned()
}

/// The commands of the reference's nftables backend, version 1.9, or version 1.8 if `old`.
fn replay(id: &str, v4: &str, v6: &str, old: bool) -> String {
    let hosts = if old { "hostip_hostports" } else { "hostports" };
    let local = if old { "" } else { "fib daddr type local" };
    let table = |family: &str, ip: &str, address: &str, host: &str, loopback: &str| {
        let bracketed = if family == "ip6" { format!("[{address}]") } else { address.to_owned() };
        format!(
            "add table {family} cni_hostport {{ comment \"CNI portmap plugin\"; }}
            add chain {family} cni_hostport hostports
            add chain {family} cni_hostport hostip_hostports
            add chain {family} cni_hostport hostports_all
            flush chain {family} cni_hostport hostports_all
            add rule {family} cni_hostport hostports_all jump hostip_hostports
            add rule {family} cni_hostport hostports_all jump hostports
            add chain {family} cni_hostport prerouting {{ type nat hook prerouting priority -100; }}
            flush chain {family} cni_hostport prerouting
            add rule {family} cni_hostport prerouting {local} jump hostports_all
            add chain {family} cni_hostport output {{ type nat hook output priority -100; }}
            flush chain {family} cni_hostport output
            add rule {family} cni_hostport output fib daddr type local jump hostports_all
            add chain {family} cni_hostport masquerading {{ type nat hook postrouting priority 100; }}
            add rule {family} cni_hostport hostports tcp dport 8080 dnat to {bracketed}:80 comment \"{id}\"
            add rule {family} cni_hostport hostports udp dport 8080 dnat to {bracketed}:80 comment \"{id}\"
            add rule {family} cni_hostport {hosts} {ip} daddr {host} tcp dport 8083 dnat to {bracketed}:83 comment \"{id}\"
            add rule {family} cni_hostport masquerading {ip} saddr {address} {ip} daddr {address} masquerade comment \"{id}\"
            {loopback}\n"
        )
    };
    let loopback = format!(
        "add rule ip cni_hostport masquerading ip saddr 127.0.0.1 ip daddr {v4} masquerade comment \"{id}\""
    );
    table("ip", "ip", v4, "192.0.2.1", &loopback) + &table("ip6", "ip6", v6, "2001:db8::1", "")
}

fn replayed() -> Value {
    let mut mappings = both(8080, 80);
    let hosts = [mapping("tcp", "192.0.2.1", 8083, 83), mapping("tcp", "2001:db8::1", 8083, 83)];
    mappings.as_array_mut().unwrap().extend(hosts);
    mappings
}

#[test]
fn check_del_and_gc_handle_nftables_rules_of_the_reference() {
    for old in [false, true] {
        let world = World::new();
        let one = world.add("one", &pods(json!({})), &replayed());
        one.serve(80);
        let (v4, v6) = (one.address(false).to_string(), one.address(true).to_string());
        world.nft("delete table inet cni_portmap");
        world.nft(&replay("two", "10.1.0.9", "fd00::9", old));
        let others = world.node.tool("nft", &["-s", "list", "ruleset"]).unwrap();
        world.nft(&replay("one", &v4, &v6, old));
        assert_eq!(one.check(), Ok(()));
        for broken in [
            "flush chain ip cni_hostport prerouting",
            "flush chain ip6 cni_hostport hostports",
            "flush chain ip cni_hostport masquerading",
        ] {
            world.nft(broken);
            assert!(one.check().is_err(), "{broken}");
            world.nft("delete table ip cni_hostport; delete table ip6 cni_hostport");
            world.nft(&replay("two", "10.1.0.9", "fd00::9", old));
            world.nft(&replay("one", &v4, &v6, old));
            assert_eq!(one.check(), Ok(()));
        }
        one.del();
        assert_eq!(world.node.tool("nft", &["-s", "list", "ruleset"]).unwrap(), others);
        // GC deletes the rules of an unknown container, but not those of a live one on another network.
        let alive = world.add("alive", &more(json!({})), &both(9000, 90));
        world.nft(&replay("alive", "10.1.1.2", "fd00:1::2", old));
        world.runtime().gc(&pods(json!({})), Some(&[])).unwrap();
        let left = world.listing();
        assert!(!left.contains("comment \"two\"") && left.contains("comment \"alive\""), "{left}");
        drop(alive);
    }
}

#[test]
fn eight_concurrent_dels_of_a_container_of_the_reference() {
    let world = World::new();
    for round in 0..3 {
        let base = world.add(&format!("one{round}"), &pods(json!({"backend": "iptables"})), &both(8080, 80));
        let (v4, v6) = (base.address(false).to_string(), base.address(true).to_string());
        world.nft(&replay(base.pod.name(), &v4, &v6, false));
        let (world, base) = (&world, &base);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(move || {
                    world.del(&base.attachment, &base.config());
                });
            }
        });
        assert!(!world.listing().contains("comment \"one"), "{}", world.listing());
        assert!(!saved(&world.node, "nft").contains("CNI-DN-"));
    }
}

#[test]
fn sixteen_concurrent_adds_with_iptables() {
    for (name, programs) in [("nft", variant("nft")), ("nft", slow_nft()), ("legacy", variant("legacy"))] {
        let world = World::new();
        let ctx = world.with_programs(programs.path());
        let base = world.add("base", &pods(json!({"backend": "iptables"})), &json!([]));
        let call = |verb: &'static str, number: u16| {
            let mut config = base.config();
            config["prevResult"]["ips"] =
                json!([{"address": format!("10.1.0.{}/24", number + 50), "interface": 2}]);
            config["runtimeConfig"]["portMappings"] = both(number + 8000, 80);
            let attachment = Attachment::new(format!("pod{number}"), base.attachment.netns.clone(), "eth0");
            let output = ctx.call(verb, &attachment, &config);
            assert!(output.success(), "{name} {verb} {number}: {}", String::from_utf8_lossy(&output.stdout));
        };
        thread::scope(|scope| {
            for number in 1..=16 {
                let call = &call;
                scope.spawn(move || call("ADD", number));
            }
        });
        let state = saved(&world.node, name);
        assert_eq!(state.matches("-j CNI-DN-").count(), 32, "{state}");
        for jump in [
            "-A PREROUTING",
            "-A OUTPUT",
            "-A POSTROUTING",
            "-A CNI-HOSTPORT-SETMARK",
            "-A CNI-HOSTPORT-MASQ",
        ] {
            assert_eq!(state.matches(jump).count(), 1, "{jump}: {state}");
        }
        thread::scope(|scope| {
            for number in 1..=16 {
                let call = &call;
                scope.spawn(move || call("DEL", number));
            }
        });
        assert!(!saved(&world.node, name).contains("CNI-DN-"));
    }
}
