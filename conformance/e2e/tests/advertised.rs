//! The key `waitForRA`: addresses from a router that advertises prefixes, which may be hostile, in the result. The tests need root
//! and `python3`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

use cni_lab::{Background, Node, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually, kernel_module};
use cni_runner::Network;
use serde_json::{Value, json};

/// Sends an advertisement from each link except `lo` until it is killed. Each argument is a prefix of 64 bits, its valid and its
/// preferred lifetime in seconds.
const ROUTER: &str = "
import socket, struct, sys, time
s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
advertisement = struct.pack('!BBHBBHII', 134, 0, 0, 64, 0, 1800, 0, 0)
for argument in sys.argv[1:]:
    prefix, valid, preferred = argument.split(',')
    prefix = socket.inet_pton(socket.AF_INET6, prefix)
    advertisement += struct.pack('!BBBBIII', 3, 4, 64, 0xc0, int(valid), int(preferred), 0) + prefix
while True:
    for index, name in socket.if_nameindex():
        try:
            if name != 'lo': s.sendto(advertisement, ('ff02::1', 0, 0, index))
        except OSError: pass
    time.sleep(0.05)
";

const GOOD: &str = "2001:db8:a::,86400,14400";
/// The IPv6 addresses of routers that the node has.
const TAKEN: &str = "ip -6 address show dynamic; ip -6 route show table all proto ra";

/// The node without the links of the test and host-local's folder.
fn snapshot(node: &Node) -> Snapshot {
    Snapshot::take(node).unwrap().ignoring(&["/var/lib/cni", "br0", "up0"])
}

/// A node with a link `up0`, whose other end is in the namespace of a router.
struct Segment {
    node: Node,
    router: Pod,
    before: Snapshot,
}

impl Segment {
    fn new() -> Segment {
        let node = Node::new().unwrap();
        let router = node.pod("router").unwrap();
        node.sh(
            "ip link add up0 type veth peer name lan0 netns router && sysctl -qw net.ipv6.conf.up0.accept_ra=0 &&
             ip link set up0 up && ip -n router link set lan0 up && mkdir -p -m 700 /run/cni/host-device
             sysctl -qw net.ipv6.conf.default.accept_ra=0",
        )
        .unwrap();
        let is_ready = || !router.sh("ip -6 address show dev lan0 scope link -tentative").unwrap().is_empty();
        assert!(eventually(TIMEOUT, is_ready));
        let before = snapshot(&node);
        Segment { node, router, before }
    }

    /// Starts a router that advertises these prefixes.
    fn advertise(&self, prefixes: &[&str]) -> Background {
        let mut router = Command::new("python3");
        router.args(["-c", ROUTER]).args(prefixes);
        self.router.spawn(router).unwrap()
    }

    fn network(plugin: &Value, version: &str) -> Network {
        let mut list = json!({"name": "pods", "cniVersion": version, "plugins": [plugin]});
        if list["plugins"][0].get("ipam").is_none() {
            list["plugins"][0]["ipam"] = json!({"type": "host-local", "subnet": "10.1.0.0/24"});
        }
        Network::from_value(&list).unwrap()
    }

    /// The error of an ADD, which has left nothing.
    fn refused(&self, pod: &Pod, network: &Network) -> String {
        let error =
            self.node.runtime([bin_dir().unwrap()]).add(network, &pod.attachment("eth0")).unwrap_err();
        assert_eq!(error.code(), Some(11), "{error}");
        self.assert_clean();
        assert_eq!(pod.sh("ip -o link show").unwrap().lines().count(), 1);
        format!("{error:?}")
    }

    fn assert_clean(&self) {
        let left = || self.before.diff(&snapshot(&self.node));
        assert!(eventually(TIMEOUT, || left().is_empty()), "{}", left());
    }
}

/// The plugin's keys, with the limit.
fn plugin(keys: &Value, limit: u32) -> Value {
    let mut plugin = keys.clone();
    plugin["waitForRA"] = json!(limit);
    plugin
}

