//! What policies deny is counted and noted, by real packets; the mode dry counts and denies nothing.

use std::net::{IpAddr, SocketAddr};

use cni_lab::testing::{ask, silent};
use cni_lab::{Place as _, TIMEOUT, eventually};
use ferrule_kernel::conntrack::{self, Peer, flows_of};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Family, Table};
use ferrule_node::policy::Report;
use ferrule_node::policy::objects::Told;
use ferrule_node_policy::model::{Direction, Namespace, NetworkPolicy};
use ferrule_policy_kit::denials::flows;

use super::rig::{Rig, Talk, from, labels, object, policy, try_all};

const TABLE: Table<'static> = Table::new(Family::Inet, "ferrule_policy");

/// The counted packets of a pod of the namespace `shop`.
fn count(report: &Report, pod: &str, direction: Direction, is_dry: bool) -> u64 {
    let is_own = |count: &&(ferrule_node::policy::Count, u64)| {
        let of = &count.0;
        (of.namespace.as_str(), of.pod.as_str(), of.direction, of.is_dry) == ("shop", pod, direction, is_dry)
    };
    report.denied.iter().filter(is_own).map(|(_, packets)| packets).sum()
}

fn space(name: &str, mode: Option<&str>) -> Told {
    let labels = labels(&[("kubernetes.io/metadata.name", name)]);
    Told::Namespace(Namespace { name: name.to_owned(), labels, mode: mode.map(str::to_owned) })
}

#[test]
fn denials_are_counted_and_the_mode_dry_denies_nothing() {
    counted_and_dry();
}

/// Elements with a counter and a limit, as the oldest kernel makes them.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn denials_without_owned_tables() {
    counted_and_dry();
}

