//! The lists that container managers write or document, with Ferrule's plugins alone, on nodes that drop forwarded packets
//! and on one that does not. podman's default network runs under podman itself, in `podman.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};

use cni_lab::testing::iptables::variant;
use cni_lab::testing::{Firewalld, ask, ips_of, serve, silent};
use cni_lab::{Client, Node, NodeRuntime, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

/// Port 80 of a container is port 8080 of the node.
const CONTAINER_PORT: u16 = 80;
const HOST_PORT: u16 = 8080;

/// What drops forwarded packets on a node. With `IptablesLegacy` the node's `iptables` is that variant.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Dropper {
    Nobody,
    IptablesNft,
    IptablesLegacy,
    Firewalld,
}

/// The lists that a container manager uses for each container.
struct Chain {
    who: &'static str,
    /// Whether the chain opens a firewall that drops. A chain without `firewall` does not.
    opens_firewall: bool,
    /// Whether the manager attaches `lo` by [`LOOPBACK`] first.
    loopback: bool,
    /// The list that makes `eth0`.
    list: &'static str,
}

const LOOPBACK: &str = r#"{"cniVersion": "1.0.0", "name": "loopback", "plugins": [{"type": "loopback"}]}"#;

const CHAINS: [Chain; 8] = [
    Chain {
        who: "nerdctl, default network",
        opens_firewall: true,
        loopback: false,
        list: r#"{"cniVersion": "1.0.0", "name": "bridge", "nerdctlID": "17f29b073143", "nerdctlLabels": {}, "plugins": [
            {"type": "bridge", "bridge": "nerdctl0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
                    "ranges": [[{"subnet": "10.4.0.0/24", "gateway": "10.4.0.1"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall", "ingressPolicy": "same-bridge"},
            {"type": "tuning"}]}"#,
    },
    Chain {
        who: "podman, network create --opt isolate=true --ipv6",
        opens_firewall: true,
        loopback: false,
        list: r#"{"cniVersion": "0.4.0", "name": "web",
            "args": {"podman_labels": {"app": "web"}, "podman_options": {"isolate": "true"}}, "plugins": [
            {"type": "bridge", "bridge": "cni-podman1", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "capabilities": {"ips": true},
                "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges": [
                    [{"subnet": "10.89.0.0/24", "gateway": "10.89.0.1"}],
                    [{"subnet": "fd7d:e2a1:bb93:1f2f::/64", "gateway": "fd7d:e2a1:bb93:1f2f::1"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall", "backend": "", "ingressPolicy": "same-bridge"},
            {"type": "tuning"}]}"#,
    },
    Chain {
        who: "minikube, bridge",
        opens_firewall: true,
        loopback: false,
        list: r#"{"cniVersion": "0.4.0", "name": "bridge", "plugins": [
            {"type": "bridge", "bridge": "bridge", "addIf": "true", "isDefaultGateway": true, "forceAddress": false,
                "ipMasq": true, "hairpinMode": true, "ipam": {"type": "host-local", "subnet": "10.244.0.0/16"}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"}]}"#,
    },
    Chain {
        who: "Nomad, bridge",
        opens_firewall: true,
        loopback: false,
        list: r#"{"cniVersion": "0.4.0", "name": "nomad", "plugins": [
            {"type": "loopback"},
            {"type": "bridge", "bridge": "nomad", "ipMasq": true, "isGateway": true, "forceAddress": true,
                "hairpinMode": true,
                "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                    "ranges": [[{"subnet": "172.26.64.0/20"}], [{"subnet": "fd00:a110:c8::/120"}]]}},
            {"type": "firewall", "backend": "iptables", "iptablesAdminChainName": "NOMAD-ADMIN"},
            {"type": "firewall", "backend": "ip6tables", "iptablesAdminChainName": "NOMAD-ADMIN"},
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}"#,
    },
    Chain {
        who: "kind",
        opens_firewall: false,
        loopback: true,
        list: r#"{"cniVersion": "0.3.1", "name": "kindnet", "plugins": [
            {"type": "ptp", "ipMasq": false, "mtu": 1500,
                "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                    "ranges": [[{"subnet": "10.244.0.0/24"}], [{"subnet": "fd00:10:244::/64"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]}"#,
    },
    // The third plugin would be tc-redirect-tap, an external one.
    Chain {
        who: "Firecracker",
        opens_firewall: true,
        loopback: false,
        list: r#"{"cniVersion": "0.4.0", "name": "fcnet", "plugins": [
            {"type": "ptp", "ipMasq": true,
                "ipam": {"type": "host-local", "subnet": "192.168.127.0/24", "resolvConf": "/etc/resolv.conf"}},
            {"type": "firewall"}]}"#,
    },
    Chain {
        who: "critest",
        opens_firewall: true,
        loopback: true,
        list: r#"{"cniVersion": "1.0.0", "name": "containerd-net", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "promiscMode": true,
                "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                    "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "2001:db8:4860::/64"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
            {"type": "tuning"}]}"#,
    },
    Chain {
        who: "CRI-O",
        opens_firewall: false,
        loopback: true,
        list: r#"{"cniVersion": "1.0.0", "name": "crio", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                    "ranges": [[{"subnet": "10.85.0.0/16"}], [{"subnet": "1100:200::/24"}]]}}]}"#,
    },
];

/// A node with an outside client for each family, and one chain.
struct World<'n> {
    node: &'n Node,
    runtime: NodeRuntime<'n>,
    outside: [Client; 2],
    loopback: Option<Network>,
    network: Network,
    what: String,
}

/// A pod and its addresses.
struct Attached {
    pod: Pod,
    addresses: Vec<IpAddr>,
}

/// Only the pod `two` has no host port.
fn attachment(pod: &Pod) -> Attachment {
    let mapping = json!([{"hostPort": HOST_PORT, "containerPort": CONTAINER_PORT, "protocol": "tcp"}]);
    let mappings = if pod.name() == "two" { json!([]) } else { mapping };
    pod.attachment("eth0").with_capability("portMappings", mappings)
}

impl World<'_> {
    /// Calls ADD, and CHECK if the version has it.
    fn attach(&self, pod: Pod) -> Attached {
        if let Some(loopback) = &self.loopback {
            self.runtime.add(loopback, &pod.attachment("lo")).unwrap();
        }
        let attachment = attachment(&pod);
        let add = self.runtime.add(&self.network, &attachment);
        let result = add.unwrap_or_else(|error| panic!("{}: {error}", self.what));
        if self.network.version != "0.3.1" {
            let check = self.runtime.check(&self.network, &attachment);
            check.unwrap_or_else(|error| panic!("{}: {error}", self.what));
        }
        if result.get("routes").is_none() {
            // Firecracker's guest itself makes the gateway its default route.
            let gateway = result["ips"][0]["gateway"].as_str().unwrap();
            pod.tool("ip", &["route", "add", "default", "via", gateway]).unwrap();
        }
        serve(&pod, pod.name(), CONTAINER_PORT);
        let addresses = ips_of(&result).into_iter().map(|ip| ip.parse().unwrap());
        // Nomad's result also has the addresses of `lo`.
        let addresses: Vec<_> = addresses.filter(|ip: &IpAddr| !ip.is_loopback()).collect();
        assert!(!addresses.is_empty(), "{}: {result}", self.what);
        Attached { pod, addresses }
    }

    fn detach(&self, attached: &Attached) {
        self.runtime.del(&self.network, &attachment(&attached.pod)).unwrap();
        if let Some(loopback) = &self.loopback {
            self.runtime.del(loopback, &attached.pod.attachment("lo")).unwrap();
        }
    }

    /// Sends from pod to pod, to the outside, and from there to the host port, in each family.
    fn traffic(&self, one: &Attached, two: &Attached, is_open: bool) {
        let World { what, network, .. } = self;
        let has = |plugin: &str| network.plugins.iter().any(|conf| conf["type"] == plugin);
        let masquerades = network.plugins.iter().any(|conf| conf.get("ipMasq") == Some(&json!(true)));
        for (&one_address, &two_address) in one.addresses.iter().zip(&two.addresses) {
            let client = &self.outside[usize::from(one_address.is_ipv6())];
            let outside = SocketAddr::new(client.address(), CONTAINER_PORT);
            serve(client, "outside", CONTAINER_PORT);
            if !is_open {
                assert!(silent(&one.pod, "tcp", outside), "{what}: outbound is open");
                continue;
            }
            let answer =
                |from: &Pod, to| ask(from, "tcp", to).unwrap_or_else(|error| panic!("{what}: {error}"));
            let seen = if masquerades { client.node_address() } else { one_address };
            assert_eq!(answer(&one.pod, outside), format!("outside {seen}"), "{what}");
            let to_two = answer(&one.pod, (two_address, CONTAINER_PORT).into());
            assert_eq!(to_two, format!("two {one_address}"), "{what}");
            let to_one = answer(&two.pod, (one_address, CONTAINER_PORT).into());
            assert_eq!(to_one, format!("one {two_address}"), "{what}");
            if has("portmap") {
                let host = (client.node_address(), HOST_PORT).into();
                let seen =
                    ask(client, "tcp", host).unwrap_or_else(|error| panic!("{what}: host port: {error}"));
                assert_eq!(seen, format!("one {}", client.address()), "{what}");
            }
        }
    }

    /// The node, with the data folder of kind's host-local, but without the last address, which host-local remembers.
    fn snapshot(&self) -> Snapshot {
        let dirs = [self.node.state_dirs(), &["/run/cni-ipam-state"]].concat();
        Snapshot::take_with(self.node, &dirs).unwrap().ignoring(&["last_reserved_ip"])
    }
}

fn run(chain: &Chain, dropper: Dropper) {
    let node = Node::new().unwrap();
    let outside = ["192.0.2.0/24", "2001:db8::/64"].map(|subnet| node.outside_client(subnet).unwrap());
    let programs = variant(if dropper == Dropper::IptablesLegacy { "legacy" } else { "nft" });
    let _firewalld = (dropper == Dropper::Firewalld).then(|| Firewalld::start(&node));
    if dropper == Dropper::Firewalld {
        // Behind firewalld and with bridge-nf, containers of a promiscuous bridge, such as critest's, do not reach the
        // outside over IPv6. The reference's containers do not either.
        node.write_file("/proc/sys/net/bridge/bridge-nf-call-ip6tables", "0").unwrap();
    }
    if matches!(dropper, Dropper::IptablesNft | Dropper::IptablesLegacy) {
        let drop = |program| format!("{}/{program} --policy FORWARD DROP", programs.path().display());
        node.sh(&format!("{} && {}", drop("iptables"), drop("ip6tables"))).unwrap();
    }
    let mut runtime = node.runtime([bin_dir().unwrap()]);
    runtime.runtime.env.push(("PATH".to_owned(), format!("{}:/usr/sbin", programs.path().display())));
    let network = |text| Network::from_value(&serde_json::from_str::<Value>(text).unwrap()).unwrap();
    let world = World {
        node: &node,
        runtime,
        outside,
        loopback: chain.loopback.then(|| network(LOOPBACK)),
        network: network(chain.list),
        what: format!("{}, dropper: {dropper:?}", chain.who),
    };

    // The first pod makes what all pods share.
    let first = world.attach(node.pod("first").unwrap());
    world.detach(&first);
    let pods = ["one", "two"].map(|name| node.pod(name).unwrap());
    // The kernel gives `lo` its addresses when it is first set up, and leaves them there.
    pods[0].sh("ip link set lo up && ip link set lo down").unwrap();
    let (node_before, pod_before) = (world.snapshot(), Snapshot::take(&pods[0]).unwrap());

    let [one, two] = pods.map(|pod| world.attach(pod));
    world.traffic(&one, &two, chain.opens_firewall || dropper == Dropper::Nobody);
    world.detach(&one);
    world.detach(&two);
    for client in &world.outside {
        let host = (client.node_address(), HOST_PORT).into();
        assert!(silent(client, "tcp", host), "{}: the host port is open", world.what);
    }
    let left = || node_before.diff(&world.snapshot()) + &pod_before.diff(&Snapshot::take(&one.pod).unwrap());
    // The kernel removes some objects after the call that asked for it.
    eventually(TIMEOUT, || left().is_empty());
    assert_eq!(left(), "", "{}", world.what);
}

#[test]
fn no_firewall() {
    CHAINS.iter().for_each(|chain| run(chain, Dropper::Nobody));
}

#[test]
fn iptables_nft_drops() {
    CHAINS.iter().for_each(|chain| run(chain, Dropper::IptablesNft));
}

#[test]
fn iptables_legacy_drops() {
    CHAINS.iter().for_each(|chain| run(chain, Dropper::IptablesLegacy));
}

#[test]
fn firewalld_drops() {
    CHAINS.iter().for_each(|chain| run(chain, Dropper::Firewalld));
}
