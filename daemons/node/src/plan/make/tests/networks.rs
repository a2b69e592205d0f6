//! Networks as people have them: what works, and what is refused with which reason.

use ferrule_kit::origin::named;

use super::*;
use crate::reason::Code;

/// The reasons as `code: text`.
fn reasons(plan: &Plan) -> Vec<String> {
    plan.reasons.iter().map(|reason| format!("{}: {}", reason.code.key(), reason.text)).collect()
}

/// The plan of n1, whose object is `me`.
fn plan_of(me: (String, Peer), others: Vec<(String, Peer)>, facts: Facts<'_>) -> Plan {
    let peers: Peers = others.into_iter().chain([me]).collect();
    make(&Facts { peers: &peers, ..facts }).unwrap()
}

fn is_vxlan(plan: &Plan, network: &str) -> bool {
    matches!(plan.desired.routes.get(&net(network)), Some(Way::Vxlan(_)))
}

#[test]
fn this_nodes_object_is_checked() {
    let local = local();
    let older = || peer("n0", 1, &["10.244.9.0/24"], &["192.0.2.1"], None);
    for (networks, addresses, others, expected) in [
        (
            &[][..],
            &["192.0.2.1"][..],
            vec![],
            "podcidr: the Node object n1 has no podCIDR: new pods cannot start",
        ),
        (
            &["192.0.2.200/32"],
            &["192.0.2.1"],
            vec![],
            "podcidr: the Node object n1 has no podCIDR that this node can use: 192.0.2.200/32 is not used: it holds the address 192.0.2.200 of the API server",
        ),
        (
            &["192.0.2.248/29"],
            &["192.0.2.1"],
            vec![],
            "podcidr: the Node object n1 has no podCIDR that this node can use: 192.0.2.248/29 is not used: it holds 192.0.2.254, the gateway of this node's route to 0.0.0.0/0",
        ),
        (&["192.0.2.248/29", "fd00:1::/64"], &["192.0.2.1"], vec![], ""),
        (
            &["10.244.1.0/24"],
            &["192.0.2.77"],
            vec![],
            "address: the Node object n1 has the InternalIP 192.0.2.77, which no link of this node has",
        ),
        (
            &["10.244.1.0/24"],
            &[],
            vec![],
            "address: the Node object n1 has no InternalIP: other nodes do not reach its pods",
        ),
        (
            &["10.244.1.0/24"],
            &["192.0.2.1"],
            vec![older()],
            "address: other nodes do not reach the pods of node n1: the node's address 192.0.2.1 is that of node n0, which had it first",
        ),
        (&["10.244.1.0/24", "fd00:1::/64"], &["192.0.2.1", "2001:db8::1"], vec![], ""),
    ] {
        let plan =
            plan_of(peer("n1", 2, networks, addresses, None), others, Facts { local: &local, ..facts() });
        assert_eq!(reasons(&plan).join("\n"), expected);
        let is_usable = |network: &&&str| !network.starts_with("192.");
        let usable: Vec<IpNetwork> = networks.iter().filter(is_usable).map(|network| net(network)).collect();
        assert_eq!(plan.desired.pods.map(|pods| pods.networks), Some(usable).filter(|list| !list.is_empty()));
    }
}

