//! The cost of the daemon with 1,000 and with 5,000 nodes, and of its ways for the pods. Prints Markdown tables.
//!
//! Run it as root with `cargo bench -p ferrule-node`. It measures the release program in `FERRULE_BIN_DIR`, else what
//! `./build.sh` makes. Figures are only reported. Needs iperf3 and strace. With the argument `ways` it measures only
//! the ways, with `policies` only the policies.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/cluster/judge.rs"]
mod judge;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/cluster/lab.rs"]
mod lab;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/cluster/member.rs"]
mod member;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cni_lab::testing::connect_time;
use cni_lab::{Place, bin_dir, eventually};
use serde_json::{Value, json};

use lab::{Cluster, LIMIT, PORT, node_object, node_path};
use member::CONFLIST;

fn main() {
    let program = bin_dir().unwrap().join("ferrule-node");
    println!("Program: {:.1} MB\n", fs::metadata(&program).unwrap().len() as f64 / 1e6);
    if std::env::args().any(|argument| argument == "policies") {
        return policies(&program);
    }
    if !std::env::args().any(|argument| argument == "ways") {
        crowds(&program);
    }
    println!("| | TCP, Mbit/s | TCP on a link of 1 Gbit/s | connect, µs |\n|---|---:|---:|---:|");
    let by_routes = Cluster::of(program.to_path_buf());
    report_node_to_node(&by_routes);
    by_hand(&program);
    pods("pod to pod by the daemon's routes", &started(by_routes, "--mode routes"));
    pods("pod to pod by VXLAN", &started(Cluster::of(program.to_path_buf()), "--mode vxlan"));
    by_wireguard(&program);
}

fn crowds(program: &Path) {
    println!("| | 1,000 nodes | 5,000 nodes |\n|---|---:|---:|");
    let columns = [1000, 5000].map(|nodes| crowd(program, nodes));
    for (row, (what, small)) in columns[0].iter().enumerate() {
        println!("| {what} | {small} | {} |", columns[1][row].1);
    }
    println!();
}

/// The addresses of the node with this number.
fn addresses(number: usize) -> [String; 2] {
    [format!("10.0.{}.{}", number / 250, number % 250 + 2), format!("2001:db8:0:9::{:x}", number + 1)]
}

/// A node `a` that runs beside so many others, which are only objects. Each has both families, and a health endpoint.
fn crowded(program: &Path, nodes: usize) -> Cluster {
    let cluster = Cluster::of(program.to_path_buf());
    for name in ["b", "c"] {
        cluster.store.delete(&node_path(name));
    }
    cluster.a.sh("ip addr add 10.0.0.1/16 dev eth0; ip addr add 2001:db8:0:9::1/64 dev eth0 nodad");
    for number in 1..nodes {
        let (high, low) = (number / 250, number % 250);
        let addresses = addresses(number);
        let cidrs = [format!("10.{}.{low}.0/24", 128 + high), format!("fd00:{number:x}::/64")];
        let object =
            node_object(&addresses.each_ref().map(String::as_str), &cidrs.each_ref().map(String::as_str));
        let path = node_path(&format!("n{number}"));
        cluster.store.put(&path, object);
        let health = json!({"uid": cluster.store.get(&path).unwrap()["metadata"]["uid"], "version": "0", "mtu": 1500,
            "addresses": [format!("10.{}.{low}.254", 128 + high), format!("fd00:{number:x}::fe")]});
        let annotations = json!({"ferrule.dev/health": health.to_string()});
        cluster.store.patch(&path, &json!({"metadata": {"annotations": annotations}}));
    }
    cluster
}