fn bridge() -> Value {
    json!({"type": "bridge", "bridge": "br0"})
}

/// The IPv6 addresses in a result.
fn v6_of(result: &Value) -> Vec<String> {
    let texts = result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap());
    texts.filter(|text| text.contains(':')).map(str::to_owned).collect()
}

fn has_an_address_until_del(keys: &Value, prepare: &str, back: &str) {
    let segment = Segment::new();
    let (node, pod) = (&segment.node, segment.node.pod("pod").unwrap());
    node.sh(prepare).unwrap();
    let (network, eth0) = (Segment::network(&plugin(keys, 60), "1.0.0"), pod.attachment("eth0"));
    let runtime = node.runtime([bin_dir().unwrap()]);
    let router = segment.advertise(&[GOOD]);
    let result = runtime.add(&network, &eth0).unwrap();
    let addresses = v6_of(&result);
    assert!(addresses.len() == 1 && addresses[0].starts_with("2001:db8:a:"), "{result}");
    assert!(pod.sh("ip -6 address show dev eth0 -tentative").unwrap().contains(&addresses[0]), "{result}");
    assert_eq!(result["ips"].as_array().unwrap().len(), 2, "{result}");
    let index = usize::try_from(result["ips"][1]["interface"].as_u64().unwrap()).unwrap();
    assert_eq!(result["interfaces"][index]["name"], "eth0", "{result}");
    runtime.check(&network, &eth0).unwrap();
    // Its lifetime ends.
    drop(router);
    pod.sh(&format!("ip address delete {} dev eth0", addresses[0])).unwrap();
    runtime.check(&network, &eth0).unwrap();
    pod.sh("sysctl -qw net.ipv6.conf.eth0.accept_ra=0").unwrap();
    let error = runtime.check(&network, &eth0).unwrap_err().to_string();
    assert!(error.contains("\"eth0\" of the container does not accept router advertisements"), "{error}");
    assert_eq!(node.sh(TAKEN).unwrap(), "", "{keys}");
    runtime.del(&network, &eth0).unwrap();
    node.sh(back).unwrap();
    segment.assert_clean();
}

const BRIDGE: &str = "ip link add br0 type bridge && ip link set up0 master br0 && ip link set br0 up";

