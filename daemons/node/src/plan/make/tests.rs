use std::sync::LazyLock;

use clap::Parser as _;

use super::ways::mac;
use super::*;
use crate::arguments::Arguments;
use crate::cluster::{Node, Peer};
use crate::kernel::{Link, Route};
use crate::plan::Pods;

/// A node of the list: name, podCIDRs, InternalIPs, key.
fn peer(name: &str, age: u8, networks: &[&str], addresses: &[&str], key: Option<u8>) -> (String, Peer) {
    let addresses: Vec<_> =
        addresses.iter().map(|ip| serde_json::json!({ "type": "InternalIP", "address": ip })).collect();
    let node = serde_json::json!({
        "metadata": { "name": name, "creationTimestamp": format!("2026-01-0{age}T00:00:00Z") },
        "spec": { "podCIDRs": networks },
        "status": { "addresses": addresses },
    });
    let (name, peer) = serde_json::from_value::<Node>(node).unwrap().check().unwrap();
    (name, Peer { key: key.map(|byte| [byte; 32]), ..peer })
}

fn me() -> (String, Peer) {
    peer("n1", 1, &["10.244.1.0/24", "fd00:1::/64"], &["192.0.2.1", "2001:db8::1"], Some(1))
}

fn route(dst: &str, gw: Option<&str>, link: u32, protocol: u8) -> Route {
    let gws = gw.map(|gw| gw.parse().unwrap()).into_iter().collect();
    Route {
        dst: dst.parse().unwrap(),
        priority: 0,
        protocol,
        gws,
        links: vec![link],
        is_unicast: true,
        is_tuned: false,
    }
}

/// A node with an uplink, a default route, and one link of a pod.
fn local() -> Local {
    let mut local = Local::default();
    for (index, name, mtu) in [(1, "lo", 65536), (2, "eth0", 9000), (3, "ferrule0", 1500)] {
        let link = Link {
            name: name.into(),
            mtu,
            is_up: true,
            is_loopback: index == 1,
            is_bridge: index == 3,
            ..Link::default()
        };
        local.links.insert(index, link);
    }
    let addresses =
        [(1, "127.0.0.1"), (2, "192.0.2.1"), (2, "2001:db8::1"), (3, "10.244.1.1"), (3, "10.99.0.1")];
    local.addresses.extend(addresses.map(|(link, ip)| (link, ip.parse::<IpAddr>().unwrap())));
    local.routes.extend([
        route("0.0.0.0/0", Some("192.0.2.254"), 2, 3),
        route("192.0.2.0/24", None, 2, 2),
        route("2001:db8::/64", None, 2, 2),
        route("10.244.1.0/24", None, 3, 2),
        route("10.98.5.0/24", Some("192.0.2.77"), 2, 4),
    ]);
    local
}

fn plan_with(words: &str, others: Vec<(String, Peer)>, local: &Local, held: &[&str]) -> Plan {
    let words = ["ferrule-node"].into_iter().chain(words.split_whitespace());
    let options = Arguments::try_parse_from(words).unwrap().options;
    let peers: Peers = others.into_iter().chain([me()]).collect();
    let held = held.iter().map(|text| text.parse().unwrap()).collect();
    make(&Facts { options: &options, peers: &peers, local, held: &held, ..facts() }).unwrap()
}

/// Facts about nothing.
fn facts() -> Facts<'static> {
    static NOTHING: LazyLock<(Options, Peers, Local)> =
        LazyLock::new(|| (Arguments::try_parse_from(["x"]).unwrap().options, Peers::new(), Local::default()));
    static SERVERS: LazyLock<BTreeSet<IpAddr>> =
        LazyLock::new(|| BTreeSet::from(["192.0.2.200".parse().unwrap()]));
    static NO_NETWORKS: BTreeSet<IpNetwork> = BTreeSet::new();
    static NO_FORMER: Former = Former::new();
    let (options, peers, local) = &*NOTHING;
    Facts {
        options,
        name: "n1",
        peers,
        local,
        held: &NO_NETWORKS,
        mtu: Some(1450),
        bridge: Some("ferrule0"),
        servers: &SERVERS,
        former: &NO_FORMER,
    }
}

fn plan(words: &str, others: Vec<(String, Peer)>) -> Plan {
    plan_with(words, others, &local(), &[])
}

fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

fn n2() -> (String, Peer) {
    peer("n2", 2, &["10.244.2.0/24", "fd00:2::/64"], &["192.0.2.2", "2001:db8::2"], Some(2))
}

