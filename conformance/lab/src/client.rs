//! A machine outside of the cluster that reaches the node, and the pods through it.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use ipnetwork::IpNetwork;

use super::namespaces::Namespaces;
use super::{Node, Place, Pod};

/// A network namespace that a veth pair links with a node; its default route leads to that node.
#[derive(Debug)]
pub struct Client {
    host: Pod,
    device: String,
    node_address: IpAddr,
    address: IpAddr,
}

impl Client {
    /// Makes the namespace and the link, `out<number>` on the node. The node gets the subnet's first address,
    /// the client the second.
    pub(super) fn new(
        node: &Node,
        namespaces: &Arc<Namespaces>,
        number: usize,
        subnet: &str,
    ) -> anyhow::Result<Client> {
        let subnet: IpNetwork = subnet.parse().with_context(|| format!("subnet {subnet:?}"))?;
        let mut hosts = subnet.iter().skip(1);
        let (Some(node_address), Some(address)) = (hosts.next(), hosts.next()) else {
            bail!("subnet {subnet} has no two host addresses");
        };
        let host = Pod::new(namespaces, &format!("client{number}"))?;
        let device = format!("out{number}");
        let (prefix, name) = (subnet.prefix(), host.name());
        // Without duplicate address detection an IPv6 address is usable at once.
        let nodad = if subnet.is_ipv4() { "" } else { "nodad" };
        node.sh(&format!(
            "set -e
            ip link add {device} type veth peer name eth0 netns {name}
            ip address add {node_address}/{prefix} dev {device} {nodad}
            ip link set {device} up"
        ))?;
        host.sh(&format!(
            "set -e
            ip link set lo up
            ip address add {address}/{prefix} dev eth0 {nodad}
            ip link set eth0 up
            ip route add default via {node_address}"
        ))?;
        Ok(Client { host, device, node_address, address })
    }

    /// The client's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The node's address on the link.
    pub fn node_address(&self) -> IpAddr {
        self.node_address
    }

    /// The name of the node's end of the link.
    pub fn node_device(&self) -> &str {
        &self.device
    }
}

impl Place for Client {
    fn enter(&self) -> anyhow::Result<()> {
        self.host.enter()
    }
}
