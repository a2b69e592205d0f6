//! A list in the form of one `chain` has the same results, files and kernel objects as the list of plugins.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::mem;
use std::process::Command;

use cni_lab::{Node, NodeRuntime, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Network};
use ferrule_kit::fold::{fold, unfold};
use serde_json::{Map, Value, json};

use self::example_networks::{Lan, Needs, networks, node_with_flannel};

#[path = "common/example_networks.rs"]
mod example_networks;

/// What the kernel chooses by itself, or at a time of its own, in the output of `ip -j -d`.
const KERNELS_CHOICE: [&str; 19] = [
    "flags",
    "operstate",
    "ifindex",
    "link_index",
    "link_netnsid",
    "address",
    "permaddr",
    "valid_life_time",
    "preferred_life_time",
    "bridge_id",
    "root_id",
    "designated_bridge",
    "designated_root",
    "hello_timer",
    "gc_timer",
    "tcn_timer",
    "topology_change_timer",
    "hold_timer",
    "forward_delay_timer",
];

fn list(network: &Network) -> Map<String, Value> {
    let list = json!({"name": network.name, "cniVersion": network.version, "plugins": network.plugins});
    list.as_object().unwrap().clone()
}

fn folded(network: &Network) -> Network {
    Network::from_value(&fold(&list(network)).unwrap().into()).unwrap()
}

/// The text without MAC addresses and the numbers of namespaces.
fn masked(text: &str) -> String {
    let is_mac = |text: &str| {
        text.len() == 17
            && text.split(':').all(|byte| byte.len() == 2 && u8::from_str_radix(byte, 16).is_ok())
    };
    let mut masked = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        match rest.get(..17).filter(|part| is_mac(part)) {
            Some(_) => (masked, rest) = (masked + "MAC", &rest[17..]),
            None => {
                masked.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    masked
}

fn without_kernels_choice(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !KERNELS_CHOICE.contains(&key.as_str()));
            object.values_mut().for_each(without_kernels_choice);
        }
        Value::Array(all) => all.iter_mut().for_each(without_kernels_choice),
        _ => {}
    }
}

/// The state of a place as lines.
fn state(place: &impl cni_lab::Place, ignored: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = Snapshot::take(place).unwrap().ignoring(ignored).lines().collect();
    for objects in ["link", "rule"] {
        let mut shown: Value =
            serde_json::from_str(&place.sh(&format!("ip -j -d {objects}")).unwrap()).unwrap();
        without_kernels_choice(&mut shown);
        lines.extend(shown.as_array().unwrap().iter().map(|one| format!("ip {objects}: {one}")));
    }
    lines.iter().map(|line| masked(line)).collect()
}

/// A node with two pods on one network.
struct Attached<'n> {
    node: &'n Node,
    runtime: NodeRuntime<'n>,
    network: Network,
    pods: Vec<(Pod, Attachment)>,
    results: Vec<Value>,
}

