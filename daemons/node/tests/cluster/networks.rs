//! Networks as people have them. The unit tests of the plan have a row for each.

use std::process::Command;

use cni_lab::{Background, Place as _};
use serde_json::json;

use crate::lab::{Cluster, node_object, node_path, wait};
use crate::member::{CONFLIST, Member, Running};

impl Member {
    /// Waits for a line with each of these words in the log, and for a status that says it.
    fn says(&self, words: &str) {
        self.until(words, || !self.lines(words).is_empty());
        let text = words.split(": ").last().unwrap();
        wait(
            "in the status",
            || self.sh("cat /run/ferrule/node/status.json"),
            |status| status.contains(text),
        );
    }

    fn is_ready(&self) {
        wait("ready", || self.http("/readyz"), |answer| answer.1.lines().next() == Some("ready"));
    }
}

/// The API server stays reachable, other nodes get their conflist, and a correction arrives.
#[test]
fn bad_node_objects() {
    let mut cluster = Cluster::new();
    for (name, address, network) in [
        ("api", "192.0.2.66", "192.0.2.254/32"),
        ("broadcast", "192.0.2.255", "10.244.66.0/24"),
        ("edge", "192.0.2.0", "10.244.67.0/24"),
        ("copy", "192.0.2.2", "10.244.68.0/24"),
        ("here", "192.0.2.1", "10.244.69.0/24"),
    ] {
        let mut object = node_object(&[address], &[network]);
        object["metadata"] = json!({"creationTimestamp": "2099-01-01T00:00:00Z"});
        cluster.store.put(&node_path(name), object);
    }
    // An earlier release has made the route.
    cluster.a.sh("ip route add 10.244.2.0/24 via 192.0.2.2 proto 79");
    for member in cluster.members_mut() {
        member.start("");
    }
    // c is behind a router, and cannot know the addresses of this link.
    for member in cluster.members() {
        member.until("a conflist", || member.conflist().is_some());
    }
    let Cluster { a, b, c, .. } = &cluster;
    a.has_routes(&[a.ways_to(b), a.ways_to(c)].concat());
    for name in ["api", "broadcast", "edge", "copy", "here"] {
        wait("an Event", || cluster.warnings(name), |events| !events.is_empty());
        cluster.store.delete(&node_path(name));
    }
    cluster.settled();
    a.is_ready();
    a.pod("one").reaches(&b.pod("two"));

    // This node's object is bad.
    let own = a.pod_cidrs();
    let own = own.each_ref().map(String::as_str);
    for (object, words) in [
        (node_object(&["192.0.2.1"], &[]), "podcidr: the Node object a has no podCIDR"),
        (
            node_object(&["192.0.2.1"], &["192.0.2.248/29"]),
            "podcidr: the Node object a has no podCIDR that this node can use: 192.0.2.248/29 is not used",
        ),
        (node_object(&["192.0.2.99"], &own), "address: the Node object a has the InternalIP 192.0.2.99"),
    ] {
        cluster.store.put(&node_path("a"), object);
        a.says(words);
        cluster.store.put(&node_path("a"), a.object());
        cluster.settled();
        a.is_ready();
    }
}

/// Without removing anything by hand, and without harm to pods that run.
#[test]
fn two_nodes_swap_their_podcidrs() {
    let cluster = Cluster::started("--main bridge");
    let Cluster { a, b, .. } = &cluster;
    let (one, two) = (a.pod("one"), b.pod("two"));
    one.reaches(&two);
    two.end();
    let object = |of: &Member, networks: [String; 2]| {
        let addresses = of.addresses();
        let addresses = addresses.each_ref().map(String::as_str);
        node_object(&addresses, &networks.each_ref().map(String::as_str))
    };
    cluster.store.put(&node_path("a"), object(a, b.pod_cidrs()));
    cluster.store.put(&node_path("b"), object(b, a.pod_cidrs()));
    // b has no pods: its bridge gives the address away. a waits for its pod, which keeps its way out.
    let [to_a4, _] = b.ways_to(a);
    let route = to_a4.replace("10.244.1.0", "10.244.2.0");
    wait("a route to a", || b.routes(), |routes| routes.contains(&route));
    let addresses = || b.sh("ip -4 addr show dev ferrule0");
    wait("no former address", addresses, |said| !said.contains("10.244.2.1/"));
    a.says("former: 10.244.1.0/24 of node b: pods on ferrule0");
    assert!(a.sh("nft list table inet ferrule_node").contains("ip saddr 10.244.1.0/24"));
    let new = a.pod("new");
    assert!(new.addresses[0].to_string().starts_with("10.244.2."), "{:?}", new.addresses);
    one.end();
    let [to_b4, _] = a.ways_to(b);
    let route = to_b4.replace("10.244.2.0", "10.244.1.0");
    // The daemon looks again at the latest after a minute; a change of the cluster is sooner.
    cluster.store.put(&node_path("d"), node_object(&["192.0.2.9"], &["10.244.9.0/24"]));
    wait("a route to b", || a.routes(), |routes| routes.contains(&route));
    new.reaches(&b.pod("three"));
    a.is_ready();
}