/// What the health endpoint costs with so many nodes: `b` answers for all of them.
fn endpoint(program: &Path, nodes: usize) -> Vec<(&'static str, String)> {
    let mut cluster = crowded(program, nodes);
    let mac = cluster.b.sh("cat /sys/class/net/eth0/address");
    let neighbors: String = (1..nodes)
        .flat_map(addresses)
        .map(|address| format!("neigh add {address} lladdr {} dev eth0 nud permanent\n", mac.trim()))
        .collect();
    cluster.a.node.write_file("/run/neighbors", &neighbors).unwrap();
    cluster.a.sh("ip -batch /run/neighbors");
    cluster.b.sh("ip route add 10.0.0.1 dev eth0; ip route add 10.244.1.0/24 via 10.0.0.1
        ip -6 route add 2001:db8:0:9::1 dev eth0; ip -6 route add fd00:244:1::/64 via 2001:db8:0:9::1
        ip route add local 10.128.0.0/9 dev lo; ip -6 route add local fd00::/17 dev lo table main");
    cluster.a.start("--health on");
    sleep(Duration::from_secs(30));
    let asked = || {
        let text = cluster.b.sh("awk '$1 == \"IcmpMsg:\" && !/In/ {print $2} $1 == \"Icmp6InEchos\" {print $2}' /proc/net/snmp /proc/net/snmp6");
        text.split_whitespace().map(|count| count.parse::<u64>().unwrap()).sum::<u64>()
    };
    let (cpu_before, before) = (cpu(cluster.a.pid()), asked());
    sleep(Duration::from_secs(60));
    let (cpu, asked) = (cpu(cluster.a.pid()) - cpu_before, asked() - before);
    vec![
        ("60 seconds with the health endpoint: CPU", format!("{} ms", cpu * 10)),
        ("60 seconds with the health endpoint: requests", asked.to_string()),
    ]
}

/// The first synchronisation, memory and rest with so many nodes.
fn crowd(program: &Path, nodes: usize) -> Vec<(&'static str, String)> {
    let mut cluster = crowded(program, nodes);
    let expected = 2 * (nodes - 1);
    let began = Instant::now();
    cluster.a.start("--health off");
    // The daemon writes it when all routes are there.
    let conflist = || cluster.a.node.run(|| fs::exists(CONFLIST).unwrap()).unwrap();
    poll(conflist);
    let done = Instant::now();
    let routes = cluster.a.routes().len();
    assert_eq!(routes, expected, "{}", cluster.a.log());
    let lists: Vec<Instant> = cluster
        .server
        .requests()
        .iter()
        .filter(|request| request.verb == "list")
        .map(|request| request.at)
        .collect();
    let last = done - *lists.last().unwrap();
    let memory = cluster.a.status("VmHWM");
    sleep(Duration::from_secs(3));
    let (cpu_before, wakes) = (cpu(cluster.a.pid()), cluster.a.status("voluntary_ctxt_switches"));
    sleep(Duration::from_secs(20));
    let cpu = cpu(cluster.a.pid()) - cpu_before;
    let wakes = cluster.a.status("voluntary_ctxt_switches") - wakes;
    // One node changes one address.
    let way = |address: &str| {
        let found = cluster.a.sh("ip route show 10.128.7.0/24");
        found.contains(&format!("via {address} "))
    };
    let mut times: Vec<Duration> = (0..21)
        .map(|round| {
            let address = ["10.0.200.1", "10.0.0.9"][round % 2];
            let object = node_object(&[address, "2001:db8:0:9::8"], &["10.128.7.0/24", "fd00:7::/64"]);
            let began = Instant::now();
            cluster.store.put(&node_path("n7"), object);
            poll(|| way(address));
            began.elapsed()
        })
        .collect();
    times.sort();
    let endpoint = endpoint(program, nodes);
    let mut rows = vec![
        ("from the start of the process to the last route", ms(done - began)),
        ("from the request of the last page of the list to the last route", ms(last)),
        ("one node's new address, until its route has changed", ms(times[10])),
        ("requests to the kernel for that", requests(&cluster).to_string()),
        ("memory at most (VmHWM)", format!("{:.1} MB", memory as f64 / 1000.0)),
        ("20 seconds at rest: CPU", format!("{} ms", cpu * 10)),
        ("20 seconds at rest: times awake", wakes.to_string()),
    ];
    rows.extend(endpoint);
    rows
}

const POLICIES: &str = "/apis/networking.k8s.io/v1/networkpolicies";

/// The daemon with 10,000 pods of 10 kB, 250 of them its own, in 100 namespaces with 10 policies each.
fn policies(program: &Path) {
    println!("| | without policies | 10,000 pods, 1,000 policies |\n|---|---:|---:|");
    let memory = |cluster: &Cluster, key| format!("{:.1} MB", cluster.a.status(key) as f64 / 1000.0);
    let mut without = Cluster::of(program.to_path_buf());
    without.a.start("--health off");
    poll(|| without.a.http("/metrics").1.contains("ferrule_node_syncs_total 1"));
    let mut with = Cluster::of(program.to_path_buf());
    fill(&with);
    let began = Instant::now();
    with.a.start("--health off --policy on");
    let is_active = || with.a.http("/metrics").1.contains("\nferrule_node_policy_active 1\n");
    assert!(eventually(5 * LIMIT, is_active), "{}", with.a.log());
    let done = began.elapsed();
    let metrics = with.a.http("/metrics").1;
    for row in ["policies 1000", "isolated_addresses 500"] {
        assert!(metrics.contains(&format!("\nferrule_node_policy_{row}\n")), "{metrics}");
    }
    let rows = |cluster: &Cluster| [memory(cluster, "VmRSS"), memory(cluster, "VmHWM")];
    let (without, first) = (rows(&without), rows(&with));
    println!("| from the start of the process until the policies hold | | {} |", ms(done));
    println!("| CPU of the daemon until then | | {} ms |", cpu(with.a.pid()) * 10);
    println!("| memory then | {} | {} |", without[0], first[0]);
    println!("| memory at most (VmHWM) | {} | {} |", without[1], first[1]);
    // The history is gone: all is listed again.
    let lists = || with.server.requests().iter().filter(|request| request.verb == "list").count();
    let before = lists();
    with.store.forget();
    poll(|| lists() >= before + 4);
    sleep(Duration::from_secs(10));
    println!("| the same after another list | | {} |", rows(&with)[1]);
}

fn fill(cluster: &Cluster) {
    let fields = "x".repeat(9000);
    for space in 0..100 {
        let labels = json!({"team": format!("team-{space}")});
        cluster.store.put(
            &format!("/api/v1/namespaces/s{space}"),
            json!({"kind": "Namespace", "metadata": {"labels": labels}}),
        );
        for number in 0..10 {
            let path = POLICIES
                .replace("networkpolicies", &format!("namespaces/s{space}/networkpolicies/p{number}"));
            let select = |key: &str, value: String| json!({"matchLabels": {key: value}});
            let from = json!([{"podSelector": select("app", format!("app-{}", (number + 1) % 10))},
                {"namespaceSelector": select("team", format!("team-{}", (space + 1) % 100))}]);
            let spec = json!({"podSelector": select("app", format!("app-{number}")), "policyTypes": ["Ingress"],
                "ingress": [{"from": from, "ports": [{"port": 80}, {"port": "http"}]}]});
            cluster.store.put(&path, json!({"kind": "NetworkPolicy", "spec": spec}));
        }
        for number in 0..100 {
            let pod = space * 100 + number;
            let addresses = json!([{"ip": format!("10.{}.{}.{}", 100 + pod / 62_500, pod / 250 % 250, pod % 250 + 2)}, {"ip": format!("fd01::{pod:x}")}]);
            let labels =
                json!({"app": format!("app-{}", number % 10), "pod-template-hash": format!("{:x}", pod / 5)});
            let node = if pod % 40 == 0 { "a".to_owned() } else { format!("n{}", pod % 100) };
            let ports = json!([{"containerPort": 8080, "name": "http", "protocol": "TCP"}]);
            let object = json!({"kind": "Pod", "metadata": {"labels": labels, "managedFields": fields},
                "spec": {"nodeName": node, "containers": [{"ports": ports}]}, "status": {"phase": "Running", "podIPs": addresses}});
            cluster.store.put(&format!("/api/v1/namespaces/s{space}/pods/web-{number}"), object);
        }
    }
}

/// The messages to the kernel that one node's new address costs.
fn requests(cluster: &Cluster) -> usize {
    let object = node_object(&["10.0.201.1", "2001:db8:0:9::8"], &["10.128.7.0/24", "fd00:7::/64"]);
    let sent = cluster.a.requests(|| {
        cluster.store.put(&node_path("n7"), object);
        poll(|| cluster.a.sh("ip route show 10.128.7.0/24").contains("10.0.201.1"));
    });
    sent.len()
}

/// User and system time in ticks of 10 ms.
fn cpu(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn poll(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "nothing happens");
        sleep(Duration::from_millis(1));
    }
}