#[test]
fn bridge_macvlan_and_host_device_report_the_address() {
    has_an_address_until_del(&bridge(), BRIDGE, "ip link delete br0");
    has_an_address_until_del(
        &json!({"type": "bridge", "bridge": "br0", "enabledad": true}),
        BRIDGE,
        "ip link delete br0",
    );
    has_an_address_until_del(&json!({"type": "macvlan", "master": "up0"}), "true", "true");
    has_an_address_until_del(&json!({"type": "host-device", "device": "up0"}), "true", "true");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn ipvlan_and_vlan_report_the_address() {
    kernel_module("ipvlan");
    has_an_address_until_del(&json!({"type": "ipvlan", "master": "up0"}), "true", "true");
    kernel_module("8021q");
    let inside =
        "ip -n router link add link lan0 name lan0.5 type vlan id 5 && ip -n router link set lan0.5 up";
    has_an_address_until_del(&json!({"type": "vlan", "master": "up0", "vlanId": 5}), inside, "true");
}

/// The router is on the node, on the pod's own link.
#[test]
fn ptp_reports_the_address() {
    let node = Node::new().unwrap();
    let pod = node.pod("pod").unwrap();
    let mut router = Command::new("python3");
    router.args(["-c", ROUTER, GOOD]);
    let _router = node.spawn(router).unwrap();
    let network = Segment::network(&plugin(&json!({"type": "ptp", "ipMasq": true}), 60), "1.0.0");
    let runtime = node.runtime([bin_dir().unwrap()]);
    let result = runtime.add(&network, &pod.attachment("eth0")).unwrap();
    assert!(v6_of(&result)[0].starts_with("2001:db8:a:"), "{result}");
    runtime.check(&network, &pod.attachment("eth0")).unwrap();
    runtime.del(&network, &pod.attachment("eth0")).unwrap();
}

#[test]
fn a_network_without_ipam_has_the_address_alone() {
    let segment = Segment::new();
    segment.node.sh(BRIDGE).unwrap();
    let _router = segment.advertise(&[GOOD, "2001:db8:b::,86400,14400"]);
    let runtime = segment.node.runtime([bin_dir().unwrap()]);
    let mut keys = plugin(&bridge(), 60);
    keys["ipam"] = json!({});
    for version in ["0.4.0", "1.1.0"] {
        let pod = segment.node.pod(&format!("pod{version}")).unwrap();
        let network = Segment::network(&keys, version);
        // The container may have IPv6 switched off.
        pod.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1").unwrap();
        let result = runtime.add(&network, &pod.attachment("eth0")).unwrap();
        let addresses = v6_of(&result);
        assert!(addresses.len() == 2 && result["ips"].as_array().unwrap().len() == 2, "{result}");
        runtime.check(&network, &pod.attachment("eth0")).unwrap();
        runtime.del(&network, &pod.attachment("eth0")).unwrap();
    }
}

#[test]
fn without_a_usable_address_add_fails_at_the_limit() {
    let segment = Segment::new();
    segment.node.sh(BRIDGE).unwrap();
    let (pod, network) = (segment.node.pod("pod").unwrap(), Segment::network(&plugin(&bridge(), 2), "1.0.0"));
    let error = segment.refused(&pod, &network);
    for part in ["waitForRA: no router has given", "within 2 s", "its IPv6 addresses: fe80::"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Prefixes that have ended, that are not to be used any more, or that make no global address.
    let useless = [
        "2001:db8:a::,0,0",
        "2001:db8:b::,86400,0",
        "fe80::,86400,14400",
        "::,86400,14400",
        "ff05::,86400,14400",
    ];
    let _router = segment.advertise(&useless);
    // On a busy machine the router may need more than 2 s for its first advertisement.
    let mut error = String::new();
    let is_advertised = eventually(TIMEOUT, || {
        error = segment.refused(&pod, &network);
        error.contains("(deprecated)")
    });
    assert!(is_advertised && !error.contains("2001:db8:a:"), "{error}");
    segment.node.sh("ip -n router link set lan0 down").unwrap();
    let macvlan = Segment::network(&plugin(&json!({"type": "macvlan", "master": "up0"}), 1), "1.0.0");
    segment.node.sh("ip link set up0 nomaster").unwrap();
    let error = segment.refused(&pod, &macvlan);
    assert!(error.contains("the link has no carrier"), "{error}");
}

#[test]
fn a_hostile_router_gives_a_bounded_number_of_addresses() {
    let segment = Segment::new();
    segment.node.sh(BRIDGE).unwrap();
    let prefixes: Vec<String> = (1..=40).map(|n| format!("2001:db8:{n}::,86400,14400")).collect();
    let _router = segment.advertise(&prefixes.iter().map(String::as_str).collect::<Vec<_>>());
    let (pod, network) =
        (segment.node.pod("pod").unwrap(), Segment::network(&plugin(&bridge(), 60), "1.0.0"));
    // The kernel's own bound is off.
    pod.sh("sysctl -qw net.ipv6.conf.default.max_addresses=0").unwrap();
    let runtime = segment.node.runtime([bin_dir().unwrap()]);
    let result = runtime.add(&network, &pod.attachment("eth0")).unwrap();
    assert!((1..=16).contains(&v6_of(&result).len()), "{result}");
    assert!(eventually(TIMEOUT, || pod.sh("ip -o -6 address show dev eth0").unwrap().lines().count() > 16));
    assert_eq!(segment.node.sh(TAKEN).unwrap(), "");
    runtime.check(&network, &pod.attachment("eth0")).unwrap();
    runtime.del(&network, &pod.attachment("eth0")).unwrap();
}
