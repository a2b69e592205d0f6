//! The fields of a Node object that the network needs, and [`Peer`], their checked form.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::health::{self, Health};
use super::key::parse_key;
use crate::names::KEY_ANNOTATION;

/// All nodes that the API server knows, by name.
pub type Peers = BTreeMap<String, Peer>;

/// A Node object. The parser drops all other fields: a node's images alone are 10 kB.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Node {
    pub metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

/// Where the watch after a list and its next page begin.
#[derive(Debug, Deserialize)]
pub struct ListMetadata {
    /// The version of the whole list.
    #[serde(rename = "resourceVersion", default)]
    pub resource_version: String,
    /// The token of the next page; empty or absent on the last one.
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub resource_version: String,
    creation_timestamp: Option<String>,
    uid: Option<String>,
    annotations: Option<Annotations>,
}

/// The annotations of ours. All others are dropped while they are read.
#[derive(Clone, Debug, Default)]
struct Annotations(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Annotations, D::Error> {
        struct Ours;
        impl<'de> Visitor<'de> for Ours {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut found = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    match name.starts_with(PREFIX) {
                        true => drop(found.insert(name, map.next_value()?)),
                        false => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Annotations(found))
            }
        }
        deserializer.deserialize_map(Ours)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Spec {
    #[serde(rename = "podCIDR")]
    cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    cidrs: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    addresses: Option<Vec<Address>>,
    conditions: Option<Vec<Condition>>,
    node_info: Option<NodeInfo>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeInfo {
    #[serde(rename = "bootID")]
    boot_id: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// The valid parts of a Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The object's creation time, as the API server writes it: older sorts first.
    pub created: String,
    /// The object's UID: a node that registers again has another one.
    pub uid: String,
    /// Whether its condition Ready is True.
    pub is_ready: bool,
    /// Its podCIDRs, in their order, at most one of each family.
    pub networks: Vec<IpNetwork>,
    /// Its first InternalIP of each family, by [`IpFamily::ALL`].
    pub addresses: [Option<IpAddr>; 2],
    pub key: Option<[u8; 32]>,
    pub health: Health,
    /// The invalid podCIDRs, and why each is invalid.
    pub faults: Vec<(String, String)>,
}

impl Peer {
    /// Its InternalIP of a family.
    pub fn address(&self, family: IpFamily) -> Option<IpAddr> {
        self.addresses[family as usize]
    }
}

/// The beginning of the names of our annotations.
const PREFIX: &str = "ferrule.dev/";
/// The longest name of a Node object.
const MAX_NAME: usize = 253;
/// The most invalid podCIDRs of one node that are reported.
const MAX_FAULTS: usize = 4;

impl Node {
    /// Its annotations of ours.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.metadata.annotations.clone().unwrap_or_default().0
    }

    /// The node's name and its valid parts. `None` if Kubernetes does not allow the name.
    pub fn check(self) -> Option<(String, Peer)> {
        let name = self.metadata.name;
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_name) {
            return None;
        }
        let mut peer = Peer {
            created: self.metadata.creation_timestamp.unwrap_or_default(),
            uid: self.metadata.uid.unwrap_or_default(),
            is_ready: self
                .status
                .conditions
                .into_iter()
                .flatten()
                .any(|c| c.kind == "Ready" && c.status == "True"),
            ..Peer::default()
        };
        let one = || self.spec.cidr.into_iter().collect();
        for text in self.spec.cidrs.filter(|list| !list.is_empty()).unwrap_or_else(one) {
            match network(&text, &peer.networks) {
                Ok(network) => peer.networks.push(network),
                Err(why) if peer.faults.len() < MAX_FAULTS => {
                    peer.faults.push((short(&text), why.to_owned()))
                }
                Err(_) => {}
            }
        }
        let internal =
            self.status.addresses.into_iter().flatten().filter(|address| address.kind == "InternalIP");
        for ip in internal.filter_map(|address| address.address.parse().ok()).filter(is_usable) {
            peer.addresses[IpFamily::of(ip) as usize].get_or_insert(ip);
        }
        let Annotations(annotations) = self.metadata.annotations.unwrap_or_default();
        peer.key = annotations.get(KEY_ANNOTATION).and_then(|text| parse_key(text));
        let boot = self.status.node_info.unwrap_or_default().boot_id;
        peer.health = annotations
            .get(health::ANNOTATION)
            .map_or(Health::Absent, |text| Health::parse(text, &peer.uid, boot.as_deref(), &peer.networks));
        Some((name, peer))
    }
}