impl<'n> Attached<'n> {
    fn new(node: &'n Node, network: Network, pods: usize, ifname: &str) -> Attached<'n> {
        let runtime = node.runtime([bin_dir().unwrap()]);
        let mut attached = Attached { node, runtime, network, pods: Vec::new(), results: Vec::new() };
        for number in 0..pods {
            let pod = node.pod(&format!("pod{number}")).unwrap();
            let attachment = asked(number, pod.attachment(ifname));
            let added = attached.runtime.add(&attached.network, &attachment);
            attached.results.push(added.unwrap_or_else(|error| panic!("{}: {error}", attached.network.name)));
            attached.pods.push((pod, attachment));
        }
        attached
    }

    fn check(&self) {
        for (_, attachment) in &self.pods {
            self.runtime.check(&self.network, attachment).unwrap();
        }
    }

    /// What each pod has, and the node. The configuration in the runtime's cache is another one.
    fn state(&self, ignored: &[&str]) -> Vec<Vec<String>> {
        let ignored = [&["/var/lib/cni/results"], ignored].concat();
        let pods = self.pods.iter().map(|(pod, _)| state(pod, &ignored));
        pods.chain([state(self.node, &ignored)]).collect()
    }

    fn del(&self) {
        for (_, attachment) in &self.pods {
            self.runtime.del(&self.network, attachment).unwrap();
        }
    }

    fn delete_pods(&self) {
        self.pods.iter().for_each(|(pod, _)| pod.delete().unwrap());
    }
}

/// What the runtime asks for, as far as the list declares it.
fn asked(number: usize, attachment: Attachment) -> Attachment {
    let number = u16::try_from(number).unwrap();
    let ports = json!([{"hostPort": 8080 + number, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 5353 + number, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"}]);
    let limits = json!({"ingressRate": 100_000_000, "ingressBurst": 10_000_000, "egressRate": 50_000_000, "egressBurst": 5_000_000});
    attachment
        .with_args("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web")
        .with_capability("portMappings", ports)
        .with_capability("bandwidth", limits)
        .with_capability("mac", format!("c2:00:00:00:00:{number:02x}"))
        .with_capability("foreign", 1)
}

fn assert_same(what: &str, list: &[Vec<String>], chain: &[Vec<String>]) {
    for (place, (list, chain)) in list.iter().zip(chain).enumerate() {
        let only = |these: &[String], those: &[String], sign: &str| {
            let lines =
                these.iter().filter(|line| !those.contains(line)).map(|line| format!("{sign} {line}\n"));
            lines.collect::<String>()
        };
        let differences = only(list, chain, "list: ") + &only(chain, list, "chain:");
        assert!(differences.is_empty(), "{what}, place {place}:\n{differences}");
        assert_eq!(list, chain, "{what}, place {place}: another order");
    }
}

/// Attaches two pods in each form, on a node of its own, and compares after ADD and after DEL.
fn compare(network: &Network, [node, other]: [&Node; 2], (pods, ifname): (usize, &str), ignored: &[&str]) {
    let what = format!("{} {}", network.name, network.version);
    let before = [node, other].map(|node| state(node, ignored));
    assert_same(&what, &[before[0].clone()], &[before[1].clone()]);
    let list = Attached::new(node, network.clone(), pods, ifname);
    let chain = Attached::new(other, folded(network), pods, ifname);
    let mask =
        |results: &[Value]| results.iter().map(|result| masked(&result.to_string())).collect::<Vec<_>>();
    assert_eq!(mask(&list.results), mask(&chain.results), "{what}");
    assert_same(&what, &list.state(ignored), &chain.state(ignored));
    if network.version.as_str() >= "0.4.0" {
        list.check();
        chain.check();
    }
    list.del();
    chain.del();
    assert_same(&format!("{what} after DEL"), &list.state(ignored), &chain.state(ignored));
    let left = chain.node.list_dir("/var/lib/cni/results").unwrap();
    assert!(left.is_empty(), "{what}: {left:?}");
    // Turns: each form removes what the other has added.
    list.delete_pods();
    chain.delete_pods();
    let mut list = Attached::new(node, folded(network), pods, ifname);
    let mut chain = Attached::new(other, network.clone(), pods, ifname);
    mem::swap(&mut list.network, &mut chain.network);
    if network.version.as_str() >= "0.4.0" {
        list.check();
        chain.check();
    }
    list.del();
    chain.del();
    assert_same(&format!("{what} in turns"), &list.state(ignored), &chain.state(ignored));
    list.delete_pods();
    chain.delete_pods();
}

#[test]
fn every_example_is_the_same() {
    let networks = networks(&Needs::Node).unwrap();
    assert!(networks.len() >= 7);
    for network in networks {
        let pods = if network.name.contains("static") { 1 } else { 2 };
        let nodes = [node_with_flannel().unwrap(), node_with_flannel().unwrap()];
        compare(&network, [&nodes[0], &nodes[1]], (pods, "eth0"), &[]);
    }
}

#[test]
fn every_example_on_a_lan_is_the_same() {
    let networks = networks(&Needs::Lan).unwrap();
    assert!(networks.len() >= 6);
    let lans = [Lan::new(), Lan::new()];
    for lan in &lans {
        // host-device saves this address, which follows from the MAC address.
        lan.node.sh("sysctl -qw net.ipv6.conf.default.addr_gen_mode=1 net.ipv6.conf.eth1.addr_gen_mode=1 && ip -6 address flush dev eth1").unwrap();
    }
    // The server chooses the address of dhcp by the MAC address.
    for network in networks.iter().filter(|network| network.plugins[0]["ipam"]["type"] != "dhcp") {
        compare(network, [&lans[0].node, &lans[1].node], (1, "net1"), &["leases", "/run/cni/dhcp"]);
    }
}

/// The plugins of one list, in each version that has chains.
#[test]
fn every_version_is_the_same() {
    let first = json!({"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "promiscMode": true, "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}});
    let ptp = json!({"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}]}});
    let portmap =
        json!({"type": "portmap", "capabilities": {"portMappings": true, "foreign": false}, "snat": true});
    let bandwidth = json!({"type": "bandwidth", "ingressRate": 1_000_000, "ingressBurst": 4_294_967_295_u64});
    let tuning = json!({"type": "tuning", "capabilities": {"mac": true}, "mtu": 1400, "sysctl": {"net.core.somaxconn": "99"}});
    let firewall = json!({"type": "firewall", "ingressPolicy": "same-bridge"});
    let sbr = json!({"type": "sbr"});
    let loopback = json!({"type": "loopback"});
    // No file on the node says which namespaces have policies: it isolates each pod.
    let policy = json!({"type": "policy"});
    let lists = [
        json!([loopback, first, firewall, portmap, tuning, bandwidth]),
        json!([ptp, tuning, bandwidth, portmap, sbr, policy]),
        json!([first]),
    ];
    for (number, version) in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].into_iter().enumerate() {
        let list = json!({"name": "pods", "cniVersion": version, "plugins": lists[number % lists.len()]});
        let nodes = [Node::new().unwrap(), Node::new().unwrap()];
        compare(&Network::from_value(&list).unwrap(), [&nodes[0], &nodes[1]], (2, "eth0"), &[]);
    }
}

/// The kernel makes each removal wait for a grace period, so DEL removes IFB and pair by one request: that of a group.
#[test]
fn del_removes_all_links_at_once() {
    let node = Node::new().unwrap();
    for network in networks(&Needs::Node).unwrap().iter().filter(|network| network.name != "cbr0") {
        let attached = Attached::new(&node, folded(network), 1, "eth0");
        let mut command = Command::new("sh");
        command.args(["-c", "exec stdbuf -oL ip -o monitor link > /run/monitor"]);
        let monitor = node.spawn(command).unwrap();
        // It prints this link once it listens.
        let listens = || {
            node.sh("ip link add probe type dummy || ip link add probe type ifb; ip link del probe; test -s /run/monitor")
        };
        assert!(eventually(TIMEOUT, || listens().is_ok()));
        attached.del();
        let groups = || -> Vec<u32> {
            let seen = node.sh("cat /run/monitor").unwrap();
            let deleted = seen
                .lines()
                .filter(|line| line.contains("Deleted") && (line.contains(" bwp") || line.contains(" veth")));
            let group = |line: &str| line.split("group ").nth(1)?.split_whitespace().next()?.parse().ok();
            deleted.filter_map(group).collect()
        };
        assert!(eventually(TIMEOUT, || groups().len() >= 2), "{}: {:?}", network.name, groups());
        assert!(
            groups()[0] >= 1 << 30 && groups().iter().all(|group| *group == groups()[0]),
            "{:?}",
            groups()
        );
        drop(monitor);
        attached.delete_pods();
    }
}

#[test]
fn the_forms_of_the_examples_convert_into_each_other() {
    for network in networks(&Needs::Node).unwrap() {
        let list = list(&network);
        assert_eq!(unfold(&fold(&list).unwrap()).unwrap(), list, "{}", network.name);
    }
}
