//! Every kind of leak is named and removed, and nothing else changes.

use std::net::SocketAddr;

use cni_lab::testing::{Origin, serve, tcp};
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};

use crate::fixture::{Container, Fixture};

/// The cache belongs to the runtime, and the reference's host-local keeps the last address.
const NOT_OURS: [&str; 3] = ["/var/lib/cni/results", "last_reserved_ip", ".ferrule"];

/// Rules of the reference's nftables backend (1.6 and later), as it has `nft` write them.
const HOSTPORT: &str = "
    nft add table ip cni_hostport
    nft add chain ip cni_hostport hostports
    nft add chain ip cni_hostport hostip_hostports
    nft 'add chain ip cni_hostport masquerading { type nat hook postrouting priority srcnat; }'";

#[test]
fn each_is_named_and_removed_and_the_living_notice_nothing() {
    let f = Fixture::new();
    let client = f.node.outside_client("192.0.2.0/24").unwrap();
    let living: Vec<(Container, u16)> = [
        (Origin::Ours, "inspect-live-a", 18001),
        (Origin::Reference, "inspect-live-c", 18003),
        (Origin::Reference, "inspect-live-d", 18004),
        // Opens the chain FORWARD that the reference has made.
        (Origin::Ours, "inspect-live-b", 18002),
    ]
    .map(|(origin, name, port)| (f.add(origin, name, port), port))
    .into();
    for (container, _) in &living {
        serve(&container.pod, container.pod.name(), 80);
    }
    let hostport = |id: &str, port: u16, address: &str| {
        let rule = format!("tcp dport {port} dnat to {address}:80 comment \\\"{id}\\\"");
        f.node.sh(&format!("nft \"add rule ip cni_hostport hostports {rule}\"")).unwrap();
    };
    f.node.sh(HOSTPORT).unwrap();
    hostport("inspect-live-a", 18005, &living[0].0.address);
    let snapshot = || Snapshot::take(&f.node).unwrap().ignoring(&NOT_OURS);
    let before = snapshot();
    assert_eq!(f.leaks(), Vec::<String>::new());

    // The first of each origin keeps its cache entry.
    for (origin, name, port, has_cache) in [
        (Origin::Ours, "inspect-dead-a", 18011, true),
        (Origin::Ours, "inspect-dead-b", 18012, false),
        (Origin::Reference, "inspect-dead-c", 18013, true),
        (Origin::Reference, "inspect-dead-d", 18014, false),
    ] {
        let container = f.add(origin, name, port);
        container.pod.delete().unwrap();
        if !has_cache {
            f.node.sh(&format!("rm /var/lib/cni/results/*-{name}-eth0")).unwrap();
        }
        hostport(name, port + 100, &container.address);
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
    assert!(said.contains("4 sound, 0 failed, 2 skipped"), "{said}");
}