fn ms(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1000.0)
}

fn report_node_to_node(cluster: &Cluster) {
    let [address, _] = cluster.b.addresses();
    cni_lab::testing::serve(&cluster.b.node, "b", PORT);
    row("node to node", cluster, &cluster.a.node, &cluster.b.node, address.parse().unwrap());
}

/// Pods of the same conflist, with routes that `ip` has made.
fn by_hand(program: &Path) {
    let mut cluster = Cluster::of(program.to_path_buf());
    for member in cluster.members_mut() {
        member.start("--mode routes");
        member.until("a conflist", || member.conflist().is_some());
        member.end("KILL");
        member.sh("ip route flush proto 79; nft delete table inet ferrule_node");
    }
    let Cluster { a, b, .. } = &cluster;
    for (from, to) in [(a, b), (b, a)] {
        let (cidr, via) = (&to.pod_cidrs()[0], &to.addresses()[0]);
        from.sh(&format!("ip route add {cidr} via {via}"));
    }
    let (one, two) = (a.pod("one"), b.pod("two"));
    row("pod to pod by routes made by hand", &cluster, &one.pod, &two.pod, two.addresses[0]);
}

fn started(mut cluster: Cluster, arguments: &str) -> Cluster {
    cluster.a.start(arguments);
    cluster.b.start(arguments);
    for member in [&cluster.a, &cluster.b] {
        member.until("a conflist", || member.conflist().is_some());
    }
    cluster
}