#[test]
fn a_bad_node_object_harms_no_other_node() {
    for (network, address, why) in [
        ("192.0.2.200/30", "192.0.2.9", "it holds the address 192.0.2.200 of the API server"),
        (
            "192.0.2.254/32",
            "192.0.2.9",
            "it holds 192.0.2.254, the gateway of this node's route to 0.0.0.0/0",
        ),
        (
            "10.244.9.0/24",
            "192.0.2.255",
            "the node's address 192.0.2.255 is the first or the broadcast address of 192.0.2.0/24, which no host can have",
        ),
        (
            "10.244.9.0/24",
            "192.0.2.0",
            "the node's address 192.0.2.0 is the first or the broadcast address of 192.0.2.0/24, which no host can have",
        ),
        ("10.244.9.0/24", "192.0.2.1", "the node's address 192.0.2.1 is that of node n1, which had it first"),
        ("10.244.9.0/24", "192.0.2.2", "the node's address 192.0.2.2 is that of node n2, which had it first"),
    ] {
        let bad = peer("bad", 3, &[network], &[address], None);
        for words in ["", "--mode vxlan"] {
            // A route that is there already does not help it: without the API server nobody would hear of a correction.
            let held: &[&str] = if why.starts_with("it holds") { &[network] } else { &[] };
            let plan = plan_with(words, vec![n2(), bad.clone()], &local(), held);
            let refusals: Vec<&str> = plan.refusals.iter().map(|refusal| refusal.why.as_str()).collect();
            assert_eq!(refusals, [why], "{words}");
            assert_eq!((plan.desired.routes.len(), plan.reasons.len()), (2, 0));
            let cluster = plan.desired.masquerade.unwrap().cluster;
            assert_eq!(
                cluster.contains(&net(network)),
                !why.starts_with("it holds"),
                "pods reach what they reached"
            );
        }
    }
}

/// The IPv6 addresses of a VPN's link are on the link, too.
#[test]
fn links_without_a_link_layer_get_vxlan() {
    let mut local = local();
    local.links.get_mut(&2).unwrap().is_tunnel = true;
    let auto = plan_with("", vec![n2()], &local, &[]);
    assert!(is_vxlan(&auto, "10.244.2.0/24") && is_vxlan(&auto, "fd00:2::/64"));
    assert_eq!(auto.desired.pods.unwrap().mtu, 8950);
    // The administrator says that the VPN carries pods' addresses.
    let routes = plan_with("--mode routes", vec![n2()], &local, &[]);
    assert!(routes.desired.routes.values().all(|way| matches!(way, Way::Direct { link: 2, .. })));
}

#[test]
fn a_hole_in_dual_stack_is_the_same_at_both_ends() {
    let local = local();
    let hole = |name, number| {
        let networks = [format!("10.244.{number}.0/24"), format!("fd00:{number}::/64")];
        peer(name, 2, &networks.each_ref().map(String::as_str), &[&format!("192.0.2.{number}")], None)
    };
    let there = plan_of(me(), vec![hole("n2", 2)], Facts { local: &local, ..facts() });
    let here = plan_of(hole("n1", 1), vec![n2()], Facts { local: &local, ..facts() });
    for plan in [there, here] {
        assert!(is_vxlan(&plan, "fd00:2::/64") && !is_vxlan(&plan, "10.244.2.0/24"), "{plan:?}");
        assert!(plan.reasons.is_empty() && plan.refusals.is_empty());
    }
    // The hole in IPv4: VXLAN of both would have other packets. IPv6 goes on.
    let six = |name, number| {
        let networks = [format!("10.244.{number}.0/24"), format!("fd00:{number}::/64")];
        peer(name, 2, &networks.each_ref().map(String::as_str), &[&format!("2001:db8::{number}")], None)
    };
    let there = plan_of(me(), vec![six("n2", 2)], Facts { local: &local, ..facts() });
    let here = plan_of(six("n1", 1), vec![n2()], Facts { local: &local, ..facts() });
    for plan in [there, here] {
        let routes: Vec<&IpNetwork> = plan.desired.routes.keys().collect();
        assert_eq!((routes, plan.refusals.len()), (vec![&net("fd00:2::/64")], 1), "{plan:?}");
    }
}