/// An IPv4 default route with an IPv6 next hop, as with BGP unnumbered, and one by a next hop object.
#[test]
fn unusual_default_routes() {
    let mut cluster = Cluster::new();
    for member in [&cluster.a, &cluster.b] {
        let [v4, _] = member.addresses();
        member.sh(&format!(
            "ip addr flush dev eth0 scope global; ip addr replace {v4}/32 dev eth0
            ip addr replace 2001:db8::{}/64 dev eth0 nodad; ip -4 route replace default via inet6 2001:db8::fe dev eth0
            ip -6 route replace default via 2001:db8::fe",
            v4.rsplit('.').next().unwrap()
        ));
    }
    cluster.c.sh("ip nexthop add id 5 via 198.51.100.254 dev eth0; ip route replace default nhid 5");
    for member in cluster.members_mut() {
        member.start("");
    }
    let Cluster { a, b, c, .. } = &cluster;
    let [_, direct] = a.ways_to(b);
    let others = a.ways_to(c);
    a.has_routes(&[
        "10.244.2.0/24 via 10.244.2.0 dev ferrule.vxlan".to_owned(),
        direct,
        others[0].clone(),
        others[1].clone(),
    ]);
    c.has_routes(&[c.ways_to(a), c.ways_to(b)].concat());
    for member in cluster.members() {
        member.until("a conflist", || member.conflist().is_some());
    }
    let pods = [a.pod("one"), b.pod("two"), c.pod("three")];
    pods[0].reaches(&pods[1]);
    pods[1].reaches(&pods[2]);
    pods[2].reaches(&pods[0]);
}

/// A tun device has no link layer, as WireGuard and PPP.
#[test]
fn a_vpn_between_the_nodes() {
    let mut cluster = Cluster::new();
    cluster.breaks("no program carries the packets of the tun devices");
    for (member, number) in [(&cluster.a, 1), (&cluster.b, 2)] {
        member.sh(&format!(
            "ip tuntap add vpn mode tun; ip link set vpn up mtu 1420; ip addr add 172.16.0.{number}/24 dev vpn"
        ));
        let networks = member.pod_cidrs();
        let object = node_object(&[&format!("172.16.0.{number}")], &[&networks[0]]);
        cluster.store.put(&node_path(member.name), object);
    }
    cluster.store.delete(&node_path("c"));
    cluster.a.start("");
    cluster.b.start("");
    for (member, other) in [(&cluster.a, &cluster.b), (&cluster.b, &cluster.a)] {
        let [network, _] = other.pod_cidrs();
        member.has_routes(&[format!("{network} via {} dev ferrule.vxlan", network.trim_end_matches("/24"))]);
        member
            .until("a conflist", || member.conflist().is_some_and(|list| list["plugins"][0]["mtu"] == 1370));
    }
}

/// IPv4 goes on everywhere, and IPv6 between the other nodes.
#[test]
fn nodes_without_ipv6() {
    for (spoil, words) in [
        ("sysctl -qw net.ipv6.conf.all.disable_ipv6=1", "IPv6 is off on this node"),
        ("ip link set eth0 mtu 1300", "leaves 1250 bytes"),
        ("", ""),
    ] {
        let mut cluster = Cluster::new();
        cluster.a.sh(spoil);
        let (a4, networks) = (&cluster.a.addresses()[0], cluster.a.pod_cidrs());
        let object = node_object(&[a4], &networks.each_ref().map(String::as_str));
        cluster.store.put(&node_path("a"), object);
        for member in cluster.members_mut() {
            member.start("");
        }
        let Cluster { a, b, c, .. } = &cluster;
        for member in cluster.members() {
            member.until("a conflist", || member.conflist().is_some());
        }
        if words.is_empty() {
            // By VXLAN over IPv4, in both directions.
            let pods = [a.pod("one"), b.pod("two"), c.pod("three")];
            pods[0].reaches(&pods[1]);
            pods[2].reaches(&pods[0]);
            a.is_ready();
            continue;
        }
        a.says("family: the pods of this node get no IPv6 addresses");
        a.says(words);
        wait("routes", || a.routes(), |routes| routes.len() == 2);
        let pods = [b.pod("two"), c.pod("three"), a.pod("one")];
        assert_eq!(pods[2].addresses.len(), 1);
        pods[0].reaches(&pods[1]);
        pods[2].reaches(&pods[0]);
        pods[2].reaches(&pods[1]);
    }
}

/// Sends router advertisements from the link `lan` until it is killed.
const ROUTER: &str = "
import socket, struct, time
index = socket.if_nametoindex('lan')
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
while True:
    try: s.sendto(struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 1800, 0, 0), ('ff02::1', 0, 0, index))
    except OSError: pass
    time.sleep(0.1)
";

