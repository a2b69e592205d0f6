//! Tests of connection tracking against the kernel, in separate network namespaces. They need root, `nft` and
//! `ip`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::{SocketAddr, UdpSocket};

use common::{isolated, sh};
use ferrule_kernel::conntrack::{
    DST_NAT, Filter, Peer, Tuple, UDP, all_flows, count, delete, flows, flows_of,
};
use ferrule_kernel::ip::IpFamily;

/// A UDP client that has sent a packet to `to`, which makes a flow. Returns the socket and its own address.
fn client(to: &str) -> (UdpSocket, SocketAddr) {
    let to: SocketAddr = to.parse().unwrap();
    let client = UdpSocket::bind((to.ip(), 0)).unwrap();
    client.send_to(b"?", to).unwrap();
    let own = client.local_addr().unwrap();
    (client, own)
}

#[test]
fn flows_are_listed_by_filter_and_deleted_one_by_one() {
    isolated(|socket| {
        sh("ip link set lo up
            nft 'table inet t { chain c { type filter hook output priority 0; ct state new accept; }
                chain d { type nat hook output priority -100; ip daddr 127.0.0.1 udp dport 53 dnat to 127.0.0.2:5353; }; }'");
        let (_one, first) = client("127.0.0.1:53");
        let (_two, second) = client("127.0.0.1:53");
        let (_three, third) = client("127.0.0.1:54");
        let (_four, fourth) = client("[::1]:53");
        let of = |family, dst_port: Option<u16>| Filter { family, proto: UDP, dst_port };
        let list = |socket: &mut ferrule_kernel::netlink::Socket, filter| {
            let mut found = flows(socket, filter).unwrap();
            found.sort_by_key(|flow| flow.original.src_port);
            found
        };
        let sources = |found: &[ferrule_kernel::conntrack::Flow]| -> Vec<u16> {
            found.iter().map(|flow| flow.original.src_port).collect()
        };
        let sorted = |addresses: &[SocketAddr]| {
            let mut ports: Vec<u16> = addresses.iter().map(SocketAddr::port).collect();
            ports.sort_unstable();
            ports
        };
        let dns = list(socket, of(IpFamily::V4, Some(53)));
        assert_eq!(sources(&dns), sorted(&[first, second]));
        assert_eq!(sources(&list(socket, of(IpFamily::V4, None))), sorted(&[first, second, third]));
        assert_eq!(sources(&list(socket, of(IpFamily::V6, Some(53)))), [fourth.port()]);
        assert!(list(socket, Filter { family: IpFamily::V4, proto: 132, dst_port: None }).is_empty());
        // Original destination, translated destination, and status.
        let flow = dns.iter().find(|flow| flow.original.src_port == first.port()).unwrap();
        assert_eq!((flow.proto, flow.original.src, flow.original.dst), (UDP, first.ip(), first.ip()));
        assert_eq!((flow.reply.src, flow.reply.src_port), ([127, 0, 0, 2].into(), 5353));
        assert!(
            flow.status & DST_NAT != 0 && list(socket, of(IpFamily::V4, Some(54)))[0].status & DST_NAT == 0
        );

        // By one end: the server is the one behind the translation.
        for (peer, expected) in [
            (Peer::Server([127, 0, 0, 2].into()), sorted(&[first, second])),
            (Peer::Server([127, 0, 0, 1].into()), vec![third.port()]),
            (Peer::Client([127, 0, 0, 1].into()), sorted(&[first, second, third])),
            (Peer::Client([127, 0, 0, 9].into()), vec![]),
            (Peer::Client(fourth.ip()), vec![fourth.port()]),
        ] {
            let mut found = sources(&flows_of(socket, peer).unwrap());
            found.sort_unstable();
            assert_eq!(found, expected, "{peer:?}");
        }
        for (family, expected) in [(Some(IpFamily::V4), 3), (Some(IpFamily::V6), 1), (None, 4)] {
            assert_eq!(all_flows(socket, family, |_, _| true).unwrap().len(), expected);
        }
        let translated = |_: &Tuple, reply: &Tuple| reply.src_port == 5353;
        let mut found = sources(&all_flows(socket, None, translated).unwrap());
        found.sort_unstable();
        assert_eq!((found, count(socket)), (sorted(&[first, second]), Ok(4)));

        let gone = std::slice::from_ref(flow);
        assert_eq!(delete(socket, gone), Ok(1));
        assert_eq!(delete(socket, gone), Ok(0), "a missing flow is not an error");
        assert_eq!(sources(&flows(socket, of(IpFamily::V4, Some(53))).unwrap()), [second.port()]);
        assert_eq!(flows(socket, of(IpFamily::V6, None)).unwrap().len(), 1);
    });
}
