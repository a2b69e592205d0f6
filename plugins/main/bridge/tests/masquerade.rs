//! Masquerading in the kernel, each test in its own network namespace. Needs root, `nft` and `iptables`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod node;

use std::net::IpAddr;
use std::sync::Barrier;
use std::thread;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, ValidAttachment};
use cni_lab::testing::isolated;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Rule, rules};
use ferrule_masquerade::plan::{CHECKS, POSTROUTING, TABLE, chain_of, comment};
use ferrule_masquerade::{self as masquerade, Masquerade, delete, gc};
use ipnetwork::IpNetwork;

use node::{Namespace, run, succeeds};

const ONE: Attachment<'_> = Attachment { network: "unit-test", ifname: "eth0", container_id: "one" };
const TWO: Attachment<'_> = Attachment { network: "unit-test", ifname: "eth0", container_id: "two" };
const OTHER: Attachment<'_> = Attachment { network: "other", ifname: "eth0", container_id: "one" };

fn chain(of: &Attachment<'_>) -> String {
    chain_of(of.network, of.container_id)
}

/// The input of `nft -f -` on the first ADD of the reference plugin (1.6 and later).
const REFERENCE: &str = r#"
add table inet cni_plugins_masquerade { comment "Masquerading for plugins from github.com/containernetworking/plugins" ; }
add chain inet cni_plugins_masquerade masq_checks { comment "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet" ; }
add chain inet cni_plugins_masquerade postrouting { type nat hook postrouting priority 100 ; }
flush chain inet cni_plugins_masquerade postrouting
add rule inet cni_plugins_masquerade postrouting ip daddr == 224.0.0.0/4  return
add rule inet cni_plugins_masquerade postrouting ip6 daddr == ff00::/8  return
add rule inet cni_plugins_masquerade postrouting goto masq_checks
add rule inet cni_plugins_masquerade masq_checks ip saddr == 10.0.0.2 ip daddr != 10.0.0.0/24 masquerade comment "6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one"
add rule inet cni_plugins_masquerade masq_checks ip6 saddr == fd00:1::2 ip6 daddr != fd00:1::/60 masquerade comment "6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one"
"#;

const LISTED: &str = r#"table inet cni_plugins_masquerade {
	comment "Masquerading for plugins from github.com/containernetworking/plugins"
	chain masq_checks {
		comment "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"
		ip saddr 10.0.0.2 ip daddr != 10.0.0.0/24 masquerade comment "6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one"
		ip6 saddr fd00:1::2 ip6 daddr != fd00:1::/60 masquerade comment "6fd94d501e58f0aa-287fc69eff0574a2, net: unit-test, if: eth0, id: one"
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip daddr 224.0.0.0/4 return
		ip6 daddr ff00::/8 return
		goto masq_checks
	}
}
"#;

fn nets(texts: &[&str]) -> Vec<IpNetwork> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn add(socket: &mut Socket, of: &Attachment<'_>, addresses: &[IpNetwork]) -> Result<(), CniError> {
    masquerade::add(socket, &Masquerade::default(), of, addresses)
}

