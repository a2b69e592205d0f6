//! Packets of pods for which nothing is decided. The tests need root and `nft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use cni_lab::testing::{World, ask, link, serve, silent};
use cni_lab::{Place, Pod, TIMEOUT, eventually};
use cni_runner::{Attachment, Network};
use common::{ADDRESSES, announced, attachment, both, isolate, network, world};
use serde_json::json;

/// How many pods start; the figure of the issue of releases is 10000.
const STARTS: &str = "FERRULE_POLICY_STARTS";
const USUAL_STARTS: usize = 60;
/// The node's addresses for pods.
const GATEWAYS: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const INSIDE: u16 = 7000;
const OUTSIDE: u16 = 7001;
const TICK: Duration = Duration::from_millis(1);

fn addresses() -> [IpAddr; 2] {
    ADDRESSES.map(|address| address.parse().unwrap())
}

/// A socket in a place, which never waits.
fn bound(place: &impl Place, address: SocketAddr) -> UdpSocket {
    let socket = place.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// How many datagrams wait at a socket.
fn received(socket: &UdpSocket) -> usize {
    let mut buffer = [0; 8192];
    std::iter::from_fn(|| socket.recv_from(&mut buffer).ok()).count()
}

/// A pod's life: it starts, sends and receives for some milliseconds, and ends. Returns what it has received by family. The
/// servers outside answer to nothing, but send all the time from the ports to which the pod sends.
fn life(world: &World, network: &Network, name: &str, to: [SocketAddr; 2]) -> [usize; 2] {
    let pod = world.pod(name);
    let attached = attachment(&pod, "shop");
    world.runtime().add(network, &attached).unwrap();
    let sockets = addresses().map(|address| bound(&pod, SocketAddr::new(address, INSIDE)));
    let mut counts = [0; 2];
    for _ in 0..8 {
        for family in [0, 1] {
            let _ = sockets[family].send_to(b"out", to[family]);
            counts[family] += received(&sockets[family]);
        }
        thread::sleep(TICK);
    }
    world.runtime().del(network, &attached).unwrap();
    drop(sockets);
    pod.delete().unwrap();
    counts
}

/// Senders outside try 1,000 times a second, from before the first ADD on. The same ports and addresses serve all pods, so that each pod
/// finds the conntrack entries of its predecessor, in which both sides have spoken.
#[test]
fn nothing_passes_from_the_first_packet_on() {
    let world = world();
    let sockets =
        world.outside.each_ref().map(|client| bound(client, SocketAddr::new(client.address(), OUTSIDE)));
    let to = world.outside.each_ref().map(|client| SocketAddr::new(client.address(), OUTSIDE));
    let (ended, leaks) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 2]);
    let starts = std::env::var(STARTS).map_or(USUAL_STARTS, |starts| starts.parse().unwrap());
    let (open, isolated) = (network(&[]), network(&[json!({"type": "policy"})]));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                for (family, socket) in sockets.iter().enumerate() {
                    let _ = socket.send_to(b"in", SocketAddr::new(addresses()[family], INSIDE));
                    leaks[family].fetch_add(received(socket), Relaxed);
                }
                thread::sleep(TICK);
            }
        });
        let outside = || leaks.each_ref().map(|count| count.load(Relaxed));
        // The control: without the plugin everything passes, in both directions and families.
        let mut control = [0; 2];
        let leaks_all = eventually(TIMEOUT, || {
            let counts = life(&world, &open, "control", to);
            control = [control[0] + counts[0], control[1] + counts[1]];
            [control, outside()].as_flattened().iter().all(|count| *count > 0)
        });
        let before = outside();
        let counts: Vec<_> = (0..starts).map(|_| life(&world, &isolated, "pod", to)).collect();
        let after = outside();
        ended.store(true, Relaxed);
        assert!(leaks_all, "the control: {control:?} in, {before:?} out");
        assert!(counts.iter().all(|count| *count == [0, 0]), "received by pods: {counts:?}");
        assert_eq!(after, before, "received outside");
    });
}

