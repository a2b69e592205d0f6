//! Whose an address is, as far as this node knows without the API: by the cached results, the routes and the daemon's status file.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::Path;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::file;
use ferrule_kernel::netlink::Socket;
use ferrule_kit::cluster::{STATE, STATUS_FILE};
use ferrule_kit::presence::Presence;
use ipnetwork::IpNetwork;
use serde::Serialize;
use serde_json::Value;

use crate::cache::{Cache, Entry};
use crate::sight::Sight;

/// What a node knows of the places of pods.
#[derive(Debug, Default)]
pub struct Places {
    /// The attachments of this node.
    pub cache: Cache,
    /// The podCIDRs of the other nodes, with their names.
    nodes: Vec<(IpNetwork, String)>,
    /// Those of this node.
    own: Vec<IpNetwork>,
    /// Addresses of the other nodes themselves, with their names: where packets for their podCIDRs go.
    peers: HashMap<IpAddr, String>,
    /// Addresses of other nodes that are no source of packets to pods of this node, each with the source that its node uses.
    inner: HashMap<IpAddr, IpAddr>,
    /// The names of the node's links.
    links: HashMap<u32, String>,
}

/// Where an address is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind", content = "name")]
pub enum Where {
    /// It is an address of this node.
    ThisNode,
    /// A pod of this node has it, as NAMESPACE/NAME.
    Pod(String),
    /// It is in a podCIDR of this node, and no running attachment has it.
    Nobody,
    /// A pod of another node may have it.
    OtherNode(String),
    /// Another node itself has it.
    Node(String),
    /// None of this.
    #[default]
    Outside,
}

/// An address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Where it is.
    #[serde(rename = "where")]
    pub of: Where,
    /// The link of this node on which packets from it come, and to it leave.
    pub link: Option<String>,
}

impl Place {
    /// The pod of this node there.
    pub fn pod(&self) -> Option<&str> {
        match &self.of {
            Where::Pod(pod) => Some(pod),
            _ => None,
        }
    }
}

impl Places {
    /// Reads the cache, the links and the status file.
    ///
    /// # Errors
    /// The kernel does not list the links.
    pub fn read(results: &Path, sight: &Sight, route: &mut Socket) -> Result<Places, CniError> {
        let links = route.links(None).context(|| "list the links")?;
        let status = Path::new(STATE).join(STATUS_FILE);
        let status = file::read(&status).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let status = status.unwrap_or_default();
        let (nodes, own) = networks(&status);
        Ok(Places {
            cache: Cache::read(results, sight),
            nodes,
            own,
            peers: peers(&status),
            inner: inner(&status),
            links: links.into_iter().map(|link| (link.index, link.name)).collect(),
        })
    }

    /// The addresses of a pod of this node, and whether all of its network namespaces are gone.
    pub fn addresses_of(&self, pod: &str) -> (BTreeSet<IpAddr>, bool) {
        let own: Vec<&Entry> =
            self.cache.entries.iter().filter(|entry| entry.pod.as_deref() == Some(pod)).collect();
        let is_gone = |entry: &&Entry| matches!(entry.netns_state, Presence::Gone { .. });
        let has_ended = !own.is_empty() && own.iter().all(is_gone);
        let live = own.into_iter().filter(|entry| has_ended || !is_gone(entry));
        (
            live.filter(|entry| !entry.is_loopback()).flat_map(|entry| entry.addresses.clone()).collect(),
            has_ended,
        )
    }

    /// The running pod with this address, as NAMESPACE/NAME; empty if none is known.
    pub fn pod_of(&self, address: IpAddr) -> String {
        match self.pod_or_node(address) {
            Where::Pod(pod) => pod,
            _ => String::new(),
        }
    }

    /// Where an address is.
    ///
    /// # Errors
    /// The kernel refuses to say the route.
    pub fn of(&self, address: IpAddr, route: &mut Socket) -> Result<Place, CniError> {
        let found = route.route_to(address).context(|| format!("find the route to {address}"))?;
        let is_own = found.as_ref().is_some_and(|route| route.local);
        let link = found.and_then(|route| self.links.get(&route.oif?).cloned());
        Ok(Place { of: if is_own { Where::ThisNode } else { self.pod_or_node(address) }, link })
    }

    /// The address with which another node sends to pods of this node, if it is not this one.
    pub fn inner(&self, address: IpAddr) -> Option<IpAddr> {
        self.inner.get(&address).copied()
    }

    fn pod_or_node(&self, address: IpAddr) -> Where {
        let mut own = self.cache.entries.iter().filter(|entry| {
            entry.addresses.contains(&address) && !matches!(entry.netns_state, Presence::Gone { .. })
        });
        let has = |networks: &IpNetwork| networks.contains(address);
        if let Some(entry) = own.next() {
            let container = || entry.owner.container.clone().unwrap_or_default();
            Where::Pod(entry.pod.clone().unwrap_or_else(container))
        } else if self.own.iter().any(has) {
            Where::Nobody
        } else if let Some(node) = self.peers.get(&address) {
            Where::Node(node.clone())
        } else {
            let node = self.nodes.iter().find(|(network, _)| has(network));
            node.map_or(Where::Outside, |(_, name)| Where::OtherNode(name.clone()))
        }
    }
}