fn check(
    socket: &mut Socket,
    of: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<Vec<IpNetwork>, CniError> {
    masquerade::check(socket, &Masquerade::default(), of, addresses)
}

fn socket() -> Socket {
    Socket::netfilter().unwrap()
}

fn ruleset() -> String {
    run("nft", &["list", "ruleset"])
}

/// The rules of both chains, without their handles.
fn kernel_rules(socket: &mut Socket) -> Vec<Rule> {
    let mut all = rules(socket, TABLE, POSTROUTING).unwrap();
    all.extend(rules(socket, TABLE, CHECKS).unwrap());
    all.into_iter().map(|rule| Rule { handle: 0, ..rule }).collect()
}

fn valid(container_id: &str) -> ValidAttachment {
    ValidAttachment { container_id: container_id.to_owned(), ifname: "eth0".to_owned() }
}

/// Makes the state of the reference's iptables backend, with the commands that it runs.
fn reference_iptables(program: &str, key: &Attachment<'_>, address: &str) {
    let net: IpNetwork = address.parse().unwrap();
    let (ip, subnet) = (net.ip().to_string(), format!("{}/{}", net.network(), net.prefix()));
    let multicast = if net.is_ipv6() { "ff00::/8" } else { "224.0.0.0/4" };
    let chain = chain(key);
    let comment = format!("name: {:?} id: {:?}", key.network, key.container_id);
    let append = |args: &[&str]| {
        let head = ["-t", "nat", "--wait", "-A"];
        let tail = ["-m", "comment", "--comment", &comment];
        run(program, &[&head, args, &tail].concat());
    };
    let _ = succeeds(program, &["-t", "nat", "--wait", "-N", &chain]);
    append(&[&chain, "-d", &subnet, "-j", "ACCEPT"]);
    append(&[&chain, "!", "-d", multicast, "-j", "MASQUERADE"]);
    append(&["POSTROUTING", "-s", &ip, "-j", &chain]);
}

/// `iptables-save` without its dates and counters.
fn saved(program: &str) -> String {
    let saved = run(&format!("{program}-save"), &["-t", "nat"]);
    let steady = |line: &&str| !line.starts_with('#');
    let plain = |line: &str| line.split(" [").next().unwrap_or(line).to_owned();
    saved.lines().filter(steady).map(plain).collect::<Vec<_>>().join("\n")
}

#[test]
fn state_equals_the_references() {
    let addresses = nets(&["10.0.0.2/24", "fd00:1::2/60"]);
    let wanted = isolated(|| {
        run("nft", &[REFERENCE]);
        kernel_rules(&mut socket())
    });
    isolated(move || {
        let mut socket = socket();
        add(&mut socket, &ONE, &addresses).unwrap();
        assert_eq!(ruleset(), LISTED);
        assert_eq!(kernel_rules(&mut socket), wanted);
        assert!(run("nft", &["-j", "list", "ruleset"]).contains("\"masquerade\""));
        assert_eq!(check(&mut socket, &ONE, &addresses).unwrap(), []);
        // A second attachment finds the table and adds only its rule.
        add(&mut socket, &TWO, &nets(&["10.0.0.3/20"])).unwrap();
        assert_eq!(kernel_rules(&mut socket).len(), wanted.len() + 1);
        delete(&mut socket, &TWO).unwrap();
        assert_eq!(ruleset(), LISTED);
    });
}

#[test]
fn reference_state_is_recognized_and_extended() {
    isolated(|| {
        run("nft", &[REFERENCE]);
        let mut socket = socket();
        let addresses = nets(&["10.0.0.2/24", "fd00:1::2/60"]);
        assert_eq!(check(&mut socket, &ONE, &addresses).unwrap(), []);
        add(&mut socket, &TWO, &nets(&["10.0.0.3/24"])).unwrap();
        delete(&mut socket, &ONE).unwrap();
        assert_eq!(check(&mut socket, &ONE, &addresses).unwrap(), addresses);
        assert_eq!(check(&mut socket, &TWO, &nets(&["10.0.0.3/24"])).unwrap(), []);
        // The reference adds its rules to ours.
        run("nft", &[REFERENCE]);
        assert_eq!(check(&mut socket, &ONE, &addresses).unwrap(), []);
        assert_eq!(rules(&mut socket, TABLE, POSTROUTING).unwrap().len(), 3);
    });
}

#[test]
fn concurrent_first_adds_make_the_base_chain_once() {
    for _ in 0..5 {
        isolated(|| {
            let here = Namespace::current();
            let start = Barrier::new(16);
            thread::scope(|scope| {
                for number in 0..16_u8 {
                    let (here, start) = (&here, &start);
                    scope.spawn(move || {
                        here.enter();
                        let mut socket = socket();
                        let id = format!("pod{number}");
                        let key = Attachment { container_id: &id, ..ONE };
                        let address = IpNetwork::new(IpAddr::from([10, 0, 0, number + 2]), 24).unwrap();
                        start.wait();
                        add(&mut socket, &key, &[address]).unwrap();
                    });
                }
            });
            let mut socket = socket();
            assert_eq!(rules(&mut socket, TABLE, POSTROUTING).unwrap().len(), 3);
            assert_eq!(rules(&mut socket, TABLE, CHECKS).unwrap().len(), 16);
        });
    }
}

#[test]
fn concurrent_dels_of_one_attachment_succeed() {
    for _ in 0..5 {
        isolated(|| {
            add(&mut socket(), &ONE, &nets(&["10.0.0.2/24", "fd00::2/64"])).unwrap();
            add(&mut socket(), &TWO, &nets(&["10.0.0.3/24"])).unwrap();
            reference_iptables("iptables-nft", &ONE, "10.0.0.2/24");
            let here = Namespace::current();
            let start = Barrier::new(8);
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        here.enter();
                        let mut socket = socket();
                        start.wait();
                        delete(&mut socket, &ONE).unwrap();
                    });
                }
            });
            assert_eq!(rules(&mut socket(), TABLE, CHECKS).unwrap().len(), 1);
            assert!(!saved("iptables-nft").contains("CNI-"));
        });
    }
}

