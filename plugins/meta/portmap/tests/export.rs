//! Export of host ports to the reference plugin. The tests need root, `nft`, `iptables` and the reference's
//! plugins.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::process::{Command, Output};

use cni_lab::Place as _;
use cni_lab::testing::{Added, Origin, ask};
use common::{PORTMAP, World, both, mapping, more, network_of, over_tcp, plugins, pods};
use serde_json::json;

fn export(world: &World, arguments: &[&str]) -> Output {
    export_as(world, "export", arguments)
}

/// Runs the export by one of its command words.
fn export_as(world: &World, command: &str, arguments: &[&str]) -> Output {
    let output = world.node.exec(Command::new(PORTMAP).arg(command).args(arguments)).unwrap();
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

fn assert_reachable(world: &World, added: &Added<'_>, port: u16) {
    let name = added.pod.name();
    for v6 in [false, true] {
        let outside = &world.outside[usize::from(v6)];
        let to = std::net::SocketAddr::new(world.address(v6), port);
        for proto in ["tcp", "udp"] {
            assert_eq!(ask(outside, proto, to), Ok(format!("{name} {}", outside.address())));
        }
        let gateway = added.address(v6).to_string();
        let gateway = format!("{name} {}1", &gateway[..gateway.len() - 1]);
        assert_eq!(ask(&added.pod, "tcp", to), Ok(gateway));
    }
    let to = std::net::SocketAddr::new([127, 0, 0, 1].into(), port);
    assert_eq!(
        ask(&world.node, "tcp", to),
        Ok(format!("{name} 10.1.{}.1", if name == "two" { 1 } else { 0 }))
    );
}

#[test]
fn export_to_nftables() {
    let world = World::new();
    let mut mappings = both(8080, 80);
    mappings.as_array_mut().unwrap().push(mapping("tcp", "192.0.2.1", 8083, 83));
    let one = world.add("one", &pods(json!({})), &mappings);
    let picky = json!({"conditionsV4": ["ip saddr != { 192.0.2.200, 192.0.2.201 }"]});
    let two = world.add("two", &more(picky), &both(8081, 80));
    let all = world.add("all", &pods(json!({"masqAll": true})), &both(8082, 80));
    one.serve(80);
    two.serve(80);
    let before = world.listing();
    assert_eq!(export(&world, &["--to", "nftables", "--dry-run"]).status.code(), Some(0));
    assert_eq!(world.listing(), before);
    assert_eq!(export(&world, &["--to", "nftables"]).status.code(), Some(0));
    assert_eq!(world.table(), "");
    let table = world.node.tool("nft", &["-s", "list", "table", "ip", "cni_hostport"]).unwrap();
    let (address, third) = (one.address(false), all.address(false));
    for rule in [
        format!("\t\ttcp dport 8080 dnat to {address}:80 comment \"one\"\n"),
        format!("\t\tip daddr 192.0.2.1 tcp dport 8083 dnat to {address}:83 comment \"one\"\n"),
        format!("\t\tip saddr {address} ip daddr {address} masquerade comment \"one\"\n"),
        format!("\t\tip saddr 127.0.0.1 ip daddr {address} masquerade comment \"one\"\n"),
        format!("\t\tip saddr 0.0.0.0/0 ip daddr {third} masquerade comment \"all\"\n"),
        format!("\t\tip saddr != 192.0.2.200 ip saddr != 192.0.2.201 tcp dport 8081 dnat to {}:80 comment \"two\"\n", two.address(false)),
        "\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t\tfib daddr type local jump hostports_all\n".to_owned(),
        "\t\tjump hostip_hostports\n\t\tjump hostports\n".to_owned(),
    ] {
        assert_eq!(table.matches(&rule).count(), 1, "{rule}{table}");
    }
    // Our CHECK and DEL treat the exported rules like those of the reference.
    assert_eq!((one.check(), all.check()), (Ok(()), Ok(())));
    let to = "192.0.2.1:8080".parse().unwrap();
    assert_eq!(ask(&world.outside[0], "tcp", to), Ok("one 192.0.2.2".to_owned()));
    assert_eq!(ask(&world.node, "tcp", "127.0.0.1:8080".parse().unwrap()), Ok("one 10.1.0.1".to_owned()));
    one.del();
    two.del();
    all.del();
    assert!(!world.listing().contains("dnat to"));
    // An export without host ports succeeds; the former command word is still accepted.
    assert_eq!(export_as(&world, "hand-back", &["--to", "nftables"]).status.code(), Some(0));
}

#[test]
fn export_to_iptables_and_del_by_the_reference() {
    let world = World::new();
    let one = world.add("one", &pods(json!({})), &both(8080, 80));
    let picky = json!({"conditionsV4": ["ip saddr != 192.0.2.200"]});
    let two = world.add("two", &more(picky), &both(8081, 80));
    one.serve(80);
    two.serve(80);
    // The default is iptables, because it is installed. Conditions in nft syntax cannot be exported to it.
    let output = export(&world, &[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("container two (interface eth0 on network more): 4 host ports stay")
    );
    assert!(!world.table().contains("pods/eth0/one") && world.table().contains("more/eth0/two"));
    assert_reachable(&world, &one, 8080);
    assert_reachable(&world, &two, 8081);
    // DEL by the reference.
    let go = world.with_plugins(plugins(Origin::Reference));
    let mut config = one.config();
    config["cniVersion"] = json!("1.0.0");
    config.as_object_mut().unwrap().remove("prevResult");
    assert!(world.listing().contains("CNI-DN-"));
    go.del(&one.attachment, &config);
    assert!(!world.listing().contains("CNI-DN-"));
    two.del();
    assert_eq!(world.count(), 0);
}

/// The reference would keep the host ports of a container that is gone for ever, and the next container with the port would be
/// unreachable.
#[test]
fn host_ports_of_gone_containers_are_dropped() {
    for backend in ["nftables", "iptables"] {
        let world = World::new();
        let network = network_of("pods", "cni0", 0, "1.0.0", json!({}));
        let go = world.with_plugins(plugins(Origin::Reference));
        let before = world.add_by(&go, "before", &network, &over_tcp(7000, 80));
        let gone = world.add("gone", &network, &both(8080, 80));
        let one = world.add("one", &network, &both(8081, 80));
        one.serve(80);
        gone.pod.delete().unwrap();
        let listed = world.listing();
        for arguments in [&["--to", backend, "--dry-run"][..], &["--to", backend]] {
            let output = export(&world, arguments);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            let dropped = "container gone (interface eth0 on network pods): 4 host ports are dropped";
            assert!(said.contains(dropped), "{said}");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("container one ") && !said.contains("gone"), "{said}");
            assert_eq!(world.listing() == listed, arguments.contains(&"--dry-run"));
        }
        let target = gone.address(false).to_string();
        let saved = world.listing();
        assert!(!saved.contains(&format!("{target}:80")) && !saved.contains("cni_portmap"), "{saved}");
        assert_reachable(&world, &one, 8081);
        if backend == "iptables" {
            // Debian's reference has no other backend. The port is free, and the ports from before the change still work.
            let next = world.add_by(&go, "next", &network, &over_tcp(8080, 80));
            for (pod, port) in [(&next, 8080), (&before, 7000)] {
                pod.serve(80);
                let to = std::net::SocketAddr::new(world.address(false), port);
                let answer = ask(&world.outside[0], "tcp", to).unwrap();
                assert!(answer.starts_with(pod.pod.name()), "{answer}");
            }
        }
    }
}

/// Nothing tells whether the container exists if another mount namespace has its namespace.
#[test]
fn host_ports_of_unknown_containers_are_exported() {
    let world = World::new();
    let one = world.add("one", &pods(json!({})), &over_tcp(8080, 80));
    let script =
        format!("umount /run/netns/one; mount -t tmpfs none /run/netns; {PORTMAP} export --to nftables");
    let output = world.node.exec(Command::new("unshare").args(["-m", "sh", "-c", &script])).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("container one "), "{output:?}");
    assert_eq!(one.check(), Ok(()));
}

#[test]
fn wrong_usage_fails_and_no_arguments_print_the_version() {
    let world = World::new();
    for command in ["export", "hand-back"] {
        assert_eq!(export_as(&world, command, &["--to", "ipvs"]).status.code(), Some(2));
    }
    let output = world.node.exec(&mut Command::new(PORTMAP)).unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("CNI portmap plugin v"));
}
