//! The plugin that makes the pods' interfaces: ptp, or the bridge while bridged pods run.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use cni_lab::testing::{ask, serve_at};
use cni_lab::{Background, Place as _};
use serde_json::{Value, json};

use crate::lab::{Cluster, PORT, node_object, node_path, wait};
use crate::member::{Member, Running};

const BRIDGE: &str = "ferrule0";

/// So that no daemon loads a module into the kernel of this machine.
const NO_MODPROBE: &str = "env PATH=/none";

/// The daemon of a node whose pods outlive it.
fn daemon(member: &Member, arguments: &str) -> Background {
    member.node.spawn(member.command(NO_MODPROBE, arguments)).unwrap()
}

fn end(mut daemon: Background) {
    Command::new("kill").arg(daemon.id().to_string()).status().unwrap();
    daemon.child().wait().unwrap();
}

fn plugin(member: &Member) -> String {
    member
        .conflist()
        .map_or_else(String::new, |value| value["plugins"][0]["type"].as_str().unwrap().to_owned())
}

fn becomes(member: &Member, expected: &str) {
    wait(
        &format!("{expected} on {}:\n{}", member.name, member.log()),
        || plugin(member),
        |plugin| plugin == expected,
    );
}

/// The reasons of `status` about the bridge.
fn notes(member: &Member) -> String {
    let output = member.run("status --json --no-probe");
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let reasons = status["reasons"].as_array().unwrap();
    let of_bridge = reasons.iter().filter(|reason| reason["code"].as_str().unwrap().starts_with("bridge"));
    json!(of_bridge.collect::<Vec<_>>()).to_string()
}

#[test]
fn a_node_keeps_the_bridge_until_its_last_bridged_pod_is_gone() {
    let mut cluster = Cluster::new();
    cluster.b.start("");
    cluster.c.start("");
    let (a, b) = (&cluster.a, &cluster.b);
    let before = daemon(a, "--main bridge");
    cluster.settled();
    becomes(b, "ptp");
    let (old, two) = (a.pod("old"), b.pod("two"));
    assert!(a.node_has(BRIDGE) && !b.node_has(BRIDGE));
    // A cluster with both forms.
    old.reaches(&two);
    two.reaches(&old);
    end(before);

    let today = daemon(a, "");
    let address = old.addresses[0].to_string();
    let said = wait("a note about the pod", || notes(a), |notes| notes.contains(&address));
    assert!(said.contains(&old.container_id()) && said.contains("kubectl drain"), "{said}");
    let new = a.pod("new");
    assert_eq!(plugin(a), "bridge");
    new.reaches(&old);
    new.reaches(&two);
    new.end();
    old.end();
    becomes(a, "ptp");
    wait("no bridge", || a.node_has(BRIDGE), |has| !has);
    wait("no notes", || notes(a), |notes| notes == "[]");
    let pods = [a.pod("one"), a.pod("three")];
    pods[0].reaches(&pods[1]);
    pods[0].reaches(&two);
    two.reaches(&pods[0]);
    end(today);

    // An older release comes back, and then today's: the pods of ptp go on, and the node says what does not work.
    let older = daemon(a, "--main bridge");
    becomes(a, "bridge");
    let bridged = a.pod("bridged");
    pods[1].reaches(&pods[0]);
    for pod in [&pods[0], &bridged] {
        pod.reaches(&two);
        two.reaches(pod);
    }
    end(older);
    let _again = daemon(a, "");
    wait("a note about both kinds", || notes(a), |notes| notes.contains("do not reach each other"));
    assert_eq!(plugin(a), "bridge");
    bridged.end();
    becomes(a, "ptp");
    wait("no bridge", || a.node_has(BRIDGE), |has| !has);
    pods[0].reaches(&pods[1]);
    two.reaches(&pods[1]);
    pods.into_iter().for_each(Running::end);
}

#[test]
fn a_bridge_that_others_use_stays() {
    let mut cluster = Cluster::new();
    let a = &cluster.a;
    a.sh(&format!(
        "ip link add {BRIDGE} type bridge; ip link set {BRIDGE} up; ip addr add 192.168.7.20/24 dev {BRIDGE}"
    ));
    cluster.a.start("");
    let a = &cluster.a;
    becomes(a, "ptp");
    let pod = a.pod("one");
    pod.end();
    assert!(a.node_has(BRIDGE));
    // The address of a gateway of before, and no port.
    a.sh(&format!("ip addr flush dev {BRIDGE}; ip addr add 10.244.99.1/24 dev {BRIDGE}; ip addr add 203.0.113.5/32 dev lo"));
    wait("no bridge", || a.node_has(BRIDGE), |has| !has);
}

/// Services of pods on one bridge need br_netfilter. Whether the kernel has it is up to the machine.
#[test]
fn a_bridge_needs_br_netfilter() {
    let mut cluster = Cluster::new();
    cluster.a.start_under(NO_MODPROBE, "--main bridge");
    let a = &cluster.a;
    becomes(a, "bridge");
    let has_module = a.node.sh("cat /proc/sys/net/bridge/bridge-nf-call-iptables").is_ok();
    if has_module {
        wait(
            "set",
            || a.node.sh("cat /proc/sys/net/bridge/bridge-nf-call-ip*tables").unwrap(),
            |text| text == "1\n1\n",
        );
    } else {
        let said = wait("a note", || notes(a), |notes| notes.contains("bridge-nf-call-iptables"));
        assert!(said.contains("times out") && said.contains("modprobe br_netfilter"), "{said}");
        a.until("one line", || a.lines("bridge-nf-call-iptables").len() == 1);
    }
    // The node is degraded: pods start.
    a.pod("one").end();
}