#[test]
fn del_misses_no_rule_during_concurrent_changes() {
    isolated(|| {
        // More rules than one datagram of a dump holds, so that a change can interrupt the dump.
        let steady: Vec<_> =
            (0..120_u8).map(|n| IpNetwork::new(IpAddr::from([10, 9, 0, n]), 24).unwrap()).collect();
        add(&mut socket(), &OTHER, &steady).unwrap();
        let here = Namespace::current();
        thread::scope(|scope| {
            for number in 0..8_u8 {
                let here = &here;
                scope.spawn(move || {
                    here.enter();
                    for round in 0..20_u8 {
                        let id = format!("pod{number}-{round}");
                        let key = Attachment { container_id: &id, ..ONE };
                        let address = IpNetwork::new(IpAddr::from([10, 0, number, round]), 16).unwrap();
                        let mut socket = socket();
                        add(&mut socket, &key, &[address]).unwrap();
                        delete(&mut socket, &key).unwrap();
                        assert_eq!(check(&mut socket, &key, &[address]).unwrap(), [address]);
                    }
                });
            }
        });
        assert_eq!(rules(&mut socket(), TABLE, CHECKS).unwrap().len(), steady.len());
    });
}

#[test]
fn del_and_gc_create_nothing() {
    isolated(|| {
        delete(&mut socket(), &ONE).unwrap();
        gc(&mut socket(), "unit-test", &[]).unwrap();
        assert_eq!(check(&mut socket(), &ONE, &nets(&["10.0.0.2/24"])).unwrap().len(), 1);
        add(&mut socket(), &ONE, &[]).unwrap();
        assert_eq!(ruleset(), "");
    });
}

#[test]
fn add_repairs_a_broken_table() {
    isolated(|| {
        let mut socket = socket();
        let one = nets(&["10.0.0.2/24"]);
        let two = nets(&["10.0.0.3/24"]);
        let table = "inet cni_plugins_masquerade";
        let breakages = [
            format!("flush chain {table} postrouting"),
            format!("flush chain {table} postrouting; delete chain {table} postrouting"),
            format!("flush chain {table} postrouting; delete chain {table} masq_checks"),
            format!("delete table {table}; add table {table}"),
            format!("flush chain {table} postrouting; add rule {table} postrouting goto masq_checks"),
        ];
        for breakage in breakages {
            add(&mut socket, &ONE, &one).unwrap();
            run("nft", &[breakage.as_str()]);
            add(&mut socket, &TWO, &two).unwrap();
            assert_eq!(check(&mut socket, &TWO, &two).unwrap(), [], "{breakage}");
            let postrouting = rules(&mut socket, TABLE, POSTROUTING).unwrap();
            assert_eq!(postrouting.len(), 3, "{breakage}");
            delete(&mut socket, &ONE).unwrap();
            delete(&mut socket, &TWO).unwrap();
        }
        // CHECK reports the broken chain if no ADD has repaired it.
        add(&mut socket, &ONE, &one).unwrap();
        run("nft", &[&format!("flush chain {table} postrouting")]);
        assert_eq!(check(&mut socket, &ONE, &one).unwrap(), one);
    });
}

#[test]
fn gc_keeps_valid_attachments_and_other_networks() {
    isolated(|| {
        let mut socket = socket();
        for (key, address) in [(ONE, "10.0.0.2/24"), (TWO, "10.0.0.3/24"), (OTHER, "10.1.0.2/24")] {
            add(&mut socket, &key, &nets(&[address])).unwrap();
            for program in ["iptables-nft", "iptables-legacy"] {
                reference_iptables(program, &key, address);
            }
        }
        // More rules than one batch holds, and more than the socket's buffer could acknowledge.
        let many: Vec<_> =
            (0..300_u32).map(|n| IpNetwork::new(IpAddr::from(n.to_be_bytes()), 8).unwrap()).collect();
        for part in many.chunks(100) {
            add(&mut socket, &Attachment { ifname: "eth1", ..ONE }, part).unwrap();
        }
        gc(&mut socket, "unit-test", &[valid("two")]).unwrap();
        let comments: Vec<_> =
            rules(&mut socket, TABLE, CHECKS).unwrap().into_iter().filter_map(|rule| rule.comment).collect();
        assert_eq!(comments, [comment(&TWO), comment(&OTHER)]);
        for program in ["iptables-nft", "iptables-legacy"] {
            let saved = saved(program);
            assert!(!saved.contains(&chain(&ONE)), "{saved}");
            assert!(saved.contains(&chain(&TWO)) && saved.contains(&chain(&OTHER)), "{saved}");
        }
        gc(&mut socket, "unit-test", &[]).unwrap();
        gc(&mut socket, "other", &[valid("one")]).unwrap();
        assert_eq!(rules(&mut socket, TABLE, CHECKS).unwrap().len(), 1);
        assert!(saved("iptables-nft").contains(&chain(&OTHER)));
    });
}