/// A pod of the namespace, attached.
fn start(world: &World, namespace: &str) -> (Pod, Attachment) {
    let pod = world.pod("pod");
    let attached = attachment(&pod, namespace);
    world.runtime().add(&network(&[json!({"type": "policy"})]), &attached).unwrap();
    (pod, attached)
}

fn release(world: &World) {
    for set in ["ingress4", "ingress6", "egress4", "egress6", "links"] {
        world.nft(&format!("flush set inet ferrule_pods {set}"));
    }
}

#[test]
fn the_node_reaches_the_pod_and_the_pod_only_answers() {
    let world = world();
    let (pod, _) = start(&world, "shop");
    assert_eq!(announced(&world), both("pod shop/web"));
    serve(&pod, "pod", 80);
    serve(&world.node, "node", 53);
    for round in ["isolated", "after neighbour discovery anew", "released"] {
        for (family, address) in addresses().into_iter().enumerate() {
            for proto in ["tcp", "udp"] {
                let answer = ask(&world.node, proto, SocketAddr::new(address, 80)).unwrap();
                assert!(answer.starts_with("pod"), "{round}: {answer}");
                let is_open = round == "released";
                let outside = &world.outside[family];
                let inwards = SocketAddr::new(address, 80);
                let to_node = SocketAddr::new(GATEWAYS[family].parse().unwrap(), 53);
                assert_eq!(!silent(outside, proto, inwards), is_open, "{round}: {proto} to {inwards}");
                assert_eq!(!silent(&pod, proto, to_node), is_open, "{round}: {proto} to {to_node}");
            }
        }
        match round {
            "isolated" => {
                drop(pod.sh("ip -6 neigh flush dev eth0; ip neigh flush dev eth0 nud reachable").unwrap())
            }
            _ => release(&world),
        }
    }
}

/// Only ingress is isolated: datagrams of the pod leave.
#[test]
fn one_direction_is_isolated_alone() {
    let world = world();
    let (pod, _) = start(&world, "tools");
    for (family, client) in world.outside.iter().enumerate() {
        let to = SocketAddr::new(client.address(), OUTSIDE);
        let (inside, outside) =
            (bound(&pod, SocketAddr::new(addresses()[family], INSIDE)), bound(client, to));
        let arrives = eventually(TIMEOUT, || {
            inside.send_to(b"?", to).unwrap();
            thread::sleep(TICK);
            received(&outside) > 0
        });
        assert!(arrives, "{to}");
        assert!(silent(client, "tcp", SocketAddr::new(addresses()[family], 80)));
        outside.send_to(b"!", SocketAddr::new(addresses()[family], INSIDE)).unwrap();
        thread::sleep(20 * TICK);
        assert_eq!(received(&inside), 0, "answers come only after the decision");
    }
}

/// What a hostile pod sends, and what others send to it: with foreign sources, with its link-local address, in fragments. Each passes
/// once the pod is released, so the test would see it.
#[test]
fn forged_sources_and_fragments_do_not_pass() {
    let world = world();
    let (pod, _) = start(&world, "shop");
    let forged: [IpAddr; 2] = ["10.9.9.9".parse().unwrap(), "fd99::9".parse().unwrap()];
    pod.sh("ip address add 10.9.9.9/32 dev eth0; ip address add fd99::9/128 dev eth0 nodad").unwrap();
    let host_end = world.node.sh("ip -o link show type veth | grep -o 'veth[0-9a-f]*' | head -1").unwrap();
    let host_end = link(&world.node, host_end.trim());
    let local = world
        .node
        .sh(&format!("ip -6 -o address show dev {} scope link", host_end["ifname"].as_str().unwrap()));
    let local = local.unwrap().split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned();
    let on_node = bound(&world.node, "[::]:7002".parse().unwrap());
    let index: u32 = pod.sh("ip -o link show eth0 | cut -d: -f1").unwrap().trim().parse().unwrap();
    let to_link = SocketAddr::V6(std::net::SocketAddrV6::new(local.parse().unwrap(), 7002, 0, index));
    let by_link = bound(&pod, "[::]:0".parse().unwrap());
    let outside =
        world.outside.each_ref().map(|client| bound(client, SocketAddr::new(client.address(), OUTSIDE)));
    let own = addresses().map(|address| bound(&pod, SocketAddr::new(address, INSIDE)));
    let others = forged.map(|address| bound(&pod, SocketAddr::new(address, INSIDE)));
    let large = [0; 4000];
    let play = || -> Vec<usize> {
        let mut counts = Vec::new();
        for (family, client) in world.outside.iter().enumerate() {
            let to = SocketAddr::new(client.address(), OUTSIDE);
            for (from, data) in
                [(&others[family], &large[..3]), (&own[family], &large), (&others[family], &large)]
            {
                let _ = from.send_to(data, to);
                thread::sleep(10 * TICK);
                counts.push(received(&outside[family]));
            }
            let _ = outside[family].send_to(&large, SocketAddr::new(addresses()[family], INSIDE));
            thread::sleep(10 * TICK);
            counts.push(received(&own[family]));
        }
        let _ = by_link.send_to(b"?", to_link);
        thread::sleep(10 * TICK);
        counts.push(received(&on_node));
        counts
    };
    assert_eq!(play(), [0; 9]);
    release(&world);
    assert!(eventually(TIMEOUT, || play().iter().all(|count| *count > 0)), "the control: {:?}", play());
}

