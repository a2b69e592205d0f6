//! A container that plays router: it sends router advertisements of high preference with a prefix and a route, before, during and
//! after the ADD of another pod. The node takes no address and no route from it, as with the reference (CVE-2020-10749). Pods on
//! the same Ethernet segment do, as with the reference.

use std::process::Command;

use cni_lab::{Node, Place as _, TIMEOUT, bin_dir, eventually};
use cni_runner::Network;
use serde_json::{Value, json};

/// Sends advertisements from eth0 until it is killed.
const ROUTER: &str = "
import socket, struct, time
index = socket.if_nametoindex('eth0')
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
prefix = socket.inet_pton(socket.AF_INET6, '2001:db8:bad::')
advertisement = struct.pack('!BBHBBHII', 134, 0, 0, 64, 8, 1800, 0, 0)
advertisement += struct.pack('!BBBBIII', 3, 4, 64, 0xc0, 86400, 14400, 0) + prefix
advertisement += struct.pack('!BBBBI', 24, 2, 64, 8, 1800) + prefix[:8]
while True:
    try: s.sendto(advertisement, ('ff02::1', 0, 0, index))
    except OSError: pass
    time.sleep(0.01)
";

/// What the node or a pod has of the container's prefix, and its routes from routers.
const TAKEN: &str = "ip -6 address show to 2001:db8:bad::/64; ip -6 route show table all proto ra; \
    ip -6 route show table all 2001:db8:bad::/64";

/// The names, what the node needs before, the plugin's keys, and whether the pods are on one Ethernet segment.
fn subjects() -> [(&'static str, &'static str, Value, bool); 5] {
    let uplink = "ip link add up0 type veth peer name lan0 && ip link set up0 up && ip link set lan0 up && \
        sysctl -qw net.ipv6.conf.lan0.accept_ra=0";
    [
        ("new bridge", "true", json!({"type": "bridge", "isGateway": true}), true),
        ("new bridge without gateway", "true", json!({"type": "bridge"}), true),
        (
            "bridge of the node",
            "ip link add cni0 type bridge && ip link set cni0 up",
            json!({"type": "bridge"}),
            true,
        ),
        ("ptp", "true", json!({"type": "ptp"}), false),
        ("macvlan", uplink, json!({"type": "macvlan", "master": "up0"}), true),
    ]
}

#[test]
fn a_router_in_a_container_does_not_configure_the_node() {
    for (what, prepare, mut plugin, is_shared) in subjects() {
        let node = Node::new().unwrap();
        node.sh(prepare).unwrap();
        plugin["ipam"] = json!({"type": "host-local", "subnet": "10.1.0.0/24"});
        let list = json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [plugin]});
        let network = Network::from_value(&list).unwrap();
        let runtime = node.runtime([bin_dir().unwrap()]);
        let [evil, other] = ["evil", "other"].map(|name| node.pod(name).unwrap());
        runtime.add(&network, &evil.attachment("eth0")).unwrap();
        let mut router = Command::new("python3");
        router.args(["-c", ROUTER]);
        let _router = evil.spawn(router).unwrap();
        let sent = || evil.sh("cat /proc/net/dev_snmp6/eth0").unwrap();
        let many = || {
            let line =
                sent().lines().find_map(|line| Some(line.strip_prefix("Icmp6OutType134")?.trim().to_owned()));
            line.is_some_and(|number| number.parse::<u32>().unwrap() > 20)
        };
        assert!(eventually(TIMEOUT, many), "{what}: {}", sent());
        runtime.add(&network, &other.attachment("eth0")).unwrap();
        // The other pod shows that the advertisements are good.
        if is_shared {
            let has_taken = || other.sh(TAKEN).unwrap().contains("default via ");
            assert!(eventually(TIMEOUT, has_taken), "{what}: {}", other.sh(TAKEN).unwrap());
        }
        assert_eq!(node.sh(TAKEN).unwrap(), "", "{what}");
    }
}
