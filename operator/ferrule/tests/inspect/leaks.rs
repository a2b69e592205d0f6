//! A node with 40 living containers of mixed origin, and leaks of 16 kinds: each is named and removed, and nothing else
//! changes.

use std::net::SocketAddr;
use std::thread;

use cni_lab::testing::{Origin, serve, tcp};
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use cni_runner::Network;
use serde_json::json;

use crate::fixture::{Container, Fixture, attachment, network};

/// Per origin; see [`add`].
const LIVING: [(Made, u16); 3] = [(Made::Ours, 24), (Made::Theirs, 10), (Made::Newer, 6)];
/// The calls of ADD that run at once.
const AT_ONCE: usize = 4;
/// The cache belongs to the runtime, and the reference's host-local keeps the last address.
const NOT_OURS: [&str; 3] = ["/var/lib/cni/results", "last_reserved_ip", ".ferrule"];

/// The tables of the reference's nftables backends (portmap from 1.6, masquerading from 1.7), as it has `nft` write them.
const NEWER: &str = "nft -f - <<END
table ip cni_hostport {
    chain hostports { }
    chain hostip_hostports { }
    chain prerouting { type nat hook prerouting priority dstnat; fib daddr type local jump hostports; }
    chain masquerading { type nat hook postrouting priority srcnat; }
}
table inet cni_plugins_masquerade {
    chain masq_checks { }
    chain postrouting { type nat hook postrouting priority srcnat; ip daddr 224.0.0.0/4 return
        ip6 daddr ff00::/8 return
        goto masq_checks
    }
}
END";

/// Who has made a container's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Ours,
    /// Debian's version 1.1.1.
    Theirs,
    /// The reference from 1.7: its nftables layouts, replayed.
    Newer,
}

fn add(f: &Fixture, made: Made, name: &str, port: u16) -> Container {
    match made {
        Made::Ours => f.add(Origin::Ours, name, port),
        Made::Theirs => f.add(Origin::Reference, name, port),
        Made::Newer => {
            // The other plugins are the same since 0.9.
            let mut plugins = network(Origin::Reference).plugins;
            plugins[0].insert("ipMasq".to_owned(), false.into());
            plugins[0].insert("bridge".to_owned(), "br-newer".into());
            plugins[0].insert("ipam".to_owned(), json!({"type": "host-local", "subnet": "10.213.3.0/24"}));
            plugins.retain(|plugin| plugin["type"] != "portmap");
            let network = json!({"name": "newer", "cniVersion": "1.0.0", "plugins": plugins});
            let container =
                f.add_to(Origin::Reference, &Network::from_value(&network).unwrap(), name, |pod| {
                    attachment(pod, port)
                });
            let address = &container.address;
            add_host_port(f, name, port, address);
            let hash = |text: &str| {
                f.node.sh(&format!("printf %s {text} | sha512sum | cut -c -16")).unwrap().trim().to_owned()
            };
            let comment = format!(
                "{}-{}, net: newer, if: eth0, id: {name}",
                hash("newer"),
                hash(&format!("eth0:{name}"))
            );
            let rule =
                format!("ip saddr {address} ip daddr != 10.213.3.0/24 masquerade comment \\\"{comment}\\\"");
            f.node.sh(&format!("nft \"add rule inet cni_plugins_masquerade masq_checks {rule}\"")).unwrap();
            container
        }
    }
}

/// Adds a rule of the reference's portmap from 1.6 on.
fn add_host_port(f: &Fixture, id: &str, port: u16, address: &str) {
    let rule = format!("tcp dport {port} dnat to {address}:80 comment \\\"{id}\\\"");
    f.node.sh(&format!("nft \"add rule ip cni_hostport hostports {rule}\"")).unwrap();
}