/// Behind a gateway, without an IPv6 address.
fn far() -> (String, Peer) {
    peer("n3", 2, &["10.244.3.0/24", "fd00:3::/64"], &["198.51.100.3"], Some(3))
}

#[test]
fn a_node_on_the_same_link_has_a_route_of_each_family() {
    let plan = plan("", vec![n2()]);
    let direct = |via: &str| Way::Direct { via: via.parse().unwrap(), link: 2 };
    assert_eq!(
        plan.desired.routes,
        BTreeMap::from([
            (net("10.244.2.0/24"), direct("192.0.2.2")),
            (net("fd00:2::/64"), direct("2001:db8::2"))
        ])
    );
    assert_eq!((plan.desired.vxlan, plan.desired.wireguard), (None, None));
    assert_eq!(plan.desired.pods, Some(Pods { networks: me().1.networks, mtu: 9000 }));
    assert!(plan.refusals.is_empty());
}

#[test]
fn a_node_behind_a_gateway_has_vxlan_for_both_families() {
    let plan = plan("--vxlan-id 7", vec![n2(), far()]);
    assert_eq!(plan.desired.routes[&net("10.244.3.0/24")], Way::Vxlan("10.244.3.0".parse().unwrap()));
    assert_eq!(plan.desired.routes[&net("fd00:3::/64")], Way::Vxlan("fd00:3::".parse().unwrap()));
    assert!(matches!(plan.desired.routes[&net("10.244.2.0/24")], Way::Direct { .. }));
    let vxlan = plan.desired.vxlan.unwrap();
    assert_eq!((vxlan.id, vxlan.mtu, vxlan.local), (7, 8950, "192.0.2.1".parse().unwrap()));
    assert_eq!(vxlan.addresses, [net("10.244.1.0/32"), net("fd00:1::/128")]);
    let [peer] = vxlan.peers.as_slice() else { panic!("{:?}", vxlan.peers) };
    assert_eq!((peer.mac, peer.outer), (mac("n3"), "198.51.100.3".parse().unwrap()));
    assert_eq!(plan.desired.pods.unwrap().mtu, 8950);
}

#[test]
fn the_mode_decides() {
    let refused = |words, wanted: &str| {
        let plan = plan(words, vec![far()]);
        plan.refusals.iter().any(|refusal| refusal.node == "n3" && refusal.why.contains(wanted))
    };
    assert!(refused("--mode routes", "the node is behind a gateway"));
    assert!(refused("--mode routes", "the node has no IPv6 address"));
    let vxlan = plan("--mode vxlan", vec![n2()]);
    assert!(vxlan.desired.routes.values().all(|way| matches!(way, Way::Vxlan(_))));
    let wireguard =
        plan("--mode wireguard --wireguard-port 99", vec![n2(), far()]).desired.wireguard.unwrap();
    assert_eq!((wireguard.mtu, wireguard.port, wireguard.peers.len()), (8940, 99, 2));
    assert_eq!(wireguard.peers[0].allowed, n2().1.networks);
    assert_eq!(wireguard.peers[0].endpoint, "192.0.2.2:99".parse().unwrap());
    // With its device from the start, also without nodes.
    assert_eq!(plan("--mode vxlan --mtu 1400", vec![]).desired.pods.unwrap().mtu, 1400);
    assert!(plan("--mode vxlan", vec![]).desired.vxlan.is_some());
}

#[test]
fn a_copied_key_belongs_to_the_older_node() {
    let copy = peer("n0", 3, &["10.244.9.0/24"], &["192.0.2.9"], Some(2));
    let plan = plan("--mode wireguard", vec![n2(), copy]);
    let names: Vec<String> =
        plan.desired.wireguard.unwrap().peers.into_iter().map(|peer| peer.name).collect();
    assert_eq!(names, ["n2"]);
    assert_eq!(plan.refusals.first().unwrap().why, "its WireGuard key is that of node n2");
}

