//! Networks on the LAN of the node, beside the pod's first network or instead of it, with Ferrule's plugins alone: the lists
//! that Multus users, nerdctl and podman write.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use cni_lab::testing::link_plugin::{LAN, uplink};
use cni_lab::testing::{
    DNSMASQ_LEASES, Origin, PluginDir, TestContext, ask, dnsmasq, host_local, ips_of, mac, serve,
};
use cni_lab::{NodeRuntime, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Network};
use serde_json::{Value, json};

/// The port of the pods' servers.
const PORT: u16 = 80;
/// The addresses of the host `far`.
const FAR: [&str; 2] = ["198.51.100.2", "2001:db8:1::2"];

/// A node with the link `uplink0` to a LAN, whose router leads to the host `far` in other subnets.
struct Site {
    ctx: TestContext,
    router: Pod,
    far: Pod,
}

impl Site {
    fn new() -> Site {
        let ctx = TestContext::new(PluginDir::installed(Origin::Ours, "macvlan"));
        let (router, far) = (uplink(&ctx), ctx.pod("far"));
        router
            .sh("set -e
                echo 1 > /proc/sys/net/ipv4/ip_forward
                echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
                ip link add far0 up type veth peer name eth0 netns far
                ip address add 198.51.100.1/24 dev far0
                ip address add 2001:db8:1::1/64 dev far0 nodad")
            .unwrap();
        far.sh("set -e
                ip address add 198.51.100.2/24 dev eth0
                ip address add 2001:db8:1::2/64 dev eth0 nodad
                ip link set eth0 up
                ip route add default via 198.51.100.1
                ip route add default via 2001:db8:1::1")
            .unwrap();
        Site { ctx, router, far }
    }

    fn runtime(&self) -> NodeRuntime<'_> {
        self.ctx.node.runtime([bin_dir().unwrap()])
    }

    /// Calls ADD and CHECK. Returns the addresses.
    fn attach(&self, network: &Network, attachment: &Attachment) -> Vec<IpAddr> {
        let what = format!("{} on {}", attachment.ifname, network.name);
        let added = self.runtime().add(network, attachment);
        let result = added.unwrap_or_else(|error| panic!("{what}: {error}"));
        self.runtime().check(network, attachment).unwrap_or_else(|error| panic!("{what}: {error}"));
        ips_of(&result).iter().map(|ip| ip.parse().unwrap()).collect()
    }

    /// `far` asks the pod's server at each address, which must see `far`.
    fn reaches(&self, pod: &Pod, addresses: &[IpAddr]) {
        serve(pod, pod.name(), PORT);
        for address in addresses {
            let seen = ask(&self.far, "tcp", (*address, PORT).into()).unwrap();
            assert_eq!(seen, format!("{} {}", pod.name(), FAR[usize::from(address.is_ipv6())]));
        }
    }

    /// The node without host-local's last address and the folder of the runtime's cache.
    fn snapshot(&self) -> Snapshot {
        self.ctx.snapshot().ignoring(&["last_reserved_ip", "/var/lib/cni/results/ "])
    }

    fn assert_same(&self, before: &Snapshot, what: &str) {
        // The kernel removes some objects after the call that asked for it.
        eventually(TIMEOUT, || before.diff(&self.snapshot()).is_empty());
        assert_eq!(before.diff(&self.snapshot()), "", "{what}");
    }

    /// Attaches pods by these lists, reaches them from `far`, and detaches them with and without their namespaces.
    fn runs(&self, lists: &[(&str, Value)]) {
        for (number, (args, list)) in lists.iter().enumerate() {
            let network = Network::from_value(list).unwrap();
            let attachment = |pod: &Pod| {
                let ips = json!(["fd00:1::77"]);
                pod.attachment("eth0").with_args(*args).with_capability("ips", ips)
            };
            let first = self.ctx.pod(&format!("first{number}"));
            self.attach(&network, &attachment(&first));
            self.runtime().del(&network, &attachment(&first)).unwrap();
            let before = self.snapshot();
            let pod = self.ctx.pod(&format!("pod{number}"));
            let addresses = self.attach(&network, &attachment(&pod));
            assert_eq!(addresses, ["10.1.2.77".parse::<IpAddr>().unwrap(), "fd00:1::77".parse().unwrap()]);
            self.reaches(&pod, &addresses);
            let to_router: SocketAddr = format!("{}:{PORT}", LAN[0]).parse().unwrap();
            assert_eq!(ask(&pod, "tcp", to_router).unwrap(), "router 10.1.2.77");
            if number % 2 == 0 {
                self.runtime().del(&network, &attachment(&pod)).unwrap();
                pod.delete().unwrap();
            } else {
                pod.delete().unwrap();
                self.runtime().del(&network, &attachment(&pod)).unwrap();
            }
            self.assert_same(&before, &network.name);
        }
    }
}

/// What nerdctl and podman write for `macvlan` and `ipvlan`, and their CNI_ARGS.
fn lists(kind: &str, mac: &str) -> [(String, Value); 2] {
    let ranges = json!([[{"gateway": LAN[0], "subnet": "10.1.2.0/24", "ipRange": "10.1.2.64/26"}],
        [{"gateway": LAN[1], "subnet": "fd00:1::/64"}]]);
    let ipam =
        json!({"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges": ranges});
    let nerdctl = json!({"cniVersion": "1.0.0", "name": "nerdctl", "nerdctlID": "17f29b073143", "nerdctlLabels": {},
        "plugins": [{"type": kind, "mtu": 1400, "master": "uplink0", "mode": if kind == "ipvlan" { "l2" } else { "bridge" },
            "capabilities": {"ips": true}, "ipam": ipam}]});
    let podman = json!({"cniVersion": "0.4.0", "name": "podman", "args": {"podman_labels": {}, "podman_options": {}},
        "plugins": [{"type": kind, "master": "uplink0", "capabilities": {"ips": true}, "ipam": ipam}]});
    [
        (format!("IgnoreUnknown=1;NERDCTL_CNI_DHCP_HOSTNAME=web{mac};IP=10.1.2.77"), nerdctl),
        (format!("IgnoreUnknown=1;K8S_POD_NAME=web{mac};IP=10.1.2.77"), podman),
    ]
}

fn alone(kind: &str, mac: &str) {
    let site = Site::new();
    serve(&site.router, "router", PORT);
    let lists = lists(kind, mac);
    site.runs(&lists.each_ref().map(|(args, list)| (args.as_str(), list.clone())));
}

#[test]
fn macvlan_of_nerdctl_and_podman() {
    alone("macvlan", ";MAC=02:00:00:00:00:77");
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn ipvlan_of_nerdctl_and_podman() {
    cni_lab::kernel_module("ipvlan");
    alone("ipvlan", "");
}

/// A second interface by Multus: replies to it leave through it, and all else through the first one.
#[test]
fn macvlan_with_sbr_behind_multus() {
    let site = Site::new();
    let outside = site.ctx.node.outside_client("192.0.2.0/24").unwrap();
    serve(&outside, "outside", PORT);
    let primary = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0",
        "isDefaultGateway": true, "ipMasq": true, "ipam": host_local(&["10.244.0.0/24", "fd00:244::/64"])}]});
    let routes = json!([{"dst": "0.0.0.0/0", "gw": LAN[0]}, {"dst": "::/0", "gw": LAN[1]}]);
    let secondary = json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [
        {"type": "macvlan", "capabilities": {"ips": true}, "master": "uplink0", "mode": "bridge",
            "ipam": {"type": "static", "routes": routes}},
        {"type": "tuning", "capabilities": {"mac": true}},
        {"type": "sbr"}]});
    let [primary, secondary] = [primary, secondary].map(|list| Network::from_value(&list).unwrap());
    let attachments = |pod: &Pod| {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID=1b4e-28ba",
            pod.name(),
            pod.name()
        );
        let net1 = pod.attachment("net1").with_capability("ips", json!(["10.1.2.10/24", "fd00:1::10/64"]));
        let net1 = net1.with_capability("mac", json!("c2:00:00:00:00:10"));
        [(&primary, pod.attachment("eth0")), (&secondary, net1)]
            .map(|(network, attachment)| (network, attachment.with_args(args.clone())))
    };
    let attach = |pod: &Pod| attachments(pod).map(|(network, attachment)| site.attach(network, &attachment));
    let detach = |pod: &Pod| {
        for (network, attachment) in attachments(pod).iter().rev() {
            site.runtime().del(network, attachment).unwrap();
        }
    };
    // The first pod makes the bridge.
    let first = site.ctx.pod("first");
    attach(&first);
    detach(&first);
    let pod = site.ctx.pod("web-0");
    // The kernel gives `lo` its addresses when it is first set up, and leaves them there.
    pod.sh("ip link set lo up && ip link set lo down").unwrap();
    let (node_before, pod_before) = (site.snapshot(), Snapshot::take(&pod).unwrap());
    let [_, addresses] = attach(&pod);
    assert_eq!(mac(&pod, "net1"), "c2:00:00:00:00:10");
    site.reaches(&pod, &addresses);
    let seen = ask(&pod, "tcp", (outside.address(), PORT).into()).unwrap();
    assert_eq!(seen, format!("outside {}", outside.node_address()));
    // The second network changes nothing for the first one.
    for (network, attachment) in attachments(&pod) {
        site.runtime().check(network, &attachment).unwrap();
    }
    for to in FAR {
        let route = pod.sh(&format!("ip route get {to}")).unwrap();
        assert!(route.contains("dev eth0"), "{route}");
    }
    detach(&pod);
    assert_eq!(pod_before.diff(&Snapshot::take(&pod).unwrap()), "");
    site.assert_same(&node_before, "Multus");
}

