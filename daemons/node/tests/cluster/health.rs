//! The health endpoint proves what pods can do, and never more or less.

use std::path::Path;
use std::process::Command;

use cni_lab::{Place as _, bin_dir};
use cni_runner::Network;
use serde_json::{Value, json};

use crate::lab::{Cluster, node_path, wait};
use crate::member::{CONFLIST, Member};

const ON: &str = "--health on --main bridge";
/// Each end of the endpoint is the link that packets come from.
const ON_LINKS: &str = "--health on --main ptp --source-guard on";
const STORE: &str = "/var/lib/cni/networks/ferrule";
const NETNS: &str = "/run/netns/ferrule-health";

fn health(member: &Member) -> Value {
    let text = member.node.read_file("/run/ferrule/node/status.json").unwrap_or_default();
    serde_json::from_str::<Value>(&text).unwrap_or_default()["health"].take()
}

/// The proofs as lines: `local IPv4 proved`, `b IPv6 lost: why`.
fn proofs(member: &Member) -> Vec<String> {
    let health = health(member);
    let rows =
        ["local", "peers"].into_iter().flat_map(|key| health[key].as_array().cloned().unwrap_or_default());
    rows.map(|row| {
        let name = row["node"].as_str().filter(|name| !name.is_empty()).unwrap_or("local");
        let why = row["why"].as_str().map_or_else(String::new, |why| format!(": {why}"));
        format!("{name} {} {}{why}", row["family"].as_str().unwrap(), row["proof"].as_str().unwrap())
    })
    .collect()
}

/// Waits until a proof begins like this, for both families: `b lost: no answer`.
fn has(member: &Member, expected: &[&str]) {
    let begins = |line: &str, expected: &str, family: &str| {
        let (name, rest) = expected.split_once(' ').unwrap();
        line.starts_with(&format!("{name} {family} {rest}"))
    };
    wait(
        &format!("{}: {expected:?}", member.name),
        || proofs(member),
        |lines| {
            let is_there = |expected: &str, family| lines.iter().any(|line| begins(line, expected, family));
            expected.iter().all(|one| ["IPv4", "IPv6"].iter().all(|family| is_there(one, family)))
        },
    );
}

fn all_proved(cluster: &Cluster) {
    for member in cluster.members() {
        let others = cluster.members().into_iter().filter(|other| other.name != member.name);
        let expected: Vec<String> = others.map(|other| format!("{} proved", other.name)).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).chain(["local proved"]).collect();
        has(member, &expected);
    }
}

fn addresses(member: &Member) -> Vec<String> {
    let health = health(member);
    health["addresses"].as_array().into_iter().flatten().map(|ip| ip.as_str().unwrap().to_owned()).collect()
}

/// The addresses in the pods' store.
fn reserved(member: &Member) -> Vec<String> {
    let names = member.sh(&format!("ls {STORE} 2>/dev/null || true"));
    names
        .lines()
        .filter(|name| name.contains(['.', ':']) && !name.starts_with("last"))
        .map(str::to_owned)
        .collect()
}

fn published(cluster: &Cluster, member: &Member) -> Value {
    let object = cluster.store.get(&node_path(member.name)).unwrap();
    let text = object["metadata"]["annotations"]["ferrule.dev/health"].as_str().unwrap_or("null");
    serde_json::from_str(text).unwrap()
}

/// What `ferrule test` says there.
fn ferrule_test(member: &Member) -> String {
    let folder = bin_dir().unwrap();
    let mut first = Command::new("sleep");
    first.arg("infinity");
    let init = member.node.spawn(first).unwrap();
    let words = format!("test --conf-dir /run/cni/net.d --bin-dir {} --init {}", folder.display(), init.id());
    member.sh(&format!("{}/ferrule {words} 2>&1 || true", folder.display()))
}