/// CHECK recognizes rules that the iptables programs made in the reference's layout, DEL removes them, and
/// chains of other programs stay.
fn reference_layout(v4: &'static str, v6: &'static str) {
    isolated(move || {
        let families = [(v4, "10.0.0.2/24"), (v6, "fd00::2/64")];
        for (program, _) in families {
            run(program, &["-t", "nat", "-N", "KUBE-POSTROUTING"]);
            run(program, &["-t", "nat", "-A", "POSTROUTING", "-j", "KUBE-POSTROUTING"]);
            run(program, &["-t", "nat", "-A", "KUBE-POSTROUTING", "-j", "MASQUERADE", "--random-fully"]);
        }
        let mut socket = socket();
        for (program, address) in families {
            reference_iptables(program, &TWO, address);
        }
        let before = families.map(|(program, _)| saved(program));
        for (program, address) in families {
            reference_iptables(program, &ONE, address);
            // Before 2019 the reference used the whole subnet as the source.
            let chain = chain(&ONE);
            run(program, &["-t", "nat", "-A", "POSTROUTING", "-s", address, "-j", &chain]);
        }
        assert_ne!(families.map(|(program, _)| saved(program)), before);
        let addresses = nets(&["10.0.0.2/24", "fd00::2/64", "10.0.0.9/24"]);
        assert_eq!(check(&mut socket, &ONE, &addresses).unwrap(), nets(&["10.0.0.9/24"]));
        delete(&mut socket, &ONE).unwrap();
        assert_eq!(families.map(|(program, _)| saved(program)), before);
        delete(&mut socket, &ONE).unwrap();
        assert_eq!(check(&mut socket, &TWO, &addresses[..2]).unwrap(), []);
        // Other programs can still add rules.
        for (program, _) in families {
            run(program, &["-t", "nat", "-A", "KUBE-POSTROUTING", "-j", "RETURN"]);
        }
    });
}

#[test]
fn reference_rules_in_iptables_nft_are_recognized_and_removed() {
    reference_layout("iptables-nft", "ip6tables-nft");
}

#[test]
fn reference_rules_in_iptables_legacy_are_recognized_and_removed() {
    reference_layout("iptables-legacy", "ip6tables-legacy");
}

#[test]
fn chain_without_a_jump_is_removed() {
    isolated(|| {
        for program in ["iptables-nft", "iptables-legacy"] {
            run(program, &["-t", "nat", "-N", &chain_of("unit-test", "one")]);
        }
        delete(&mut socket(), &ONE).unwrap();
        for program in ["iptables-nft", "iptables-legacy"] {
            assert!(!saved(program).contains("CNI-"));
        }
    });
}

#[test]
fn no_process_is_started() {
    let directory = node::watched_programs();
    let this = std::env::current_exe().unwrap();
    let child = std::process::Command::new(this)
        .args(["--ignored", "--exact", "without_programs"])
        .env("PATH", directory.path())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&child.stdout);
    assert!(stdout.contains("1 passed"), "{stdout}");
    assert!(!directory.path().join("started").exists());
}

#[test]
#[ignore = "run by no_process_is_started, in a process with its own PATH"]
fn without_programs() {
    isolated(|| {
        let mut socket = socket();
        let addresses = nets(&["10.0.0.2/24", "fd00::2/64"]);
        add(&mut socket, &ONE, &addresses).unwrap();
        assert_eq!(check(&mut socket, &ONE, &addresses).unwrap(), []);
        assert_eq!(check(&mut socket, &TWO, &addresses).unwrap(), addresses);
        gc(&mut socket, "unit-test", &[valid("one")]).unwrap();
        delete(&mut socket, &ONE).unwrap();
    });
}