#[test]
fn ipv4_goes_on_without_ipv6() {
    let mut off = local();
    off.no_ipv6 = Some("IPv6 is off".into());
    let mut small = local();
    small.links.get_mut(&2).unwrap().mtu = 1300;
    for (local, words, text) in [
        (&off, "", "family: the pods of this node get no IPv6 addresses: IPv6 is off"),
        (&off, "--mode wireguard", "family: the pods of this node get no IPv6 addresses: IPv6 is off"),
        (
            &small,
            "--mode vxlan",
            "family: the pods of this node get no IPv6 addresses: the uplink of this node leaves 1250 bytes for the pods' packets, and IPv6 needs 1280: raise its MTU by 30",
        ),
        (&small, "", ""),
    ] {
        let plan = plan_with(words, vec![n2()], local, &[]);
        assert_eq!(reasons(&plan).join("\n"), text);
        let has_ipv6 = text.is_empty();
        let Desired { routes, vxlan, wireguard, masquerade, pods, .. } = &plan.desired;
        assert!(routes.contains_key(&net("10.244.2.0/24")), "{words}");
        assert_eq!(routes.contains_key(&net("fd00:2::/64")), has_ipv6, "{words}");
        let (pods, masquerade) = (pods.as_ref().unwrap(), masquerade.as_ref().unwrap());
        let devices = vxlan.iter().map(|it| &it.addresses).chain(wireguard.iter().map(|it| &it.addresses));
        for networks in [&pods.networks, &masquerade.own].into_iter().chain(devices) {
            assert_eq!(networks.iter().any(IpNetwork::is_ipv6), has_ipv6, "{words}");
        }
        assert!(plan.refusals.is_empty(), "no event for each node");
    }
}

#[test]
fn pods_from_before_a_change_keep_their_network() {
    let swapped = || peer("n2", 2, &["10.99.0.0/24"], &["192.0.2.2"], None);
    let mut local = local();
    local.routes.insert(route("10.99.0.0/24", None, 3, 2));
    let left = (3, "10.99.0.1".parse().unwrap());
    local.links.insert(8, Link { name: "veth8".into(), is_veth: true, master: Some(3), ..Link::default() });
    let pod: IpAddr = "10.99.0.7".parse().unwrap();
    for (former, bridge, has_route, is_stale, text) in [
        (None, Some("ferrule0"), false, false, ""),
        (Some(Some(BTreeSet::new())), Some("ferrule0"), true, true, ""),
        // The conflist has ptp now.
        (Some(Some(BTreeSet::new())), None, true, true, ""),
        (
            Some(None),
            Some("ferrule0"),
            false,
            false,
            "former: 10.99.0.0/24 of node n2: ferrule0 of this node has pods, and the daemon does not see their addresses",
        ),
        (
            Some(Some(BTreeSet::from([pod]))),
            Some("ferrule0"),
            false,
            false,
            "former: 10.99.0.0/24 of node n2: pods on ferrule0 of this node still have addresses in it, such as 10.99.0.7",
        ),
    ] {
        let former: Former = former.into_iter().map(|pods| (net("10.99.0.0/24"), pods)).collect();
        let plan =
            plan_of(me(), vec![swapped()], Facts { local: &local, bridge, former: &former, ..facts() });
        assert_eq!(reasons(&plan).join("\n"), text);
        assert_eq!(plan.desired.routes.contains_key(&net("10.99.0.0/24")), has_route, "{text}");
        assert_eq!(plan.desired.stale.contains(&left), is_stale, "{text}");
        assert_eq!(plan.refusals.len(), usize::from(former.is_empty()), "a foreign address is refused");
        // Pods keep their way out.
        let own = plan.desired.masquerade.unwrap().own;
        assert_eq!(own.contains(&net("10.99.0.0/24")), text.starts_with("former"));
    }
    // With ptp each pod has a route of its own, which is longer.
    let mut ptp = super::local();
    ptp.addresses.remove(&left);
    ptp.links.insert(4, Link { name: "veth1".into(), is_up: true, is_veth: true, ..Link::default() });
    ptp.addresses.insert((4, left.1));
    ptp.routes.insert(route("10.99.0.7/32", None, 4, 3));
    let former = Former::from([(net("10.99.0.0/24"), Some(BTreeSet::from([pod])))]);
    let plan =
        plan_of(me(), vec![swapped()], Facts { local: &ptp, bridge: None, former: &former, ..facts() });
    assert!(plan.desired.routes.contains_key(&net("10.99.0.0/24")), "{plan:?}");
    assert!(plan.reasons.is_empty() && plan.refusals.is_empty() && plan.desired.stale.is_empty());
}