#[test]
fn each_fault_is_found_where_it_is() {
    let mut cluster = Cluster::started(ON_LINKS);
    all_proved(&cluster);
    let Cluster { a, b, .. } = &cluster;
    assert_eq!(addresses(a), ["10.244.1.254", "fd00:244:1:0:ffff:ffff:ffff:ffff"]);
    let one = published(&cluster, a);
    assert_eq!((&one["addresses"], &one["mtu"]), (&json!(addresses(a)), &json!(1450)));

    // Nothing is forwarded: pods of a reach only their gateway.
    a.sh("nft add table inet wall; nft add chain inet wall f '{ type filter hook forward priority 0; policy drop; }'");
    has(a, &["local lost: IPv", "b lost: no answer", "c lost: no answer"]);
    has(b, &["local proved", "a lost", "c proved"]);
    assert!(proofs(a)[0].contains("rule of the hook forward"), "{:?}", proofs(a));
    a.sh("nft delete table inet wall");
    all_proved(&cluster);

    let said = ferrule_test(a);
    let line = |start: &str, said: &str| -> String {
        said.lines()
            .find(|line| line.starts_with(start))
            .unwrap_or_else(|| panic!("{start}: {said}"))
            .to_owned()
    };
    for (number, name) in [(2, "b"), (3, "c")] {
        let line = line(&format!("ok: node {name}: 10.244.1."), &said);
        let wanted = [
            format!("reaches 10.244.{number}.254;"),
            format!("reaches fd00:244:{number}:0:ffff:ffff:ffff:ffff"),
        ];
        assert!(wanted.iter().all(|wanted| line.contains(wanted)), "{said}");
    }
    assert!(said.contains(" 0 failed, "), "{said}");

    // A flood gets few answers: six at once, then ten a second.
    let flood =
        format!("ip netns exec ferrule-health ping -q -n -i 0.002 -c 500 -W 1 {} || true", addresses(b)[0]);
    let flood6 = flood.replace(&addresses(b)[0], &addresses(b)[1]);
    for command in [flood, flood6] {
        let said = a.sh(&command);
        let received =
            said.split(", ").find_map(|part| part.strip_suffix(" received")).unwrap().parse::<u32>().unwrap();
        println!("{said}");
        assert!((1..100).contains(&received), "{said}");
    }

    // Three faults at once. The gateway of a is dead; only small packets pass from b to a; c forgets the way to b, and its daemon
    // does not run.
    let link = health(a)["links"][0].as_str().unwrap().to_owned();
    a.sh(&format!(
        "nft add table inet wall; nft add chain inet wall i '{{ type filter hook input priority 0; }}'
        nft add rule inet wall i iifname {link} icmp type echo-request drop
        nft add rule inet wall i iifname {link} icmpv6 type echo-request drop"
    ));
    b.sh("nft add table inet wall; nft add chain inet wall f '{ type filter hook forward priority 0; }'
        nft add rule inet wall f meta length gt 1400 ip daddr 10.244.1.0/24 drop
        nft add rule inet wall f meta length gt 1400 ip6 daddr fd00:244:1::/64 drop");
    assert_eq!(cluster.c.end("KILL"), None);
    let Cluster { a, b, c, .. } = &cluster;
    c.sh("ip route del 10.244.2.0/24; ip -6 route del fd00:244:2::/64
        ip route add unreachable 10.244.2.0/24; ip -6 route add unreachable fd00:244:2::/64");
    has(b, &["local proved", "a lost: no answer", "c lost: no answer"]);
    has(a, &["local lost: the IPv", "b lost: no answer", "c proved"]);
    assert!(proofs(a)[0].contains("gateway of this node's pods"), "{:?}", proofs(a));
    let said = ferrule_test(a);
    for (at, to) in [("10.244.1.", "10.244.2.254"), ("fd00:244:1::", "fd00:244:2:0:ffff:ffff:ffff:ffff")] {
        let line = line("failed: node b: ", &said);
        for wanted in [
            format!("{to} answers packets of 100 bytes from {at}"),
            format!("ferrule-node has had no answer of {to} since "),
            "and not those of 1450".to_owned(),
        ] {
            assert!(line.contains(&wanted), "{wanted}: {said}");
        }
    }
    assert!(
        said.contains("a link between the nodes has a smaller MTU") && said.contains("ok: node c: "),
        "{said}"
    );
    for member in [a, b] {
        member.sh("nft delete table inet wall");
    }
    c.sh("ip route del unreachable 10.244.2.0/24; ip -6 route del unreachable fd00:244:2::/64");
    cluster.c.start(ON_LINKS);
    all_proved(&cluster);
}

#[test]
fn a_peer_without_a_valid_endpoint_is_unknown() {
    let mut cluster = Cluster::new();
    cluster.a.start(ON);
    cluster.b.start("--health off");
    cluster.c.start("--health off");
    cluster.settled();
    // It would correct its annotation.
    cluster.b.end("KILL");
    let Cluster { a, .. } = &cluster;
    has(a, &["local proved", "b unknown: the node publishes no health endpoint", "c unknown"]);
    let forge = |uid: &str, addresses: Value| {
        let text = json!({"uid": uid, "version": "9", "mtu": 1450, "addresses": addresses}).to_string();
        cluster.patch("b", &json!({"metadata": {"annotations": {"ferrule.dev/health": text}}}));
    };
    let uid = cluster.store.get(&node_path("b")).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    forge(&uid, json!(["10.244.3.9", "fd00:244:3::9"]));
    has(a, &["b unknown: the address of its health endpoint is not in its podCIDR"]);
    forge("another", json!(["10.244.2.9", "fd00:244:2::9"]));
    has(a, &["b unknown: its health endpoint is that of an earlier Node object"]);
    forge(&uid, json!([]));
    has(a, &["b unknown: the node has no health endpoint now"]);
    // This one is asked, and nobody answers.
    forge(&uid, json!(["10.244.2.9", "fd00:244:2::9"]));
    has(a, &["b lost", "c unknown"]);
    // Off: what is known of the peers ends with the endpoint, and the others are told.
    let a = &mut cluster.a;
    a.end("TERM");
    a.start("--health off");
    has(a, &["local unknown: --health is off", "c unknown"]);
    a.until("no endpoint", || a.sh(&format!("ls {NETNS} 2>&1 || true")).contains("No such file"));
    wait("no reserved address", || reserved(a), Vec::is_empty);
    let none = wait("told", || published(&cluster, &cluster.a), |found| found["addresses"] == json!([]));
    assert_eq!(none["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_endpoint_outlives_the_daemon_gc_and_repair_and_goes_with_cleanup() {
    let mut cluster = Cluster::started(ON);
    all_proved(&cluster);
    let a = &cluster.a;
    let state = |member: &Member| {
        let inside = member.sh("stat -L -c %i /run/netns/ferrule-health /run/netns/ferrule-health-2");
        (inside, addresses(member), health(member)["links"].clone())
    };
    let before = state(a);
    let known = ferrule_node::proof::links("ferrule");
    let links = before.2.as_array().unwrap();
    assert!(links.len() == 2 && links.iter().all(|link| known.contains(link.as_str().unwrap())), "{links:?}");
    let pod = a.pod("pod");

    // A runtime's GC names only its own attachments; ferrule's housekeeping looks at everything.
    let mut list = a.conflist().unwrap();
    list["cniVersion"] = json!("1.1.0");
    a.node.write_file("/run/gc.conflist", &list.to_string()).unwrap();
    let network = a.node.run(|| Network::from_file(Path::new("/run/gc.conflist"))).unwrap().unwrap();
    a.node.runtime([bin_dir().unwrap()]).gc(&network, Some(&[])).unwrap();
    // That GC has released the pod's address too: it is not valid any more.
    let ferrule = bin_dir().unwrap().join("ferrule");
    let mut first = Command::new("sleep");
    first.arg("infinity");
    let init = a.node.spawn(first).unwrap();
    for command in ["inspect leaks", "gc --yes", "repair --yes"] {
        let said = a.sh(&format!("{} {command} --init {} 2>&1", ferrule.display(), init.id()));
        println!("{command}: {said}");
        assert!(!said.contains("health"), "{command}: {said}");
    }
    assert_eq!(reserved(a).len(), 4, "{:?}", reserved(a));
    pod.end();
    all_proved(&cluster);

    // Killed and started again: the same endpoint.
    cluster.a.end("KILL");
    cluster.a.sh("rm /run/ferrule/node/status.json");
    cluster.a.start(ON);
    all_proved(&cluster);
    assert_eq!(state(&cluster.a), before);
    let a = &cluster.a;

    // Damage: the link, the namespace, the reservation. It is made again.
    for damage in [
        "ip link del LINK",
        "umount -l /run/netns/ferrule-health",
        "rm /var/lib/cni/networks/ferrule/10.244.1.254",
    ] {
        let former = state(a);
        a.sh(&damage.replace("LINK", former.2[0].as_str().unwrap()));
        wait(
            &format!("another endpoint after: {damage}"),
            || a.sh("stat -L -c %i /run/netns/ferrule-health /run/netns/ferrule-health-2 2>&1 || true"),
            |now| *now != former.0 && !now.contains("cannot"),
        );
        all_proved(&cluster);
    }

    // Another podCIDR: the old endpoint goes.
    cluster.patch(
        "a",
        &json!({"spec": {"podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24", "fd00:244:9::/64"]}}),
    );
    let a = &cluster.a;
    wait(
        "a new address",
        || addresses(a),
        |found| *found == ["10.244.9.254", "fd00:244:9:0:ffff:ffff:ffff:ffff"],
    );
    all_proved(&cluster);
    assert_eq!(reserved(a).len(), 4);

    // A reboot: the namespaces and /run are gone, the store is not.
    cluster.a.end("KILL");
    let a = &mut cluster.a;
    a.sh("umount -l /run/netns/ferrule-health /run/netns/ferrule-health-2; rm /run/netns/ferrule-health*; rm -r /run/ferrule");
    a.start(ON);
    all_proved(&cluster);
    assert_eq!(reserved(&cluster.a).len(), 4);

    let a = &mut cluster.a;
    a.end("TERM");
    let links = health(a)["links"].clone();
    let cleaned = a.run("cleanup");
    assert!(cleaned.status.success(), "{cleaned:?}");
    assert!(String::from_utf8_lossy(&cleaned.stdout).contains("removed health endpoint"), "{cleaned:?}");
    assert!(links.as_array().unwrap().iter().all(|link| !a.node_has(link.as_str().unwrap())));
    assert_eq!(a.sh("ls -A /run/netns; ls -A /run/ferrule; ls -A /var/lib/cni/networks | grep -v '^ferrule$\\|^.ferrule$' || true"), "");
    assert!(reserved(a).is_empty());
}

/// A small podCIDR that fills up: pods get every address.
#[test]
fn pods_get_the_last_address() {
    let mut cluster = Cluster::new();
    let mut object = cluster.a.object();
    object["spec"] = json!({"podCIDR": "10.244.1.0/29", "podCIDRs": ["10.244.1.0/29", "fd00:244:1::/64"]});
    cluster.store.put(&node_path("a"), object);
    cluster.a.start(ON);
    let a = &cluster.a;
    has(a, &["local proved"]);
    assert_eq!(addresses(a)[0], "10.244.1.6");
    // Five addresses, and the endpoint has two.
    let mut pods: Vec<_> = ["p1", "p2", "p3"].map(|name| a.pod(name)).into_iter().collect();
    has(a, &["local unknown: 10.244.1.0/29: pods need the last addresses"]);
    pods.extend(["p4", "p5"].map(|name| a.pod(name)));
    let got: Vec<String> = pods.iter().map(|pod| pod.addresses[0].to_string()).collect();
    assert!(got.contains(&"10.244.1.6".to_owned()), "{got:?}");
    assert!(a.conflist().is_some() && a.node.read_file(CONFLIST).is_ok());
    // It comes back when there is room.
    pods.into_iter().take(4).for_each(|pod| pod.end());
    has(a, &["local proved"]);
}