/// The file decides, and a pod that the node cannot isolate is refused.
#[test]
fn the_file_decides_who_is_isolated() {
    let world = world();
    let policy = network(&[json!({"type": "policy"})]);
    let try_add = |network: &Network, namespace: &str| {
        let pod = world.pod("one");
        let attached =
            if namespace.is_empty() { pod.attachment("eth0") } else { attachment(&pod, namespace) };
        let added = world.runtime().add(network, &attached).map_err(|error| error.to_string());
        let found = announced(&world);
        if added.is_ok() {
            world.runtime().check(network, &attached).unwrap();
        }
        world.runtime().del(network, &attached).unwrap();
        pod.delete().unwrap();
        assert_eq!(announced(&world), [""; 0]);
        added.map(|_| found)
    };
    assert_eq!(try_add(&policy, "open"), Ok(Vec::new()));
    assert_eq!(world.nft_table("ferrule_pods"), "", "nothing is sent");
    assert_eq!(try_add(&policy, "shop"), Ok(both("one shop/web")));
    assert_eq!(try_add(&policy, "tools").unwrap().len(), 2);
    for damage in ["", "ferrule-policy 1\nshop both\n"] {
        isolate(&world, damage);
        assert_eq!(try_add(&policy, "open"), Ok(both("one open/web")), "{damage:?}");
        assert_eq!(try_add(&policy, ""), Ok(Vec::new()), "no pod");
    }
    world.node.sh("rm /var/lib/ferrule/policy/isolated; mkfifo /var/lib/ferrule/policy/isolated").unwrap();
    assert_eq!(try_add(&policy, "open"), Ok(both("one open/web")));
    world.node.sh("ip link add uplink0 type veth peer name uplink1; ip link set uplink0 up").unwrap();
    let behind = |main| {
        Network::from_value(
            &json!({"name": "others", "cniVersion": "1.1.0", "plugins": [main, {"type": "policy"}]}),
        )
        .unwrap()
    };
    let ipam = json!({"type": "host-local", "subnet": "10.3.0.0/24"});
    let macvlan = try_add(&behind(json!({"type": "macvlan", "master": "uplink0", "ipam": ipam})), "open");
    assert!(macvlan.as_ref().is_err_and(|error| error.contains("never see its packets")), "{macvlan:?}");
    let bridge = json!({"type": "bridge", "bridge": "cni0", "ipam": ipam});
    for (value, refused) in [("0", true), ("1", false)] {
        for family in ["ip", "ip6"] {
            world
                .node
                .write_file(format!("/proc/sys/net/bridge/bridge-nf-call-{family}tables"), value)
                .unwrap();
        }
        let added = try_add(&behind(bridge.clone()), "open");
        assert_eq!(added.as_ref().is_err_and(|error| error.contains("past the rules")), refused, "{added:?}");
    }
}