/// Adds the living containers, several at once.
fn add_living(f: &Fixture) -> Vec<(Container, u16)> {
    let kinds = LIVING.iter().flat_map(|(made, count)| (0..*count).map(|_| *made));
    let all: Vec<(Made, u16)> = kinds.zip(18001..).collect();
    let add = |(made, port): &(Made, u16)| (add(f, *made, &format!("inspect-live-{port}"), *port), *port);
    // The first one of each origin makes its bridge and chains.
    let is_first =
        |index: &usize| all[*index].0 != all.get(index.wrapping_sub(1)).map_or(Made::Newer, |one| one.0);
    let (first, others): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(is_first);
    let mut living: Vec<_> = first.iter().map(|index| add(&all[*index])).collect();
    let shares: Vec<Vec<usize>> =
        (0..AT_ONCE).map(|share| others.iter().copied().skip(share).step_by(AT_ONCE).collect()).collect();
    thread::scope(|scope| {
        let work = |share: Vec<usize>| {
            scope.spawn(|| share.into_iter().map(|index| add(&all[index])).collect::<Vec<_>>())
        };
        let threads: Vec<_> = shares.into_iter().map(work).collect();
        threads.into_iter().for_each(|thread| living.extend(thread.join().unwrap()));
    });
    living
}

#[test]
fn each_is_named_and_removed_and_the_living_notice_nothing() {
    let f = Fixture::new();
    let client = f.node.outside_client("192.0.2.0/24").unwrap();
    f.node.sh(NEWER).unwrap();
    f.node.sh("mkdir -p /run/cni/dhcp.leases /run/cni/host-device /var/lib/cni/flannel").unwrap();
    // Foreign files in tuning's folder.
    for foreign in ["my_settings.json", "my_settings.json.bak", "my_settings.json.0123456789abcdef"] {
        f.node.write_file(format!("/run/cni/tuning/{foreign}"), r#"{"cluster": 1, "mtu": 1500}"#).unwrap();
    }
    f.node.write_file("/var/lib/cni/flannel/notes", r#"{"name": "other"}"#).unwrap();
    let living = add_living(&f);
    for (container, _) in &living {
        serve(&container.pod, container.pod.name(), 80);
    }
    let snapshot = || Snapshot::take(&f.node).unwrap().ignoring(&NOT_OURS);
    let before = snapshot();
    assert_eq!(f.leaks(), Vec::<String>::new());

    // The first of each origin keeps its cache entry.
    for (origin, name, port, has_cache) in [
        (Origin::Ours, "inspect-dead-a", 18211, true),
        (Origin::Ours, "inspect-dead-b", 18212, false),
        (Origin::Reference, "inspect-dead-c", 18213, true),
        (Origin::Reference, "inspect-dead-d", 18214, false),
    ] {
        let container = f.add(origin, name, port);
        container.pod.delete().unwrap();
        if !has_cache {
            f.node.sh(&format!("rm /var/lib/cni/results/*-{name}-eth0")).unwrap();
        }
        add_host_port(&f, name, port + 100, &container.address);
    }
    let mut expected: Vec<(&str, &str, &str)> = Vec::new();
    for name in ["inspect-dead-a", "inspect-dead-b", "inspect-dead-c", "inspect-dead-d"] {
        expected.extend([
            ("address", name, "/var/lib/cni/networks/"),
            ("host port", name, "table cni_hostport"),
            ("mac spoof check", name, "table bridge nat"),
            ("tuning backup", name, "/run/cni/tuning/"),
        ]);
    }
    for name in ["inspect-dead-a", "inspect-dead-b"] {
        expected.extend([
            ("host port", name, "table inet cni_portmap"),
            ("masquerade", name, "table inet cni_plugins_masquerade"),
            ("firewall", name, "table inet cni_firewall"),
            ("ifb", name, "link "),
        ]);
    }
    for name in ["inspect-dead-c", "inspect-dead-d"] {
        expected
            .extend([("host port", name, "iptables nat CNI-DN-"), ("masquerade", name, "iptables nat CNI-")]);
    }
    // The reference's rules and links name no container. The cache names it or, for the hash in a link's name, the
    // reservation.
    expected.extend([
        ("firewall", "inspect-dead-c", "iptables filter CNI-FORWARD"),
        ("firewall", "-", "iptables filter CNI-FORWARD"),
        ("ifb", "inspect-dead-c", "link "),
        ("ifb", "inspect-dead-d", "link "),
    ]);
    // The veth went with its namespace.
    let record = json!({"network": "other", "containerId": "inspect-dead-e", "ifname": "net1", "name": "hd0", "kind": "veth",
        "netns": "/run/netns/none"});
    f.node.write_file("/run/cni/host-device/inspect-dead-e:net1.json", &record.to_string()).unwrap();
    let lease = json!({"key": {"network": "other", "containerId": "inspect-dead-e", "ifname": "net2"},
        "sandbox": {"path": "/run/netns/none"}, "lease": {"address": "10.9.0.2"}});
    f.node.write_file("/run/cni/dhcp.leases/inspect-dead-e:net2:other", &lease.to_string()).unwrap();
    let hash = f.node.sh("printf other | sha512sum | cut -c -16").unwrap();
    f.node.write_file(format!("/run/cni/tuning/inspect-dead-e_net3.json.{}", hash.trim()), "{").unwrap();
    // Of flannel, ours and the reference's.
    for (name, more) in [("inspect-dead-e", r#","ferrule.dev/ifname":"net4""#), ("inspect-dead-f", "")] {
        let state = format!(r#"{{"name":"other","type":"bridge"{more}}}"#);
        f.node.write_file(format!("/var/lib/cni/flannel/{name}"), &state).unwrap();
        expected.push(("flannel state", name, "/var/lib/cni/flannel/"));
    }
    expected.extend([
        ("incomplete file", "inspect-dead-e", "/run/cni/tuning/"),
        ("device", "inspect-dead-e", "/run/cni/host-device/"),
        ("lease", "inspect-dead-e", "/run/cni/dhcp.leases/"),
    ]);
    let is_named = |leaks: &[String], (kind, container, place): &(&str, &str, &str)| {
        leaks.iter().any(|leak| leak.starts_with(&format!("{kind} {container} {place}")))
    };
    // The kernel removes a namespace some time after its last user.
    let mut leaks = Vec::new();
    let is_complete = eventually(TIMEOUT, || {
        leaks = f.leaks();
        leaks.len() == expected.len()
    });
    let missing: Vec<_> = expected.iter().filter(|expected| !is_named(&leaks, expected)).collect();
    assert!(is_complete && missing.is_empty(), "missing: {missing:#?}\nfound: {leaks:#?}");

    let with_leaks = snapshot();
    // gc lists nothing while it cannot read a namespace of another test that is about to end.
    let lists_all = || f.says("gc --dry-run").matches("would remove").count() == expected.len();
    assert!(eventually(TIMEOUT, lists_all), "{}", f.says("gc --dry-run"));
    assert_eq!(with_leaks.diff(&snapshot()), "", "a dry run");
    let mut said = String::new();
    let is_clean = eventually(TIMEOUT, || {
        said += &f.says("gc --yes");
        f.leaks().is_empty()
    });
    assert!(is_clean, "{said}");
    assert_eq!(before.diff(&snapshot()), "", "{said}");

    for (container, port) in &living {
        let to: SocketAddr = (client.node_address(), *port).into();
        let answer = tcp(&client, to, TIMEOUT).unwrap();
        assert!(answer.starts_with(container.pod.name()), "{answer}");
    }
    // The reference's CHECK demands rules for IPv6 that its ADD does not make.
    let said = f.says(&format!("check --bin-dir {}", f.bin_dir(Origin::Ours).display()));
    assert!(said.contains("40 sound, 0 failed, 2 skipped"), "{said}");
}
