//! Devices: into pods and back, gone and back, renamed, flapping, and shared by two resources.

use cni_lab::Place as _;
use ferrule_fake_kubelet::{Knobs, pod};

use crate::lab::{Lab, NIC};

#[test]
fn a_device_in_a_pod_stays_healthy() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs::new());
    let mut daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    let lists = kubelet.lists(NIC);
    let pod = lab.node.pod("one").unwrap();
    lab.sh("ip link set eth1 netns one");
    pod.sh("ip link set eth1 name net0").unwrap();
    // A change that the kubelet sees comes after one that it does not.
    lab.sh("ip link del eth2");
    lab.lists(&kubelet, "eth1 !eth2");
    assert_eq!(kubelet.lists(NIC), lists + 1, "the move changed the list");
    // A new process knows from its record, and looks in the pod.
    daemon.end("KILL");
    let mut daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 !eth2");
    // The pod's namespace ends, and the virtual link with it.
    pod.delete().unwrap();
    lab.lists(&kubelet, "!eth1 !eth2");
    lab.sh("ip link add eth1 type veth peer name new1; ip link add eth2 type veth peer name new2");
    lab.lists(&kubelet, "eth1 eth2");
    // Gone with its pod while no daemon runs.
    let pod = lab.node.pod("two").unwrap();
    lab.sh("ip link set eth1 netns two");
    lab.until("recorded", || lab.has_recorded_a_move());
    daemon.end("KILL");
    pod.delete().unwrap();
    lab.until("the peer is gone", || lab.node.sh("ip link show new1").is_err());
    let _daemon = lab.daemon("");
    lab.lists(&kubelet, "!eth1 eth2");
}

#[test]
fn a_device_returns_to_the_node() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs::new());
    let _daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    let pod = lab.node.pod("one").unwrap();
    lab.sh("ip link set eth1 netns one; ip link del eth2");
    lab.lists(&kubelet, "eth1 !eth2");
    let mut anchor = lab.anchor();
    pod.sh(&format!("ip link set eth1 netns {}", anchor.child().id())).unwrap();
    lab.sh("ip link del eth1");
    lab.lists(&kubelet, "!eth1 !eth2");
}

#[test]
fn a_renamed_device_keeps_its_id() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs::new());
    lab.configure("resourceList: [{resourceName: nic, selectors: {kinds: [veth], macs: ['02:00:00:00:00:01', '02:00:00:00:00:02']}}]");
    lab.sh("ip link set eth1 address 02:00:00:00:00:01; ip link set eth2 address 02:00:00:00:00:02");
    let _daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    lab.sh("ip link set eth1 name lan1; ip link del eth2");
    lab.lists(&kubelet, "eth1 !eth2");
    // It gets another name in a pod too, and returns with it.
    let pod = lab.node.pod("one").unwrap();
    lab.sh("ip link set lan1 netns one; ip link add eth2 type veth peer name new2");
    lab.sh("ip link set eth2 address 02:00:00:00:00:02");
    lab.lists(&kubelet, "eth1 eth2");
    let mut anchor = lab.anchor();
    pod.sh(&format!("ip link set lan1 name net0; ip link set net0 netns {}", anchor.child().id())).unwrap();
    lab.sh("ip link del net0");
    lab.lists(&kubelet, "!eth1 eth2");
}

#[test]
fn lost_messages_are_made_up_for() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs::new());
    let mut daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    // The node uses eth4, and eth5 is in a pod.
    lab.sh("for n in 3 4 5; do ip link add eth$n type veth peer name peer$n; done; ip addr add 10.0.4.1/24 dev eth4");
    let pod = lab.node.pod("one").unwrap();
    lab.sh("ip link set eth5 netns one");
    lab.lists(&kubelet, "eth1 eth2 eth3 eth5");
    daemon.signal("STOP");
    // The daemon finds this message after it has read all links anew.
    lab.sh("ip addr add 10.0.3.1/24 dev eth3");
    // More than the socket's buffer takes.
    let changes: String = (0..20_000).map(|n| format!("link set eth1 mtu {}\n", 1400 + n % 2)).collect();
    std::fs::write(lab.path("changes"), changes).unwrap();
    lab.sh(&format!("ip -batch {}", lab.path("changes").display()));
    lab.sh("ip link del eth2; ip addr flush dev eth3; ip addr flush dev eth4");
    pod.delete().unwrap();
    lab.until("the peer is gone", || lab.node.sh("ip link show peer5").is_err());
    daemon.signal("CONT");
    lab.says("the kernel has thrown messages away");
    lab.lists(&kubelet, "eth1 !eth2 eth3 eth4 !eth5");
}

