//! Hosts on a link in separate network namespaces. The tests need root.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cni_lab::{Node, Place as _};
use ferrule_kernel::netlink::{Link, LinkId, Socket};
use ferrule_kernel::probe::{MOST, probe};

const SHORT: Duration = Duration::from_millis(30);

fn link(name: &str) -> Link {
    Socket::route().unwrap().link(LinkId::Name(name)).unwrap().unwrap()
}

fn link_of_two() -> [Node; 2] {
    let [here, there] = [Node::new().unwrap(), Node::new().unwrap()];
    let path = there.netns_path();
    here.sh(&format!(
        "ip link add eth0 type veth peer name eth0 address 02:00:00:00:00:02 netns {}",
        path.display()
    ))
    .unwrap();
    for node in [&here, &there] {
        node.sh("ip link set eth0 up").unwrap();
    }
    [here, there]
}

#[test]
fn the_owner_of_an_address_answers() {
    let [here, there] = link_of_two();
    there.sh("ip addr add 10.0.0.9/24 dev eth0 && ip addr add fd00::9/64 dev eth0 nodad").unwrap();
    let [v4, v6, free, free6] =
        ["10.0.0.9", "fd00::9", "10.0.0.8", "fd00::8"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let mac = "02:00:00:00:00:02".parse().unwrap();
    here.run(|| {
        // With an owner of each address it need not wait. The host's own set-up may take a while.
        let begin = Instant::now();
        let found = probe(&link("eth0"), &[v4, v6], Duration::from_secs(600)).unwrap();
        assert_eq!(found, [(v4, mac), (v6, mac)].into());
        assert!(begin.elapsed() < Duration::from_secs(300));
        let mut some = probe(&link("eth0"), &[v4, v6, free, free6], Duration::from_secs(2)).unwrap();
        assert_eq!((some.remove(&v4), some.remove(&v6), some.len()), (Some(mac), Some(mac), 0));
    })
    .unwrap();
}

#[test]
fn a_link_without_answers() {
    let [here, _there] = link_of_two();
    here.run(|| {
        let free: Vec<IpAddr> = (0..64).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        assert!(probe(&link("eth0"), &free, SHORT).unwrap().is_empty());
        assert!(probe(&link("eth0"), &vec![free[0]; MOST + 1], SHORT).is_err());
        let error = probe(&link("lo"), &free, SHORT).unwrap_err();
        assert!(error.to_string().contains("lo is gone or is no Ethernet link"), "{error}");
    })
    .unwrap();
    here.sh("ip link set eth0 down").unwrap();
    here.run(|| assert!(probe(&link("eth0"), &[IpAddr::from([10, 0, 0, 1])], SHORT).is_err(), "it is down"))
        .unwrap();
}