/// What pods of ptp get from their node: host ports, limits, a Service that leads to a pod of the same node, and a DNS server at a link-local
/// address of the node.
#[test]
fn what_a_node_does_for_pods_of_ptp() {
    let cluster = Cluster::started("");
    let (a, b) = (&cluster.a, &cluster.b);
    let mappings = json!(
        ["tcp", "udp"]
            .map(|protocol| { json!({"hostPort": 8080, "containerPort": PORT, "protocol": protocol}) })
    );
    let limits = json!({"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 40_000_000, "egressBurst": 8_000_000});
    let server = a.pod_with("server", |attachment| {
        attachment.with_capability("portMappings", mappings).with_capability("bandwidth", limits)
    });
    let (near, far) = (a.pod("near"), b.pod("far"));
    assert!(server.is_sound());
    a.sh("tc qdisc show | grep -q 'qdisc tbf .* rate 80Mbit'; tc qdisc show | grep -q 'qdisc tbf .* rate 40Mbit'");
    server.reaches(&near);
    near.reaches(&server);

    let answers =
        |from: &dyn Fn(&str, SocketAddr) -> Result<String, String>, to: &str, port: u16, name: &str| {
            let to = SocketAddr::new(to.parse().unwrap(), port);
            for protocol in ["tcp", "udp"] {
                wait(
                    &format!("an answer of {name} by {protocol} at {to}"),
                    || from(protocol, to),
                    |answer| answer.as_ref().is_ok_and(|answer| answer.starts_with(name)),
                )
                .unwrap();
            }
        };
    for address in a.addresses() {
        // Hairpin first: the server asks for itself.
        for pod in [&server, &near, &far] {
            answers(&|protocol, to| ask(&pod.pod, protocol, to), &address, 8080, "server");
        }
        answers(&|protocol, to| ask(&a.node, protocol, to), &address, 8080, "server");
    }

    // As kube-proxy makes it. Between pods on a bridge this needs br_netfilter.
    let [v4, v6] = [0, 1].map(|family| server.addresses[family]);
    a.sh(&format!(
        "nft 'add table inet services; add chain inet services pre {{ type nat hook prerouting priority dstnat; }}'
        nft 'add rule inet services pre ip daddr 10.96.0.10 meta l4proto {{ tcp, udp }} th dport 80 dnat ip to {v4}:{PORT}'
        nft 'add rule inet services pre ip6 daddr fd00:96::10 meta l4proto {{ tcp, udp }} th dport 80 dnat ip6 to [{v6}]:{PORT}'"
    ));
    for service in ["10.96.0.10", "fd00:96::10"] {
        answers(
            &|protocol, to| ask(&near.pod, protocol, to),
            service,
            80,
            &format!("server {}", near.addresses[usize::from(service.contains(':'))]),
        );
    }

    // The kernel of this machine may lack dummy links.
    a.sh("ip link add nodelocaldns type veth peer name other; ip addr add 169.254.20.10/32 dev nodelocaldns; ip link set nodelocaldns up");
    serve_at(&a.node, "dns", SocketAddr::from(([169, 254, 20, 10], PORT)));
    answers(
        &|protocol, to| ask(&near.pod, protocol, to),
        "169.254.20.10",
        PORT,
        &format!("dns {}", near.addresses[0]),
    );
}

/// A bridge of the kernel has at most 1,023 ports.
#[test]
#[ignore = "takes minutes: cargo test -p ferrule-node --test cluster 1500 -- --ignored --nocapture"]
fn a_node_with_1500_pods() {
    const PODS: usize = 1500;
    let mut cluster = Cluster::new();
    cluster.store.put(
        &node_path("a"),
        node_object(&["192.0.2.1", "2001:db8::1"], &["10.200.0.0/20", "fd00:200::/64"]),
    );
    for member in cluster.members_mut() {
        member.start("");
    }
    let (a, b) = (&cluster.a, &cluster.b);
    becomes(a, "ptp");
    b.until("the way to a", || b.routes().iter().any(|route| route.starts_with("10.200.0.0/20 ")));
    let far = b.pod("far");
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let syncs = || {
        a.http("/metrics")
            .1
            .lines()
            .find(|line| line.starts_with("ferrule_node_syncs_total"))
            .map(str::to_owned)
    };
    println!("before: {:?}, daemon {} kB", syncs(), a.status("VmRSS"));
    let (mut pods, mut times) = (Vec::new(), Vec::new());
    for number in 0..PODS {
        let began = Instant::now();
        pods.push(a.pod(&format!("pod{number}")));
        times.push(began.elapsed());
        if pods.len() % 300 == 0 {
            println!(
                "{} pods: {:?} for each of the last 300",
                pods.len(),
                median(std::mem::take(&mut times))
            );
        }
    }
    println!("after: {:?}, daemon {} kB", syncs(), a.status("VmRSS"));
    let (first, last) = (&pods[0], &pods[PODS - 1]);
    first.reaches(last);
    last.reaches(first);
    last.reaches(&far);
    far.reaches(first);
    assert!(first.is_sound() && last.is_sound());
    assert_eq!(a.http("/readyz").0, 200);
    let began = Instant::now();
    pods.into_iter().for_each(Running::end);
    println!("all ended after {:?}; {:?}", began.elapsed(), syncs());
    assert_eq!(a.sh("ip link show type veth | grep -c ': veth' || true").trim(), "0");
}