/// The podCIDRs of the other nodes, and of this one.
fn networks(status: &Value) -> (Vec<(IpNetwork, String)>, Vec<IpNetwork>) {
    let network = |value: &Value| value.as_str()?.parse::<IpNetwork>().ok();
    let mut nodes = Vec::new();
    for node in list(&status["nodes"]) {
        let name = node["name"].as_str().unwrap_or_default();
        let networks = list(&node["networks"]);
        nodes.extend(networks.iter().filter_map(|of| Some((network(&of["network"])?, name.to_owned()))));
    }
    (nodes, list(&status["conflist"]["networks"]).iter().filter_map(network).collect())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn address(value: &Value) -> Option<IpAddr> {
    value.as_str()?.parse().ok()
}

/// The addresses of the other nodes, and those that the daemon probes: behind a VXLAN that of its link there.
fn peers(status: &Value) -> HashMap<IpAddr, String> {
    let of = |node: &Value| {
        let name = node["name"].as_str().unwrap_or_default().to_owned();
        let probes = list(&node["networks"]).iter().map(|network| &network["probe"]);
        let all: Vec<IpAddr> = probes.chain(list(&node["addresses"])).filter_map(address).collect();
        all.into_iter().map(move |address| (address, name.clone()))
    };
    list(&status["nodes"]).iter().flat_map(of).collect()
}

/// The addresses of nodes that send by VXLAN or WireGuard, each with that of its link.
fn inner(status: &Value) -> HashMap<IpAddr, IpAddr> {
    let of = |node: &Value| {
        let ways = list(&node["networks"]).iter().filter(|network| network["way"] != "route");
        let inner: Vec<IpAddr> = ways.filter_map(|network| address(&network["probe"])).collect();
        let own: Vec<IpAddr> = list(&node["addresses"]).iter().filter_map(address).collect();
        let of_family = move |own: IpAddr| inner.iter().find(|ip| ip.is_ipv4() == own.is_ipv4()).copied();
        own.into_iter().filter_map(move |own| Some((own, of_family(own)?))).collect::<Vec<_>>()
    };
    list(&status["nodes"]).iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Owner;

    fn entry(pod: &str, last: u8, netns_state: Presence) -> Entry {
        let addresses = [IpAddr::from([10, 1, 0, last])].into();
        let owner = Owner::container(pod).on("pods").with_ifname("eth0");
        Entry { owner, pod: Some(pod.to_owned()), netns_state, addresses, ..Entry::default() }
    }

    #[test]
    fn each_address_has_a_place() {
        let status = json!({"conflist": {"networks": ["10.1.0.0/24", "x"]},
            "nodes": [{"name": "n2", "addresses": ["198.51.100.2", "2001:db8::2"],
                    "networks": [{"network": "10.1.1.0/24", "way": "vxlan", "probe": "10.1.1.0"}]},
                {"name": "n3", "addresses": ["192.0.2.3"], "networks": [
                    {"network": "10.1.3.0/24", "way": "route", "probe": "192.0.2.3"}, {"way": "vxlan", "probe": "x"}]}]});
        let (nodes, own) = networks(&status);
        let (gone, live) = (Presence::Gone { is_missing: true }, Presence::Present((1, 7)));
        let entries =
            vec![entry("shop/web", 2, live), entry("shop/old", 2, gone), entry("shop/old", 3, gone)];
        let (peers, inner) = (peers(&status), inner(&status));
        let places = Places { cache: Cache::with(entries), nodes, own, peers, inner, ..Places::default() };
        let of = |text: &str| places.pod_or_node(text.parse().unwrap());
        assert_eq!(of("10.1.0.2"), Where::Pod("shop/web".into()));
        assert_eq!((of("10.1.0.3"), of("10.1.0.9")), (Where::Nobody, Where::Nobody));
        assert_eq!(of("10.1.1.9"), Where::OtherNode("n2".into()));
        assert_eq!((of("10.1.1.0"), of("192.0.2.3")), (Where::Node("n2".into()), Where::Node("n3".into())));
        assert_eq!((of("10.1.2.9"), of("fd00::1")), (Where::Outside, Where::Outside));
        let sends_with = |text: &str| places.inner(text.parse().unwrap()).map(|ip| ip.to_string());
        assert_eq!(of("198.51.100.2"), Where::Node("n2".into()));
        assert_eq!(sends_with("198.51.100.2").as_deref(), Some("10.1.1.0"));
        // Another family, a node without VXLAN, and the address of the link itself.
        assert_eq!(["2001:db8::2", "192.0.2.3", "10.1.1.0"].map(sends_with), [None, None, None]);
        let addresses = |pod: &str| places.addresses_of(pod).0.len();
        assert_eq!((addresses("shop/web"), addresses("shop/old"), addresses("web")), (1, 2, 0));
        assert_eq!((places.addresses_of("shop/web").1, places.addresses_of("shop/old").1), (false, true));
        assert_eq!(networks(&Value::Null), (Vec::new(), Vec::new()));
    }
}
