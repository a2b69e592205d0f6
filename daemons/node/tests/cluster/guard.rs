//! What pods may send: with their own addresses, and no VXLAN to a node. What VXLAN takes from whom.

use std::net::{IpAddr, UdpSocket};

use cni_lab::testing::ask;
use cni_lab::{Place, Pod};
use ferrule_kernel::ip::checksum;
use serde_json::Value;

use crate::lab::{Cluster, HUB, PORT, wait};
use crate::member::{Member, Running};

/// How many of a few packets that the work sends reach the pod.
fn seen(pod: &Pod, rule: &str, work: impl FnOnce()) -> u64 {
    pod.sh(&format!(
        "nft 'table inet seen; delete table inet seen; table inet seen {{ chain c {{ type filter hook input priority 0; {rule} counter; }}; }}'"
    ))
    .unwrap();
    work();
    let text = pod.sh("nft -j list table inet seen").unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    let counters =
        found["nftables"].as_array().unwrap().iter().filter_map(|object| object["rule"]["expr"].as_array());
    counters.flatten().filter_map(|expr| expr["counter"]["packets"].as_u64()).sum()
}

/// How many of two echo requests with this source arrive.
fn arrive(from: &Pod, source: IpAddr, to: &Running<'_>) -> u64 {
    let (family, prefix, to_ip) = match source {
        IpAddr::V4(_) => ("ip", 32, to.addresses[0]),
        IpAddr::V6(_) => ("ip6", 128, to.addresses[1]),
    };
    let has = from.sh(&format!("ip -o addr | grep -qwF '{source}'")).is_ok();
    if !has {
        from.sh(&format!("ip addr add {source}/{prefix} dev lo nodad")).unwrap();
    }
    let count = seen(
        &to.pod,
        &format!("{family} saddr {source} icmp{}type echo-request", if prefix == 32 { " " } else { "v6 " }),
        || {
            // Answers to other sources go elsewhere. The first packet may come while the kernel looks for a neighbour.
            let _ = from.sh(&format!("ping -c 2 -i 0.1 -W 0.3 -I {source} {to_ip}"));
        },
    );
    if !has {
        from.sh(&format!("ip addr del {source}/{prefix} dev lo")).unwrap();
    }
    count
}

fn metric(member: &Member, name: &str) -> u64 {
    let (_, text) = member.http("/metrics");
    let values =
        text.lines().filter_map(|line| line.strip_prefix(name)?.split(' ').next_back()?.parse::<u64>().ok());
    values.sum()
}

#[test]
fn pods_send_with_their_own_addresses_only() {
    let mut cluster = Cluster::new();
    for member in cluster.members_mut() {
        member.start(
            "--mode vxlan --main ptp --source-guard on --source-guard-allow 203.0.113.0/24,2001:db8:aaaa::/64",
        );
    }
    let Cluster { a, b, .. } = &cluster;
    for member in [a, b] {
        member.until("a conflist", || member.conflist().is_some());
    }
    let (one, two, four) = (a.pod("one"), b.pod("two"), a.pod("four"));
    one.reaches(&two);
    one.reaches(&four);
    // The node's own processes, as the kubelet's probes.
    for address in &one.addresses {
        wait("an answer", || ask(&a.node, "tcp", (*address, PORT).into()), Result::is_ok).unwrap();
    }
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let [node4, node6] = a.addresses();
    for to in [&two, &four] {
        for own in &one.addresses {
            assert!(arrive(&one.pod, *own, to) > 0, "{own}");
        }
        for allowed in ["203.0.113.5", "2001:db8:aaaa::5"] {
            assert!(arrive(&one.pod, ip(allowed), to) > 0, "{allowed} to {}", to.pod.name());
        }
        // Of nobody, of the node, of another node's pod, of a pod of this node.
        let mut others = vec![ip("198.51.100.77"), ip("2001:db8:77::1"), ip(&node4), ip(&node6)];
        others.extend(
            [&two, &four]
                .iter()
                .filter(|other| other.pod.name() != to.pod.name())
                .flat_map(|other| &other.addresses),
        );
        for other in others {
            assert_eq!(arrive(&one.pod, other, to), 0, "{other} to {}", to.pod.name());
        }
    }
    let link = a.sh("ip -j route show");
    let routes: Vec<Value> = serde_json::from_str(&link).unwrap();
    let own = one.addresses[0].to_string();
    let link = routes.iter().find(|route| route["dst"] == own.as_str()).unwrap()["dev"].as_str().unwrap();
    let dropped = metric(a, &format!("ferrule_node_guard_forged_total{{link=\"{link}\"}}"));
    assert!(dropped >= 20, "{}", a.http("/metrics").1);
    assert_eq!(metric(a, "ferrule_node_guard_forged_total"), dropped, "no other pod is blamed");
    let status = String::from_utf8(a.run("status --no-probe").stdout).unwrap();
    assert!(status.contains(&format!("packets of the pod {own} ")) && status.contains(link), "{status}");
    // What a pod sends when it starts is its own, with neither address too.
    one.pod.sh("ip link set eth0 down; ip link set eth0 up").unwrap();
    assert_eq!(metric(a, "ferrule_node_guard_forged_total"), dropped);
    one.end();
    four.end();
}