/// podman's macvlan without subnets: the LAN's DHCP server gives the address, and gets it back.
#[test]
fn macvlan_with_dhcp_of_podman() {
    let site = Site::new();
    let _server = dnsmasq(
        &site.router,
        "lan0",
        &["--dhcp-range=10.1.2.50,10.1.2.59,255.255.255.0,1h", "--dhcp-option=3,10.1.2.1"],
    );
    let leases = || site.ctx.node.read_file(DNSMASQ_LEASES).unwrap_or_default();
    let _daemon = site.ctx.node.spawn(Command::new(bin_dir().unwrap().join("ferrule-dhcp"))).unwrap();
    let network = Network::from_value(&json!({"cniVersion": "0.4.0", "name": "lan",
        "args": {"podman_labels": {}, "podman_options": {}}, "plugins": [{"type": "macvlan", "master": "uplink0",
            "ipam": {"type": "dhcp", "provide": [{"option": "host-name", "fromArg": "K8S_POD_NAME"}]}}]}));
    let network = network.unwrap();
    assert!(eventually(TIMEOUT, || site.ctx.node.sh("test -S /run/cni/dhcp.sock").is_ok()));
    let before = site.snapshot();
    let pod = site.ctx.pod("web");
    let attachment = pod.attachment("eth0").with_args("IgnoreUnknown=1;K8S_POD_NAME=web-0");
    let addresses = site.attach(&network, &attachment);
    assert!(addresses[0].to_string().starts_with("10.1.2.5"), "{addresses:?}");
    assert!(leases().contains("web-0"), "{}", leases());
    site.reaches(&pod, &addresses);
    site.runtime().del(&network, &attachment).unwrap();
    assert!(eventually(TIMEOUT, || leases().is_empty()), "not released: {}", leases());
    site.assert_same(&before, "dhcp");
}
