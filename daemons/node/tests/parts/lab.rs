//! What the tests share.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use cni_lab::{Node, Place as _, Pod, testing};
use ipnetwork::IpNetwork;
use tokio::runtime::{Builder, Runtime};

/// Longer than anything takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn networks(text: &str) -> Vec<IpNetwork> {
    text.split_whitespace().map(|network| network.parse().unwrap()).collect()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs the work in a network namespace and a tokio runtime of its own.
pub(crate) fn isolated(work: impl FnOnce(&Runtime) + Send) {
    testing::isolated(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        work(&runtime);
    });
}

pub(crate) fn within_limit<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { tokio::time::timeout(LIMIT, future).await }).expect("it has not ended in time")
}

/// Runs a script in the namespaces of the calling thread.
pub(crate) fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A node with a pod.
pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) pod: Pod,
}

/// Two nodes with a link between them: 192.0.2.N and fd02::N. Each has a pod `p` behind a bridge `cni0` in 10.1.N.0/24 and
/// fd00:0:0:N::/64: the bridge has the first address, the pod the second one.
pub(crate) fn two_hosts() -> [Host; 2] {
    let hosts = [host(1), host(2)];
    let other = hosts[1].node.netns_path();
    hosts[0].node.sh(&format!("ip link add up0 type veth peer name up0 netns {}", other.display())).unwrap();
    for (number, host) in (1..).zip(&hosts) {
        host.node
            .sh(&format!(
                "set -e
                ip address add 192.0.2.{number}/24 dev up0; ip address add fd02::{number}/64 dev up0 nodad
                ip link set up0 up"
            ))
            .unwrap();
    }
    hosts
}

pub(crate) fn host(number: u8) -> Host {
    let node = Node::new().unwrap();
    let pod = node.pod("p").unwrap();
    node.sh(&format!(
        "set -e
        sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
        ip link add cni0 type bridge; ip link set cni0 up
        ip address add 10.1.{number}.1/24 dev cni0; ip address add fd00:0:0:{number}::1/64 dev cni0 nodad
        ip link add veth0 type veth peer name eth0 netns p; ip link set veth0 master cni0 up"
    ))
    .unwrap();
    pod.sh(&format!(
        "set -e
        ip link set lo up; ip address add 10.1.{number}.2/24 dev eth0; ip address add fd00:0:0:{number}::2/64 dev eth0 nodad
        ip link set eth0 up; ip route add default via 10.1.{number}.1; ip route add default via fd00:0:0:{number}::1"
    ))
    .unwrap();
    Host { node, pod }
}

/// Pods reach each other in both families, with packets of this size and not of one byte more; each node reaches the other one's pod.
pub(crate) fn assert_reach(hosts: &[Host; 2], mtu: u32) {
    for (from, to) in [(0, 2), (1, 1)] {
        for (address, headers) in [(format!("10.1.{to}.2"), 28), (format!("fd00:0:0:{to}::2"), 48)] {
            let size = mtu - headers;
            hosts[from].pod.sh(&format!("ping -c 1 -W 30 -M do -s {size} {address}")).unwrap();
            let larger = hosts[from].node.sh(&format!("ping -c 1 -W 1 -M do -s {} {address}", size + 1));
            assert!(larger.is_err(), "{address} with {mtu} + 1");
            hosts[from].node.sh(&format!("ping -c 1 -W 30 {address}")).unwrap();
        }
    }
}
