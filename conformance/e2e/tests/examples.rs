//! Every conflist in `examples/` attaches a pod that works. That of a bridge with a VLAN needs a stock kernel.

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use cni_lab::testing::link_plugin::LAN;
use cni_lab::testing::{DNSMASQ_LEASES, ips_of};
use cni_lab::{
    Client, Node, NodeRuntime, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually, kernel_module,
};
use cni_runner::Network;
use serde_json::json;

use self::example_networks::{Lan, Needs, networks, node_with_flannel};
use self::host_port::{PORTS, SERVER, answered, closed};

#[path = "common/example_networks.rs"]
mod example_networks;
#[path = "common/host_port.rs"]
mod host_port;

fn loopback(runtime: &NodeRuntime<'_>, pod: &Pod) -> anyhow::Result<()> {
    let network = json!({"name": "cni-loopback", "cniVersion": "0.3.1", "plugins": [{"type": "loopback"}]});
    runtime.add(&Network::from_value(&network)?, &pod.attachment("lo"))?;
    Ok(())
}

/// Calls ADD, checks addresses, routes and the host port from outside, then calls CHECK and DEL.
fn visit(network: &Network, runtime: &NodeRuntime<'_>, pod: &Pod, clients: &[Client]) -> anyhow::Result<()> {
    let mapping = json!({"hostPort": PORTS.0, "containerPort": PORTS.1, "protocol": "tcp"});
    let attachment = pod.attachment("eth0").with_capability("portMappings", json!([mapping]));
    let result = runtime.add(network, &attachment)?;
    let ips = result["ips"].as_array().context("a result without addresses")?;
    ensure!(!ips.is_empty(), "a result without addresses");
    let on_link = pod.sh("ip -o address show dev eth0 scope global")?;
    let defaults = pod.sh("ip -4 route show default; ip -6 route show default")?;
    let mut called = Vec::new();
    for ip in ips {
        let (address, gateway) =
            (ip["address"].as_str().unwrap_or_default(), ip["gateway"].as_str().unwrap_or_default());
        ensure!(on_link.contains(&format!(" {address} ")), "{address} is not on eth0:\n{on_link}");
        ensure!(
            defaults.contains(&format!("default via {gateway} ")),
            "no default route via {gateway}:\n{defaults}"
        );
        let is_ipv4 = gateway.parse::<IpAddr>()?.is_ipv4();
        let family = if is_ipv4 { "-4" } else { "-6" };
        let ping = format!("ping {family} -n -c 1 -W 2 {gateway}");
        // IPv6 first does neighbour discovery, so the first ping may fail.
        ensure!(eventually(TIMEOUT, || pod.sh(&ping).is_ok()), "{ping}");
        let client = clients.iter().find(|client| client.address().is_ipv4() == is_ipv4);
        called.extend(client);
    }
    let mut server = Command::new(SERVER[0]);
    server.args(&SERVER[1..]);
    let server = pod.spawn(server)?;
    for client in &called {
        answered(*client, client.node_address())?;
    }
    drop(server);
    runtime.check(network, &attachment)?;
    runtime.del(network, &attachment)?;
    for client in &called {
        closed(*client, client.node_address())?;
    }
    Ok(())
}

#[test]
fn every_example_attaches_a_pod_and_leaves_nothing() {
    let networks = networks(&Needs::Node).unwrap();
    assert!(networks.len() >= 7);
    for network in networks {
        attach_and_leave(&network).with_context(|| network.name.clone()).unwrap();
    }
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn the_vlan_example_attaches_a_pod_and_leaves_nothing() {
    kernel_module("8021q");
    let [network] = &networks(&Needs::BridgeVlans).unwrap()[..] else {
        panic!("not one example with a VLAN")
    };
    attach_and_leave(network).unwrap();
}

#[test]
fn every_example_on_a_lan_attaches_a_pod_and_leaves_nothing() {
    let lan = Lan::new();
    let networks = networks(&Needs::Lan).unwrap();
    assert!(networks.len() >= 6);
    for network in networks {
        attach_to_lan(&network, &lan.node).with_context(|| network.name.clone()).unwrap();
    }
}

fn attach_to_lan(network: &Network, node: &Node) -> anyhow::Result<()> {
    let runtime = node.runtime([bin_dir()?]);
    let ignored = ["last_reserved_ip", "/var/lib/cni/", "/run/cni/host-device/ 0700", DNSMASQ_LEASES];
    let snapshot = || anyhow::Ok(Snapshot::take(node)?.ignoring(&ignored));
    let before = snapshot()?;
    let pod = node.pod(&network.name)?;
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web";
    let attachment = pod.attachment("net1").with_args(args);
    let result = runtime.add(network, &attachment)?;
    let [address] = &ips_of(&result)[..] else { bail!("not one address: {result}") };
    pod.sh(&format!("ping -n -c 1 -W 2 -I {address} {}", LAN[0]))?;
    runtime.check(network, &attachment)?;
    runtime.del(network, &attachment)?;
    ensure!(pod.sh("ip link show net1").is_err(), "the interface is left");
    // The kernel removes some objects after the call that asked for it.
    eventually(TIMEOUT, || snapshot().is_ok_and(|after| before.diff(&after).is_empty()));
    let left = before.diff(&snapshot()?);
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

fn attach_and_leave(network: &Network) -> anyhow::Result<()> {
    let node = node_with_flannel()?;
    let clients = [node.outside_client("192.0.2.0/24")?, node.outside_client("2001:db8::/64")?];
    let runtime = node.runtime([bin_dir()?]);
    // The first pod makes the state that all pods share: the bridge, forwarding, empty chains, host-local's
    // folder.
    let first = node.pod("first")?;
    loopback(&runtime, &first)?;
    visit(network, &runtime, &first, &clients)?;

    let pod = node.pod("second")?;
    loopback(&runtime, &pod)?;
    let (node_before, pod_before) = (Snapshot::take(&node)?, Snapshot::take(&pod)?);
    visit(network, &runtime, &pod, &clients)?;
    let counts_on = ["last_reserved_ip"];
    let node_after = Snapshot::take(&node)?.ignoring(&counts_on);
    let left = node_before.ignoring(&counts_on).diff(&node_after) + &pod_before.diff(&Snapshot::take(&pod)?);
    ensure!(left.is_empty(), "left behind:\n{left}");
    let store = node.list_dir(format!("/var/lib/cni/networks/{}", network.name))?;
    let is_address = |name: &&String| name.parse::<IpAddr>().is_ok();
    ensure!(store.iter().find(is_address).is_none(), "reservations: {store:?}");
    Ok(())
}

#[test]
fn the_examples_do_not_disturb_each_other() {
    let node = node_with_flannel().unwrap();
    let runtime = node.runtime([bin_dir().unwrap()]);
    let networks = networks(&Needs::Node).unwrap();
    let pods: Vec<Pod> = networks.iter().map(|network| node.pod(&network.name).unwrap()).collect();
    for (network, pod) in networks.iter().zip(&pods) {
        runtime.add(network, &pod.attachment("eth0")).unwrap();
    }
    for (network, pod) in networks.iter().zip(&pods) {
        runtime.check(network, &pod.attachment("eth0")).unwrap();
        runtime.del(network, &pod.attachment("eth0")).unwrap();
    }
}