#[test]
fn what_other_networks_have_left_is_named() {
    let cni0 = |ports: u32| {
        let mut local = local();
        local.links.insert(9, Link { name: "cni0".into(), is_up: true, is_bridge: true, ..Link::default() });
        for port in 0..ports {
            local.links.insert(10 + port, Link { is_veth: true, master: Some(9), ..Link::default() });
        }
        local.addresses.insert((9, "10.244.1.1".parse().unwrap()));
        local.routes.insert(route("10.244.1.0/24", None, 9, 2));
        local
    };
    let with = |dst: &str, priority| {
        let mut local = local();
        local.routes.insert(Route { priority, links: vec![], is_unicast: false, ..route(dst, None, 0, 80) });
        local
    };
    const BLACKHOLE: &str = "leftover: a route takes packets to pods of this node's podCIDR 10.244.1.0/24: 10.244.1.64/26 that leads nowhere (protocol 80); ferrule-node cleanup --left-overs calico removes it";
    const DEVICE: &str = "leftover: flannel.1 has the address 10.244.1.0 in this node's podCIDR 10.244.1.0/24; ferrule-node cleanup --left-overs flannel removes it";
    let mut flannel = local();
    flannel.links.insert(
        9,
        Link { name: "flannel.1".into(), is_up: true, origin: named("flannel"), ..Link::default() },
    );
    flannel.addresses.insert((9, "10.244.1.0".parse().unwrap()));
    for (local, bridge, stale, text) in [
        (cni0(0), Some("ferrule0"), 1, ""),
        (
            cni0(2),
            None,
            0,
            "leftover: cni0 has the address 10.244.1.1 in this node's podCIDR 10.244.1.0/24, and 2 pods of another network plugin; ip link delete cni0 removes it",
        ),
        (flannel, Some("ferrule0"), 0, DEVICE),
        (with("10.244.1.64/26", 0), Some("ferrule0"), 0, BLACKHOLE),
        (with("10.244.1.64/26", 0), None, 0, BLACKHOLE),
        // A routing daemon announces the podCIDR by such a route.
        (with("10.244.1.0/24", 0), None, 0, ""),
        (with("10.244.1.0/24", 1024), Some("ferrule0"), 0, ""),
    ] {
        let plan = plan_of(me(), vec![], Facts { local: &local, bridge, ..facts() });
        assert_eq!(reasons(&plan).join("\n"), text);
        assert_eq!(plan.desired.stale.len(), stale, "{text}");
        assert_eq!(plan.desired.pods.unwrap().networks.len(), 2);
    }
}

#[test]
fn routes_that_come_first_are_named() {
    for (dst, priority, text) in [
        (
            "10.244.2.128/25",
            0,
            "10.244.2.128/25 via 192.0.2.9 dev eth0 (protocol 4); ip route del 10.244.2.128/25 removes it",
        ),
        (
            "fd00:2::/64",
            100,
            "fd00:2::/64 via 2001:db8::9 dev eth0 (protocol 4); ip route del fd00:2::/64 metric 100 removes it",
        ),
        ("fd00:2::/64", 2000, ""),
        // The daemon replaces that one.
        ("10.244.2.0/24", 0, ""),
        ("10.244.2.0/24", 9, ""),
    ] {
        let mut local = local();
        let gw = if dst.contains("::") { "2001:db8::9" } else { "192.0.2.9" };
        local.routes.insert(Route { priority, ..route(dst, Some(gw), 2, 4) });
        let plan = plan_with("", vec![n2()], &local, &["10.244.2.0/24", "fd00:2::/64"]);
        let found: Vec<_> = plan
            .reasons
            .iter()
            .map(|reason| (reason.code, reason.about.split(' ').next().unwrap()))
            .collect();
        let expected = if text.is_empty() { vec![] } else { vec![(Code::Way, "n2")] };
        assert_eq!(found, expected, "{dst}");
        assert!(plan.reasons.iter().all(|reason| reason.text.ends_with(text)), "{:?}", plan.reasons);
        assert_eq!(plan.desired.routes.len(), 2);
    }
}