#[test]
fn a_default_route_of_a_router_stays() {
    let mut cluster = Cluster::new();
    let a = &cluster.a;
    a.sh("ip -6 route del default; sysctl -qw net.ipv6.conf.eth0.accept_ra=1");
    let mut router = Command::new("python3");
    router.args(["-c", ROUTER]);
    let router: Background = cluster.hub.spawn(router).unwrap();
    let default = |a: &Member| a.sh("ip -6 route show default proto ra");
    wait("a router's route", || default(a), |found| found.contains("eth0"));
    drop(router);
    cluster.a.start("");
    let a = &mut cluster.a;
    a.until("a conflist", || a.conflist().is_some());
    let values = |a: &Member| {
        a.sh("cat /proc/sys/net/ipv6/conf/all/forwarding /proc/sys/net/ipv6/conf/eth0/accept_ra")
    };
    assert_eq!((values(a).as_str(), default(a).is_empty()), ("1\n2\n", false));
    assert!(!a.lines("net/ipv6/conf/eth0/accept_ra to 2").is_empty());
    // Another program turns forwarding off.
    a.sh("sysctl -qw net.ipv6.conf.all.forwarding=0; sysctl -qw net.ipv4.ip_forward=0");
    wait(
        "forwarding",
        || a.sh("cat /proc/sys/net/ipv4/ip_forward") + &values(a),
        |found| found == "1\n1\n2\n",
    );
    a.end("TERM");
    assert!(a.run("cleanup").status.success());
    assert_eq!(values(a), "0\n1\n");
}

#[test]
fn left_overs_of_another_network() {
    let mut cluster = Cluster::new();
    let a = &cluster.a;
    a.sh("ip link add cni0 type bridge; ip link set cni0 up; ip addr add 10.244.1.1/24 dev cni0
        ip route add blackhole 10.244.1.64/26 proto 80");
    for member in cluster.members_mut() {
        member.start("");
    }
    cluster.settled();
    let a = &cluster.a;
    wait("no address", || a.sh("ip -4 addr show dev cni0"), String::is_empty);
    a.says("leftover: a route takes packets to pods of this node's podCIDR 10.244.1.0/24: 10.244.1.64/26");
    a.sh("ip route del 10.244.1.64/26");
    a.is_ready();
    let (one, two) = (a.pod("one"), cluster.b.pod("two"));
    one.reaches(&two);
    // Routes that come before ours.
    a.sh("ip route prepend 10.244.2.0/24 via 192.0.2.99");
    wait(
        "our route alone",
        || a.sh("ip route show 10.244.2.0/24"),
        |found| found.lines().count() == 1 && found.contains("192.0.2.2 "),
    );
    a.sh("ip -6 route add fd00:244:2::/64 via 2001:db8::99 metric 100");
    a.says("way: packets to the pods of node b (fd00:244:2::/64) take another route: fd00:244:2::/64 via 2001:db8::99");
    a.sh("ip -6 route del fd00:244:2::/64 metric 100");
    a.is_ready();
    one.reaches(&two);
    [one, two].into_iter().for_each(Running::end);
    assert!(a.node.read_file(CONFLIST).is_ok());
}

/// Docker sets the policy before or after the daemon starts, and firewalls remove foreign rules.
#[test]
fn forward_drops_packets() {
    let mut cluster = Cluster::new();
    cluster.a.sh("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP; iptables-nft -A FORWARD -d 203.0.113.0/24 -j REJECT");
    for member in cluster.members_mut() {
        member.start("");
    }
    cluster.settled();
    let Cluster { a, b, .. } = &cluster;
    let (one, two) = (a.pod("one"), b.pod("two"));
    one.reaches(&two);
    two.reaches(&one);
    let opened = |rules: &String| rules.lines().last() == Some("-A FORWARD -j FERRULE-NODE");
    // A node port of this node may lead to a pod of another one.
    let accepts = |network: &str| {
        ["-s", "-d"].map(|end| format!("-A FERRULE-NODE {end} {network} -j ACCEPT\n")).concat()
    };
    let has = ["10.244.1.0/24", "10.244.2.0/23"].map(accepts).concat();
    let rules = |member: &Member| member.sh("iptables-nft -S FORWARD");
    for damage in [
        "iptables-nft -F",
        "iptables-nft -F FORWARD",
        "iptables-nft -F FERRULE-NODE",
        "nft flush ruleset; iptables-nft -P FORWARD DROP",
    ] {
        a.sh(damage);
        wait(damage, || rules(a), opened);
        wait(damage, || a.sh("iptables-nft -S FERRULE-NODE"), |rules| rules.ends_with(&has));
    }
    wait("no chain", || b.sh("iptables-nft -S"), |rules| !rules.contains("FERRULE"));
    b.sh("iptables-nft -P FORWARD DROP");
    wait("the chain", || rules(b), opened);
    one.reaches(&two);
    b.sh("iptables-nft -P FORWARD ACCEPT");
    wait("no chain", || b.sh("iptables-nft -S"), |rules| !rules.contains("FERRULE"));
    b.sh("iptables-nft -A FORWARD -j REJECT");
    b.says("forwarding: a rule in FORWARD of iptables drops the packets of pods");
    b.sh("iptables-nft -F FORWARD");
    b.is_ready();
    cluster.a.end("TERM");
    assert!(cluster.a.run("cleanup").status.success());
    assert_eq!(cluster.a.sh("iptables-nft -S"), "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n");
}