#[test]
fn carriers_with_hysteresis() {
    let lab = Lab::new();
    lab.configure(
        "{unhealthyAfterMs: 300, healthyAfterMs: 100, resourceList: [{resourceName: nic, health: carrier, selectors: {ifNames: ['eth*']}}]}",
    );
    lab.sh("for n in 1 2; do ip link set eth$n up; ip link set peer$n up; done");
    let kubelet = lab.kubelet(Knobs::new());
    let _daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    lab.sh("ip link set peer1 down");
    lab.lists(&kubelet, "!eth1 eth2");
    lab.says("ferrule.dev/nic: device eth1: unhealthy: no carrier");
    lab.sh("ip link set peer1 up");
    lab.lists(&kubelet, "eth1 eth2");
    lab.sh("ip link set peer2 down; ip link set eth2 down");
    // A link that is down has no carrier to lose.
    lab.sh("ip link set peer1 down");
    lab.lists(&kubelet, "!eth1 eth2");
}

#[test]
fn two_resources_and_the_list_for_people() {
    let lab = Lab::new();
    lab.configure(
        "resourceList:
- {resourceName: nic, selectors: {ifNames: ['eth*']}}
- {resourceName: all, selectors: [{ifNames: ['p*']}, {kinds: [veth]}]}
- {resourceName: mv, pool: {template: macvlan, master: eth1, count: 2}}
",
    );
    lab.sh("ip addr add 10.0.0.1/24 dev peer2; ip link add br0 type bridge; ip link set peer1 master br0; ip link add peer3 type veth peer name x; \
        ip link add above link peer3 type macvlan; ip addr add 10.0.3.1/24 dev above");
    let kubelet = lab.kubelet(Knobs::new());
    let _daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    for (resource, count) in [("all", 1), ("mv", 2)] {
        lab.until(resource, || kubelet.allocatable(&format!("ferrule.dev/{resource}")) == count);
    }
    lab.says("warning: device eth1 belongs to ferrule.dev/nic, although ferrule.dev/all selects it too");
    kubelet.pods().set_pods(vec![pod("default", "web", &[("ferrule.dev/nic", "eth2")])]);
    let text = String::from_utf8(lab.run("devices").stdout).unwrap();
    for line in [
        "ferrule.dev/nic: 2 devices, 2 healthy",
        "  eth1  healthy  (veth link eth1)",
        "  eth2  healthy, pod default/web, container main  (veth link eth2)",
        "  mv-1  healthy  (token for a macvlan on eth1)",
        "warning: eth1 belongs to ferrule.dev/nic, although ferrule.dev/all selects it too",
        "  peer1  the node uses it: it is a port of br0",
        "  peer2  the node uses it: it has the address 10.0.0.1",
        "  peer3  the node uses it: above, which is made on it, has the address 10.0.3.1",
        "  lo  no selector matches",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let json = lab.run("devices --json");
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["resources"][0]["devices"][1]["owner"], "pod default/web, container main");
    lab.sh("ip addr add 10.0.1.1/24 dev eth2");
    lab.lists(&kubelet, "eth1");
    lab.sh("ip addr del 10.0.1.1/24 dev eth2");
    lab.lists(&kubelet, "eth1 eth2");
}

/// The node's uplink may have no global address, as with unnumbered BGP.
#[test]
fn a_link_with_a_route_is_the_nodes() {
    let lab = Lab::new();
    lab.sh("sysctl -qw net.ipv4.nexthop_compat_mode=0; for link in eth1 eth2 peer1 peer2; do ip link set $link up; done");
    let kubelet = lab.kubelet(Knobs::new());
    let _daemon = lab.daemon("");
    // They have link-local addresses and the routes to them.
    lab.lists(&kubelet, "eth1 eth2");
    for (set, unset) in [
        ("ip route add default dev eth1", "ip route del default dev eth1"),
        ("ip -6 route add default via fe80::1 dev eth1", "ip -6 route del default"),
        ("ip route add default via inet6 fe80::1 dev eth1", "ip route del default via inet6 fe80::1"),
        ("ip route add 10.9.0.0/16 nexthop dev peer1 nexthop dev eth1", "ip route del 10.9.0.0/16"),
        ("ip route add 10.9.0.0/16 dev eth1 table 77", "ip route flush table 77"),
        ("ip nexthop add id 7 via fe80::1 dev eth1; ip route add 10.9.0.0/16 nhid 7", "ip nexthop flush"),
        ("ip route add 10.9.0.0/16 dev eth1", "ip link set eth1 down"),
    ] {
        lab.sh(set);
        lab.lists(&kubelet, "eth2");
        lab.says("eth1: no longer advertised");
        lab.sh(unset);
        lab.lists(&kubelet, "eth1 eth2");
    }
    lab.sh("ip link set eth1 up; ip -6 route add default via fe80::1 dev eth1");
    lab.lists(&kubelet, "eth2");
    let text = String::from_utf8(lab.run("devices").stdout).unwrap();
    assert!(text.contains("  eth1  the node uses it: it carries the default route of IPv6\n"), "{text}");
}
