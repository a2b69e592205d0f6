//! The WireGuard device between two nodes. The kernel of a build machine may lack WireGuard.

use std::net::SocketAddr;
use std::path::Path;

use cni_lab::testing::{addresses, try_link};
use cni_lab::{Place as _, kernel_module};
use ferrule_node::plan::{WireGuard, WireGuardPeer};
use ferrule_node::wireguard::{LINK, Part, cleanup, parse_key};

use crate::lab::{Host, assert_reach, ip, networks, sh, two_hosts};

const KEY: &str = "/run/wireguard.key";
/// A public key of 32 bytes with the value 2.
const SOME_KEY: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

fn peer(number: u8, key: &str, outer: &str) -> WireGuardPeer {
    WireGuardPeer {
        name: format!("node{number}"),
        key: parse_key(key).unwrap(),
        endpoint: SocketAddr::new(ip(&format!("{outer}{number}")), 51871),
        allowed: networks(&format!("10.1.{number}.0/24 fd00:0:0:{number}::/64")),
    }
}

fn wanted(number: u8, peers: Vec<WireGuardPeer>) -> WireGuard {
    let addresses = networks(&format!("10.1.{number}.0/32 fd00:0:0:{number}::/128"));
    WireGuard { port: 51871, mtu: 1420, addresses, peers }
}

fn public_key(host: &Host) -> String {
    host.node.run(|| Part::open(Path::new(KEY)).unwrap().public_key()).unwrap()
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn pods_of_two_nodes_reach_each_other() {
    kernel_module("wireguard");
    let hosts = two_hosts();
    let keys = hosts.each_ref().map(public_key);
    assert_ne!(keys[0], keys[1]);
    assert_eq!(public_key(&hosts[0]), keys[0], "the key stays");
    for outer in ["192.0.2.", "fd02::"] {
        for (host, own, other) in [(&hosts[0], 1, 2), (&hosts[1], 2, 1)] {
            let wanted = wanted(own, vec![peer(other, &keys[usize::from(other) - 1], outer)]);
            host.node.run(|| Part::open(Path::new(KEY)).unwrap().sync(&wanted).unwrap()).unwrap();
            host.node
                .sh(&format!(
                    "set -e
                    ip route replace 10.1.{other}.0/24 dev {LINK}; ip route replace fd00:0:0:{other}::/64 dev {LINK}
                    ip link set cni0 mtu 1420; ip link set veth0 mtu 1420"
                ))
                .unwrap();
            host.pod.sh("ip link set eth0 mtu 1420").unwrap();
        }
        assert_reach(&hosts, 1420);
    }
    // A pod with an address outside of its node's allowed addresses gets no answer.
    hosts[0].pod.sh("ip address add 10.1.7.7/32 dev eth0").unwrap();
    hosts[0].node.sh("ip route add 10.1.7.7 dev cni0").unwrap();
    hosts[1].node.sh(&format!("ip route add 10.1.7.7 dev {LINK}")).unwrap();
    hosts[0].pod.sh("! ping -c 1 -W 1 -I 10.1.7.7 10.1.2.2").unwrap();
    for (host, key) in hosts.iter().zip(keys.iter().rev()) {
        host.node.sh(&format!("wg set {LINK} peer {key} allowed-ips 0.0.0.0/0")).unwrap();
    }
    hosts[0].pod.sh("ping -c 1 -W 30 -I 10.1.7.7 10.1.2.2").unwrap();

    let node = &hosts[0].node;
    assert_eq!(addresses(node, LINK), ["10.1.1.0/32", "fd00:0:0:1::/128"]);
    node.run(|| assert_eq!(cleanup().unwrap(), [format!("link {LINK}")])).unwrap();
    assert!(try_link(node, LINK).is_none());
}

/// The device without its peers.
fn show() -> String {
    sh(&format!(
        "wg show {LINK} | sed '/^$/,$d'; ip -d link show {LINK} | sed 's/^[0-9]*: //'; ip -br address show dev {LINK} scope global"
    ))
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn peers_come_change_and_go() {
    kernel_module("wireguard");
    let [host, _] = two_hosts();
    host.node
        .run(|| {
            let mut part = Part::open(Path::new(KEY)).unwrap();
            assert_eq!(sh(&format!("wg show {LINK} public-key")).trim_end(), part.public_key());
            assert_eq!(sh(&format!("wg pubkey <{KEY}")).trim_end(), part.public_key());
            let key = |number: u8| WireGuardPeer { key: [number; 32], ..peer(number, SOME_KEY, "192.0.2.") };
            let mut device = wanted(1, (2..250).map(key).collect());
            part.sync(&device).unwrap();
            let whole = show();
            assert_eq!(peers().len(), 248);
            device.peers.truncate(3);
            // Two nodes with one key: the first one keeps it.
            device.peers.push(WireGuardPeer { key: [2; 32], ..key(9) });
            part.sync(&device).unwrap();
            let three = peers();
            assert_eq!(three.len(), 3);
            let second = [SOME_KEY, "192.0.2.2:51871", "10.1.2.0/24,fd00:0:0:2::/64"].join("\t");
            assert!(three.contains(&second), "{three:?}");
            for damage in [
                "wg set ferrule.wg listen-port 1234",
                "wg set ferrule.wg private-key /dev/null",
                &format!("wg set ferrule.wg peer {SOME_KEY} remove"),
                &format!("wg set ferrule.wg peer {SOME_KEY} allowed-ips 0.0.0.0/0"),
                "wg set ferrule.wg peer $(wg genkey) allowed-ips 10.1.2.0/24",
                "ip link del ferrule.wg",
                "ip link set ferrule.wg down mtu 1300",
                "ip address flush dev ferrule.wg",
            ] {
                sh(damage);
                part.suspect();
                part.sync(&device).unwrap();
                assert_eq!((show(), peers()), (whole.clone(), three.clone()), "{damage}");
            }
        })
        .unwrap();
}

/// The peers as `wg` prints them: key, endpoint, allowed addresses.
fn peers() -> Vec<String> {
    let mut lines: Vec<String> =
        sh(&format!("wg show {LINK} dump | tail -n +2 | cut -f 1,3,4")).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn a_kernel_without_wireguard_is_named() {
    let [host, _] = two_hosts();
    let opened = host.node.run(|| Part::open(Path::new(KEY)).map(drop)).unwrap();
    if let Err(error) = opened {
        assert!(
            format!("{error:#}").starts_with("the kernel has no WireGuard (module wireguard): "),
            "{error:#}"
        );
    }
}
