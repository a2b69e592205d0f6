//! The VXLAN device between two nodes.

use std::net::IpAddr;

use cni_lab::Place as _;
use cni_lab::testing::{addresses, link, mac, try_link};
use ferrule_kernel::netlink::Mac;
use ferrule_node::plan::{Vxlan, VxlanPeer};
use ferrule_node::vxlan::{LINK, Part, cleanup};

use crate::lab::{assert_reach, ip, isolated, networks, runtime, sh, two_hosts, within_limit};

fn mac_of(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn peer(number: u8, outer: IpAddr) -> VxlanPeer {
    let inner = vec![ip(&format!("10.1.{number}.0")), ip(&format!("fd00:0:0:{number}::"))];
    VxlanPeer { name: format!("node{number}"), mac: mac_of(number), outer, inner }
}

fn wanted(number: u8, local: IpAddr, mtu: u32, peers: Vec<VxlanPeer>) -> Vxlan {
    let addresses = networks(&format!("10.1.{number}.0/32 fd00:0:0:{number}::/128"));
    Vxlan { id: 7471, port: 4789, local, mac: mac_of(number), mtu, addresses, peers }
}

/// Syncs twice: the second part finds the device.
fn sync(wanted: &Vxlan) {
    let runtime = runtime();
    let _inside = runtime.enter();
    for _ in 0..2 {
        Part::open().unwrap().sync(Some(wanted)).unwrap();
    }
}

#[test]
fn pods_of_two_nodes_reach_each_other() {
    let hosts = two_hosts();
    // 50 and 70 bytes are the headers.
    for (outer, mtu) in [("192.0.2.", 1450), ("fd02::", 1430)] {
        for (host, own, other) in [(&hosts[0], 1, 2), (&hosts[1], 2, 1)] {
            let address = |number: u8| ip(&format!("{outer}{number}"));
            host.node
                .run(|| sync(&wanted(own, address(own), mtu, vec![peer(other, address(other))])))
                .unwrap();
            host.node
                .sh(&format!(
                    "set -e
                    ip route replace 10.1.{other}.0/24 via 10.1.{other}.0 dev {LINK} onlink
                    ip route replace fd00:0:0:{other}::/64 via fd00:0:0:{other}:: dev {LINK} onlink"
                ))
                .unwrap();
            // Only now: the pods have the overlay's MTU.
            host.node.sh(&format!("ip link set cni0 mtu {mtu}; ip link set veth0 mtu {mtu}")).unwrap();
            host.pod.sh(&format!("ip link set eth0 mtu {mtu}")).unwrap();
        }
        assert_reach(&hosts, mtu);
    }
    let node = &hosts[0].node;
    assert_eq!(mac(node, LINK), mac_of(1).to_string());
    assert_eq!(addresses(node, LINK), ["10.1.1.0/32", "fd00:0:0:1::/128"]);
    assert_eq!(link(node, LINK)["linkinfo"]["info_data"]["learning"], false);
    node.run(|| assert_eq!(cleanup().unwrap(), [format!("link {LINK}")])).unwrap();
    assert!(try_link(node, LINK).is_none());
    node.run(|| assert!(cleanup().unwrap().is_empty())).unwrap();
}

/// Entries of the device as `bridge` and `ip` print them.
fn entries() -> String {
    sh(&format!(
        "bridge fdb show dev {LINK} | sort; ip -4 neighbour show dev {LINK} nud permanent; ip -6 neighbour show dev {LINK} nud permanent"
    ))
}

#[test]
fn peers_come_change_and_go() {
    isolated(|_| {
        sh("ip link set lo up; ip address add 192.0.2.1/24 dev lo");
        let mut part = Part::open().unwrap();
        let mut device = wanted(1, ip("192.0.2.1"), 1450, vec![peer(2, ip("192.0.2.2"))]);
        part.sync(Some(&device)).unwrap();
        let one = entries();
        assert!(one.contains("02:00:00:00:00:02 dst 192.0.2.2 self permanent"), "{one}");
        assert!(one.contains("10.1.2.0 lladdr 02:00:00:00:00:02 PERMANENT"), "{one}");
        assert!(one.contains("fd00:0:0:2:: lladdr 02:00:00:00:00:02 PERMANENT"), "{one}");
        device.peers.extend((3..=250).map(|number| peer(number, ip(&format!("192.0.2.{number}")))));
        part.sync(Some(&device)).unwrap();
        assert_eq!(entries().lines().count(), 249 * 3);
        device.peers.truncate(1);
        device.peers[0].outer = ip("192.0.2.99");
        part.sync(Some(&device)).unwrap();
        assert_eq!(entries(), one.replace("dst 192.0.2.2 ", "dst 192.0.2.99 "));
        // Another process finds the former one's peers.
        device.peers = vec![peer(7, ip("192.0.2.7"))];
        let index = sh(&format!("cat /sys/class/net/{LINK}/ifindex 2>/dev/null || ip link show {LINK}"));
        Part::open().unwrap().sync(Some(&device)).unwrap();
        assert_eq!(entries().lines().count(), 3);
        assert_eq!(
            sh(&format!("cat /sys/class/net/{LINK}/ifindex 2>/dev/null || ip link show {LINK}")),
            index
        );
    });
}

#[test]
fn changes_by_other_programs_are_undone() {
    isolated(|runtime| {
        sh("ip link set lo up; ip address add 192.0.2.1/24 dev lo");
        let mut part = Part::open().unwrap();
        let device = wanted(1, ip("192.0.2.1"), 1450, vec![peer(2, ip("192.0.2.2"))]);
        part.sync(Some(&device)).unwrap();
        let show = || {
            let link = sh(&format!(
                "ip -d link show {LINK} | sed 's/^[0-9]*: //'; ip -br address show dev {LINK} scope global"
            ));
            format!("{link}{}", entries())
        };
        let whole = show();
        for damage in [
            "bridge fdb del 02:00:00:00:00:02 dev ferrule.vxlan",
            "bridge fdb replace 02:00:00:00:00:02 dev ferrule.vxlan dst 192.0.2.66",
            "bridge fdb add 02:00:00:00:00:66 dev ferrule.vxlan dst 192.0.2.66",
            "ip neighbour del 10.1.2.0 dev ferrule.vxlan",
            "ip neighbour replace fd00:0:0:2:: lladdr 02:00:00:00:00:66 nud permanent dev ferrule.vxlan",
            "ip link set ferrule.vxlan down",
        ] {
            sh(damage);
            within_limit(runtime, part.disturbed());
            part.sync(Some(&device)).unwrap();
            assert_eq!(show(), whole, "{damage}");
        }
        // The daemon calls `suspect` after messages about links and addresses.
        for damage in [
            "ip link del ferrule.vxlan",
            "ip link set ferrule.vxlan mtu 1400",
            "ip link set ferrule.vxlan address 02:00:00:00:00:66",
            "ip address flush dev ferrule.vxlan",
            "ip address add 10.9.9.9/24 dev ferrule.vxlan",
            "ip link del ferrule.vxlan; ip link add ferrule.vxlan type vxlan id 5 dstport 4789 local 192.0.2.1",
        ] {
            sh(damage);
            part.suspect();
            part.sync(Some(&device)).unwrap();
            assert_eq!(show(), whole, "{damage}");
        }
        part.sync(None).unwrap();
        sh("! ip link show ferrule.vxlan 2>/dev/null");
    });
}

#[test]
fn foreign_devices_stay() {
    isolated(|_| {
        sh("ip link set lo up; ip address add 192.0.2.1/24 dev lo; ip link add ferrule.vxlan type bridge");
        let device = wanted(1, ip("192.0.2.1"), 1450, Vec::new());
        let error = || format!("{:#}", Part::open().unwrap().sync(Some(&device)).unwrap_err());
        assert_eq!(
            error(),
            "there is a link ferrule.vxlan of kind \"bridge\", which ferrule-node did not make"
        );
        assert!(cleanup().unwrap().is_empty());
        sh(
            "ip link del ferrule.vxlan; ip link add flannel.1 type vxlan id 7471 dstport 4789 local 192.0.2.1",
        );
        let said = error();
        assert!(said.starts_with("make ferrule.vxlan (VXLAN ID 7471 port 4789 local 192.0.2.1"), "{said}");
        assert!(said.contains("VNI"), "{said}");
        sh("ip link show flannel.1");
    });
}
