//! What a node publishes of its health endpoint, in an annotation of its Node object. Pure.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

/// The annotation.
pub const ANNOTATION: &str = "ferrule.dev/health";
/// The most bytes of it.
const MOST: usize = 1024;

/// The annotation of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It has none: another release, or switched off.
    #[default]
    Absent,
    /// It is not used, and why.
    Invalid(&'static str),
    /// Its endpoint.
    Published(Published),
}

/// The content of the annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The UID of the Node object: a node that registers again has another one.
    pub uid: String,
    /// The boot of the node: the endpoint ends with it.
    #[serde(default)]
    pub boot: String,
    /// The version of the daemon.
    pub version: String,
    /// The MTU of the node's pods.
    pub mtu: u16,
    /// The endpoint's addresses, one of each podCIDR; none if it has no endpoint.
    pub addresses: Vec<IpAddr>,
}

impl Published {
    /// The text of the annotation.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Health {
    /// Reads the annotation of the node with this UID and these podCIDRs, in this boot if its kubelet tells that.
    pub(super) fn parse(text: &str, uid: &str, boot: Option<&str>, networks: &[IpNetwork]) -> Health {
        let parsed = (text.len() <= MOST).then(|| serde_json::from_str::<Published>(text).ok()).flatten();
        let Some(published) = parsed else {
            return Health::Invalid("the annotation of its health endpoint cannot be read");
        };
        if published.uid != uid {
            return Health::Invalid("its health endpoint is that of an earlier Node object");
        }
        if boot.is_some_and(|boot| boot != published.boot && !boot.is_empty() && !published.boot.is_empty()) {
            return Health::Invalid("its health endpoint is that of an earlier boot");
        }
        if published.mtu < 576 {
            return Health::Invalid("the MTU of its health endpoint is too small");
        }
        let mut seen = Vec::new();
        for ip in &published.addresses {
            let network = networks.iter().find(|network| network.contains(*ip) && network.network() != *ip);
            match network {
                Some(network) if !seen.contains(&network) => seen.push(network),
                Some(_) => return Health::Invalid("its health endpoint has two addresses of one podCIDR"),
                None => return Health::Invalid("the address of its health endpoint is not in its podCIDR"),
            }
        }
        Health::Published(published)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_nodes_own_podcidrs_count() {
        let networks = ["10.244.1.0/24", "fd00:1::/64"].map(|text| text.parse().unwrap());
        let read = |text: &str| Health::parse(text, "u1", Some("b1"), &networks);
        let published = Published {
            uid: "u1".into(),
            boot: "b1".into(),
            version: "0.1.0".into(),
            mtu: 1450,
            addresses: ["10.244.1.254", "fd00:1::ffff"].map(|text| text.parse().unwrap()).to_vec(),
        };
        let text = published.text();
        assert_eq!(read(&text), Health::Published(published));
        for (from, to, why) in [
            ("u1", "u2", "an earlier Node object"),
            ("b1", "b2", "an earlier boot"),
            ("10.244.1.254", "10.244.2.254", "not in its podCIDR"),
            ("10.244.1.254", "192.0.2.1", "not in its podCIDR"),
            ("10.244.1.254", "10.244.1.0", "not in its podCIDR"),
            ("fd00:1::ffff", "10.244.1.9", "two addresses"),
            ("1450", "28", "too small"),
            ("1450", "70000", "cannot be read"),
            ("\"uid\"", "\"other\"", "cannot be read"),
            ("0.1.0", &"x".repeat(MOST), "cannot be read"),
        ] {
            let found = read(&text.replace(from, to));
            assert!(matches!(found, Health::Invalid(said) if said.contains(why)), "{to}: {found:?}");
        }
        // A kubelet or a daemon that tells no boot, and a family alone.
        assert!(matches!(Health::parse(&text, "u1", None, &networks), Health::Published(_)));
        assert!(matches!(read(&text.replace("b1", "")), Health::Published(_)));
        assert!(matches!(read(&text.replace("\"10.244.1.254\",", "")), Health::Published(_)));
    }
}