#[test]
fn podcidrs_with_addresses_or_routes_of_this_node_are_refused() {
    const ROUTE: &str = "it holds a route of this node: 10.98.5.0/24 via 192.0.2.77 dev eth0 (protocol 4); ip route del 10.98.5.0/24 removes it";
    for (network, why) in [
        ("10.99.0.0/24", "it holds the address 10.99.0.1 of ferrule0 on this node"),
        ("10.98.0.0/16", ROUTE),
        ("10.98.5.0/24", ROUTE),
    ] {
        let evil = || peer("evil", 2, &[network], &["192.0.2.6"], None);
        let refused = plan("", vec![evil(), n2()]);
        let reasons: Vec<&str> = refused.refusals.iter().map(|refusal| refusal.why.as_str()).collect();
        assert_eq!((reasons, refused.desired.routes.len()), (vec![why], 2), "{network}");
        // A way that was there first stays.
        assert_eq!(plan_with("", vec![evil()], &local(), &[network]).desired.routes.len(), 1, "{network}");
        let mut restarted = local();
        restarted.routes.insert(route(network, Some("192.0.2.6"), 2, crate::kernel::PROTOCOL));
        assert_eq!(plan_with("", vec![evil()], &restarted, &[]).desired.routes.len(), 1, "{network}");
    }
}

#[test]
fn a_node_that_is_not_ready_waits() {
    let waits = |words, other: (String, Peer), local: &Local| {
        let plan = plan_with(words, vec![other.clone()], local, &[]);
        assert!(plan.desired.routes.is_empty() && plan.refusals.is_empty(), "{plan:?}");
        match &plan.nodes[&other.0][0].1 {
            State::Waits(why) => why.clone(),
            state => panic!("{state:?}"),
        }
    };
    let no_address = peer("n2", 2, &["10.244.2.0/24"], &[], None);
    assert_eq!(waits("", no_address, &local()), "the node has no address yet");
    let no_key = peer("n2", 2, &["10.244.2.0/24"], &["192.0.2.2"], None);
    assert_eq!(
        waits("--mode wireguard", no_key.clone(), &local()),
        "the node has announced no WireGuard key yet"
    );
    let mut down = local();
    down.routes.clear();
    assert_eq!(waits("", no_key, &down), "this node has no route to 192.0.2.2");
}

#[test]
fn an_address_of_this_node_is_no_gateway() {
    let plan = plan("", vec![peer("n2", 2, &["10.244.2.0/24"], &["10.99.0.1"], None)]);
    assert_eq!(plan.refusals.first().unwrap().why, "the node's address 10.99.0.1 belongs to this node");
}

#[test]
fn only_what_leaves_the_cluster_is_masqueraded() {
    let words = "--masquerade ipv4 --masquerade-exclude 10.0.0.0/8 --cluster-cidr 10.244.0.0/16";
    let masquerade = plan(words, vec![n2()]).desired.masquerade.unwrap();
    assert_eq!(masquerade.own, [net("10.244.1.0/24")]);
    for network in ["10.244.0.0/16", "10.244.1.0/24", "10.244.2.0/24", "fd00:1::/64", "fd00:2::/64"] {
        assert!(masquerade.cluster.contains(&net(network)), "{network}");
    }
    assert_eq!(masquerade.exclude, [net("10.0.0.0/8")]);
    assert_eq!(plan("--masquerade none", vec![]).desired.masquerade, None);
}

#[test]
fn this_node_is_not_ready_without_a_podcidr_of_its_own() {
    let thief = peer("n0", 1, &["10.244.1.0/24"], &["192.0.2.9"], None);
    let plan = plan("", vec![thief]);
    assert_eq!(plan.desired.pods.unwrap().networks, [net("fd00:1::/64")]);
    assert_eq!(plan.refusals.last().unwrap().node, "n1");
    assert_eq!(make(&Facts { peers: &Peers::from([n2()]), ..facts() }), None);
}

#[test]
fn the_mtu_stays_while_the_uplink_is_away() {
    let mut down = local();
    down.links.get_mut(&2).unwrap().is_up = false;
    for (local, words, mtu) in
        [(&down, "", 1450), (&Local::default(), "", 1450), (&down, "--mtu 1400", 1400), (&local(), "", 9000)]
    {
        assert_eq!(plan_with(words, vec![], local, &[]).desired.pods.unwrap().mtu, mtu);
    }
}

/// Nothing here is quadratic: the test would take minutes.
#[test]
fn five_thousand_nodes_are_planned() {
    let others = (0..5000_u32).map(|n| {
        let [_, _, high, low] = n.to_be_bytes();
        let cidrs = [format!("10.{}.{low}.0/24", 100 + high), format!("fd01:{n:x}::/64")];
        let address = format!("198.18.{high}.{low}");
        peer(&format!("node-{n}"), 2, &cidrs.each_ref().map(String::as_str), &[&address], None)
    });
    let others = others.collect();
    let plan = plan("", others);
    assert_eq!((plan.desired.routes.len(), plan.desired.vxlan.unwrap().peers.len()), (10_000, 5_000));
}

mod networks;