/// An UDP datagram within VXLAN: to port 9 of `to`.
fn packed(vni: u32, mac: [u8; 6], from: &str, to: &str) -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let udp = [0, 9, 0, 9, 0, 8, 0, 0];
    let mut ip = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    ip.extend([address(from), address(to)].concat());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let mut packet = vec![8, 0, 0, 0];
    packet.extend((vni << 8).to_be_bytes());
    packet.extend(mac);
    packet.extend([2, 0, 0, 0, 0, 66, 8, 0]);
    [packet, ip, udp.to_vec()].concat()
}

fn send(place: &impl Place, packet: &[u8], to: &str) {
    let work = || {
        let any = if to.contains('[') { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any).unwrap();
        // The kernel may still look for a neighbour, and the guard may refuse.
        for _ in 0..3 {
            let _ = socket.send_to(packet, to);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    place.run(work).unwrap();
}

#[test]
fn vxlan_is_for_nodes_and_each_has_its_own_sources() {
    let mut cluster = Cluster::new();
    for member in cluster.members_mut() {
        member.start("--mode vxlan");
    }
    let Cluster { hub, a, b, c, .. } = &cluster;
    for member in [a, b, c] {
        member.until("a conflist", || member.conflist().is_some());
    }
    let (one, two, three) = (a.pod("one"), b.pod("two"), c.pod("three"));
    one.reaches(&two);
    three.reaches(&two);
    let mac: Vec<u8> = b
        .sh("ip -o link show ferrule.vxlan | sed 's/.*ether //; s/ .*//'")
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let mac: [u8; 6] = mac.try_into().unwrap();
    let target = two.addresses[0].to_string();
    let (of_a, of_c) = (one.addresses[0].to_string(), three.addresses[0].to_string());
    let [b4, b6] = b.addresses();
    let port = format!("{b4}:4789");
    let through = |from: &str, work: &dyn Fn(&[u8])| {
        let packet = packed(7471, mac, from, &target);
        seen(&two.pod, &format!("ip saddr {from} udp dport 9"), || work(&packet))
    };
    // A node sends for its own pods and itself, for nobody else.
    for (from, expected) in [
        (of_a.as_str(), true),
        ("192.0.2.1", true),
        (&of_c, false),
        ("198.51.100.3", false),
        ("9.9.9.9", false),
    ] {
        assert_eq!(through(from, &|packet| send(&a.node, packet, &port)) > 0, expected, "{from}");
    }
    // A machine that is no Node, and a Node to another address of the node.
    assert_eq!(through(&of_a, &|packet| send(hub, packet, &port)), 0);
    b.sh("ip addr add 192.0.2.77/24 dev eth0");
    assert_eq!(through(&of_a, &|packet| send(&a.node, packet, "192.0.2.77:4789")), 0);
    // A pod gets the node's address on its way out of the cluster.
    assert_eq!(through(&of_a, &|packet| send(&one.pod, packet, &port)), 0);
    // As Services and host ports do, on the pod's node, on another one, and on the node itself.
    for member in [a, b, c] {
        member.sh(&format!(
            "nft 'table ip services {{ chain pre {{ type nat hook prerouting priority -100; udp dport 5555 dnat to {b4}:4789; }}; \
             chain post {{ type nat hook postrouting priority 100; ct status dnat masquerade; }}; }}'"
        ));
    }
    for way in [HUB[0][0].to_owned(), a.addresses()[0].clone(), b4.clone(), c.addresses()[0].clone()] {
        assert_eq!(through(&of_a, &|packet| send(&one.pod, packet, &format!("{way}:5555"))), 0, "{way}");
        // Those of c come with the address of c.
        assert_eq!(through(&of_c, &|packet| send(&one.pod, packet, &format!("{way}:5555"))), 0, "{way}");
    }
    // The port of IPv6, and VXLANs of other programs.
    let refused = || metric(a, "ferrule_node_guard_drops_total{chain=\"to_vxlan\"}");
    let before = refused();
    send(&one.pod, &packed(7471, mac, &of_a, &target), &format!("[{b6}]:4789"));
    assert_eq!(refused(), before + 3, "{}", a.http("/metrics").1);
    let arrived = || metric(b, "ferrule_node_guard_drops_total{chain=\"arrived\"}");
    let before = arrived();
    send(hub, &packed(7, mac, &of_a, &target), &port);
    assert_eq!(arrived(), before);
    // Pods go on, in both families and to nodes.
    one.reaches(&two);
    three.reaches(&one);
    for address in &two.addresses {
        wait("an answer", || ask(&a.node, "tcp", (*address, PORT).into()), Result::is_ok).unwrap();
    }
}