fn pods(what: &str, cluster: &Cluster) {
    let (one, two) = (cluster.a.pod("one"), cluster.b.pod("two"));
    one.reaches(&two);
    row(what, cluster, &one.pod, &two.pod, two.addresses[0]);
}

/// The nodes themselves through the device, and their pods. The kernel of a build machine may lack WireGuard.
fn by_wireguard(program: &Path) {
    let cluster = Cluster::of(program.to_path_buf());
    if cluster.a.node.sh("ip link add wg0 type wireguard && ip link delete wg0").is_err() {
        return println!("| by WireGuard | not in this kernel | | |");
    }
    cluster.server.faults(|faults| {
        let rule = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]});
        faults.rules.as_mut().unwrap().push(rule);
    });
    let cluster = started(cluster, "--mode wireguard --wireguard-key /run/wireguard.key");
    let device = cluster.b.pod_cidrs()[0].split('/').next().unwrap().parse().unwrap();
    cni_lab::testing::serve(&cluster.b.node, "b", PORT);
    row("node to node by WireGuard", &cluster, &cluster.a.node, &cluster.b.node, device);
    pods("pod to pod by WireGuard", &cluster);
}

/// One line of the table of ways.
fn row(what: &str, cluster: &Cluster, from: &impl Place, to: &impl Place, address: IpAddr) {
    let mut server = Command::new("iperf3");
    server.arg("-s");
    let _server = to.spawn(server).unwrap();
    let free = throughput(from, address);
    let connect = connect_time(from, SocketAddr::new(address, PORT));
    for member in [&cluster.a, &cluster.b] {
        member.sh("tc qdisc replace dev eth0 root tbf rate 1gbit burst 128kb latency 20ms");
    }
    let limited = throughput(from, address);
    for member in [&cluster.a, &cluster.b] {
        member.sh("tc qdisc del dev eth0 root");
    }
    println!("| {what} | {free:.0} | {limited:.0} | {} |", connect.as_micros());
}

/// The median of three runs, in Mbit/s.
fn throughput(from: &impl Place, to: IpAddr) -> f64 {
    let run = || {
        let report = from.sh(&format!("iperf3 --json --time 4 --omit 1 --client {to}")).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6
    };
    sleep(Duration::from_millis(500));
    let mut runs: Vec<f64> = (0..3).map(|_| run()).collect();
    runs.sort_by(f64::total_cmp);
    runs[1]
}