/// Parses a further podCIDR of a node that has `former`.
fn network(text: &str, former: &[IpNetwork]) -> Result<IpNetwork, &'static str> {
    let network: IpNetwork = text.parse().ok().filter(|_| text.contains('/')).ok_or("it is no network")?;
    if network.network() != network.ip() {
        return Err("it has host bits");
    }
    if former.iter().any(|former| former.is_ipv4() == network.is_ipv4()) {
        return Err("the node has a podCIDR of this family already");
    }
    Ok(network)
}

/// Whether a node can have the address.
fn is_usable(ip: &IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local)
}

/// A text for a log line: short, and without control characters.
fn short(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str) -> Option<(String, Peer)> {
        serde_json::from_str::<Node>(json).unwrap().check()
    }

    #[test]
    fn a_node_as_kubernetes_writes_it() {
        let (name, peer) = check(
            r#"{"kind":"Node","metadata":{"name":"n1","uid":"x","creationTimestamp":"2026-01-02T03:04:05Z",
            "annotations":{"a":"b"},"managedFields":[{"x":1}]},
            "spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24","fd00:1::/64"],"providerID":"kind://x"},
            "status":{"images":[],"addresses":[{"type":"Hostname","address":"n1"},{"type":"ExternalIP","address":"9.9.9.9"},
            {"type":"InternalIP","address":"192.0.2.1"},{"type":"InternalIP","address":"2001:db8::1"},
            {"type":"InternalIP","address":"192.0.2.9"}]}}"#,
        )
        .unwrap();
        assert_eq!((name.as_str(), peer.created.as_str()), ("n1", "2026-01-02T03:04:05Z"));
        assert_eq!(peer.networks, ["10.244.1.0/24", "fd00:1::/64"].map(|text| text.parse().unwrap()));
        assert_eq!(peer.addresses, ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().ok()));
        assert!(peer.faults.is_empty());
    }

    #[test]
    fn only_our_annotations_are_kept() {
        let node: Node =
            serde_json::from_str(r#"{"metadata":{"annotations":{"a":"b","ferrule.dev/c":"d"}}}"#).unwrap();
        assert_eq!(node.annotations(), BTreeMap::from([("ferrule.dev/c".to_owned(), "d".to_owned())]));
    }

    #[test]
    fn a_new_node_has_neither_podcidrs_nor_addresses() {
        for json in [
            r#"{"metadata":{"name":"n"}}"#,
            r#"{"metadata":{"name":"n","annotations":null},"spec":{"podCIDRs":null},"status":{"addresses":null}}"#,
        ] {
            assert_eq!(check(json).unwrap().1, Peer::default());
        }
    }

    #[test]
    fn invalid_podcidrs_are_refused_and_the_rest_is_kept() {
        for (text, why) in [
            ("10.244.1.1/24", "it has host bits"),
            ("10.244.1.0", "it is no network"),
            ("10.244.1.0/33", "it is no network"),
            ("x\\u0007", "it is no network"),
        ] {
            let json = format!(
                r#"{{"metadata":{{"name":"n"}},"spec":{{"podCIDRs":["{text}","fd00::/64","fd01::/64"]}}}}"#
            );
            let peer = check(&json).unwrap().1;
            assert_eq!(peer.networks, ["fd00::/64".parse().unwrap()], "{text}");
            assert_eq!(peer.faults[0].1, why, "{text}");
            assert_eq!(peer.faults[1].1, "the node has a podCIDR of this family already");
        }
    }

    #[test]
    fn unusable_addresses_are_ignored() {
        for address in
            ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "::ffff:1.2.3.4", "x"]
        {
            let json = format!(
                r#"{{"metadata":{{"name":"n"}},"status":{{"addresses":[{{"type":"InternalIP","address":"{address}"}}]}}}}"#
            );
            assert_eq!(check(&json).unwrap().1.addresses, [None, None], "{address}");
        }
    }

    #[test]
    fn names_that_kubernetes_does_not_allow_are_refused() {
        for name in ["", "A", "a/b", "a\\nb", &"a".repeat(254)] {
            assert!(check(&format!(r#"{{"metadata":{{"name":"{name}"}}}}"#)).is_none(), "{name}");
        }
    }
}