fn counted_and_dry() {
    let rig = Rig::new();
    rig.start_daemon();
    let closed = policy("shop", "closed", "web");
    let out = NetworkPolicy { types: vec!["Egress".into()], ..policy("shop", "out", "client") };
    let objects = [object("shop", "client"), object("shop", "web"), object("tools", "other")];
    rig.listed(&["shop", "tools"], &[closed.clone(), out], &objects);
    rig.wait_isolated("ferrule-policy 1\nshop both\nend\n");
    let [web, client] = ["web", "client"].map(|app| rig.add("shop", app));
    let other = rig.add("tools", "other");
    rig.wait("released", |report| report.waiting == 0 && report.is_good() && report.isolated == 4);
    let (w, o) = (web.addresses, other.addresses);
    let other_end = from(&other.pod);
    let has = |pod: &'static str, direction, is_dry| {
        move |report: &Report| count(report, pod, direction, is_dry) > 0
    };
    assert!(rig.report().denied.is_empty(), "{:?}", rig.report().denied);

    // Each in its direction, TCP, UDP and ICMP, and no packets of other pods.
    try_all("enforced", &[(&other_end, "tcp", w, 80, false), (&from(&client.pod), "udp", o, 81, false)]);
    assert!(w.iter().all(|ip| other.pod.sh(&format!("ping -c 1 -W 0.2 {ip}")).is_err()));
    rig.wait("ingress of web", has("web", Direction::Ingress, false));
    rig.wait("egress of client", has("client", Direction::Egress, false));
    let report = rig.report();
    assert_eq!(count(&report, "client", Direction::Ingress, false), 0, "{:?}", report.denied);
    assert_eq!(report.packets(true), 0, "{:?}", report.denied);
    let names: Vec<_> = report.denied.iter().map(|(count, _)| count.policies.as_str()).collect();
    assert_eq!(names, ["out", "closed"], "{:?}", report.denied);
    let row = r#"denied_packets_total{namespace="shop",pod="web",direction="ingress",mode="enforce",policies="closed"} "#;
    assert!(
        report.metrics(std::time::SystemTime::now()).contains(row),
        "{}",
        report.metrics(std::time::SystemTime::now())
    );
    let noted: Vec<_> = rig
        .world
        .node
        .run(|| flows(&mut Socket::netfilter().unwrap().with_whole_dumps(), TABLE))
        .unwrap()
        .unwrap();
    let has_flow = |direction, source: IpAddr, destination: IpAddr, protocol, port| {
        noted.iter().any(|(flow, packets)| {
            *packets > 0
                && (flow.direction, flow.source, flow.destination) == (direction, source, destination)
                && (flow.protocol, flow.port) == (protocol, port)
        })
    };
    for family in [0, 1] {
        assert!(has_flow(Direction::Ingress, o[family], w[family], 6, 80), "{noted:?}");
        assert!(has_flow(Direction::Egress, client.addresses[family], o[family], 17, 81), "{noted:?}");
        assert!(has_flow(Direction::Ingress, o[family], w[family], [1, 58][family], 0), "{noted:?}");
    }

    // A flood of one pod is counted, and few of it is noted.
    let flood = "i=0; while [ $i -lt 300 ]; do echo x >/dev/udp/$TO/$((1000 + i)); i=$((i + 1)); done";
    other.pod.sh(&format!("TO={} bash -c '{flood}'", w[0])).unwrap();
    rig.wait("the flood is counted", |report| count(report, "web", Direction::Ingress, false) >= 300);
    let noted = rig.world.node.run(|| flows(&mut Socket::netfilter().unwrap().with_whole_dumps(), TABLE));
    let of_flood = noted.unwrap().unwrap().iter().filter(|(flow, _)| flow.port >= 1000).count();
    assert!(of_flood < 300, "{of_flood} of 300 are noted");

    // Dry: the same packets pass, and are counted as such. New pods of the namespace are not isolated.
    rig.tell([space("shop", Some("dry"))]);
    rig.wait("dry", |report| {
        report.dry.as_deref() == Some(&["shop".to_owned()]) && report.dry_addresses == 4
    });
    rig.wait_isolated("ferrule-policy 1\nend\n");
    try_all("dry", &[(&other_end, "tcp", w, 80, true), (&from(&client.pod), "udp", o, 81, true)]);
    rig.wait("would be denied", has("web", Direction::Ingress, true));
    rig.wait("would be denied", has("client", Direction::Egress, true));
    assert_eq!(rig.report().isolated, 0);
    // A connection that the kernel has forgotten goes on, too.
    let stray = Talk::tcp(&other.pod, &web.pod, SocketAddr::new(w[0], 90));
    let forget = || {
        let mut socket = Socket::netfilter().unwrap().with_whole_dumps();
        let known = flows_of(&mut socket, Peer::Server(w[0])).unwrap();
        assert!(!known.is_empty());
        conntrack::delete(&mut socket, &known).unwrap();
    };
    rig.world.node.run(forget).unwrap();
    assert!(stray.goes(), "a packet of a dry pod that begins no flow is dropped");

    // Back: flows that have begun meanwhile end.
    let flow = [
        Talk::udp(&other.pod, SocketAddr::new(w[0], 81)),
        Talk::tcp(&other.pod, &web.pod, SocketAddr::new(w[1], 91)),
    ];
    assert!(flow.iter().all(Talk::goes));
    rig.tell([space("shop", None)]);
    rig.wait("enforced", |report| report.isolated == 4 && report.dry_addresses == 0);
    assert!(eventually(TIMEOUT, || flow.iter().all(|talk| !talk.goes())), "flows of the dry time go on");
    try_all("enforced again", &[(&other_end, "tcp", w, 80, false)]);
    rig.wait_isolated("ferrule-policy 1\nshop both\nend\n");

    // The daemon begins anew with all of it dry, then enforces.
    rig.stop_daemon();
    rig.start_daemon_with(true);
    let with_addresses = |mut pod: ferrule_node_policy::model::Pod, addresses: [IpAddr; 2]| {
        for address in addresses {
            match address {
                IpAddr::V4(v4) => pod.addresses.v4 = Some(v4),
                IpAddr::V6(v6) => pod.addresses.v6 = Some(v6),
            }
        }
        pod
    };
    let objects = [
        with_addresses(object("shop", "client"), client.addresses),
        with_addresses(object("shop", "web"), w),
        with_addresses(object("tools", "other"), o),
    ];
    rig.listed(&["shop", "tools"], std::slice::from_ref(&closed), &objects);
    rig.wait("all is dry", |report| report.is_good() && report.dry.is_none() && report.dry_addresses == 2);
    rig.wait_isolated("ferrule-policy 1\nend\n");
    let to = SocketAddr::new(w[0], 82);
    assert!(ask(&other.pod, "tcp", to).is_ok());
    rig.stop_daemon();
    rig.start_daemon();
    rig.listed(&["shop", "tools"], std::slice::from_ref(&closed), &objects);
    rig.wait("enforced", |report| report.is_good() && report.isolated == 2);
    assert!(silent(&other.pod, "tcp", to));
}
