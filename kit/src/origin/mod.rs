//! Objects that other cluster networks leave on a node: one table for `ferrule doctor`, for `ferrule-node cleanup --left-overs`, and for
//! the plan of `ferrule-node`, which meets them in podCIDRs. [`find`] looks for all of one network.
//!
//! # References
//! The sources of the projects in August 2026: flannel pkg/backend and pkg/trafficmngr, kind images/kindnetd, kube-router pkg/controllers and
//! daemonset, Calico felix/rules and felix/dataplane.

mod find;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_kernel::netlink::Link;

pub use self::find::{LeftOvers, Places, TABLES, Thing, find};

/// The usual folder of host-local.
pub const NETWORKS: &str = "/var/lib/cni/networks";

/// A network of another project.
#[derive(Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its name on the command line.
    pub name: &'static str,
    /// The names of its network configurations.
    pub files: &'static [&'static str],
    /// The names of its networks in host-local's folder.
    pub networks: &'static [&'static str],
    /// host-local's folder, if it is not the usual one.
    pub data_dir: Option<&'static str>,
    /// The bridge of its pods.
    pub bridge: Option<&'static str>,
    /// How the names of its pods' links on the node begin, if they have no bridge.
    pub ends: Option<&'static str>,
    /// Its devices: name and kind. That of the bridge is none of them.
    pub devices: &'static [(&'static str, &'static str)],
    /// How the names of its chains in the tables of iptables begin.
    pub chains: &'static [&'static str],
    /// How the comments of its rules in the chains of others begin.
    pub comments: &'static [&'static str],
    /// Its tables in nf_tables.
    pub tables: &'static [&'static str],
    /// The protocol of its routes, if no other program has it.
    pub protocol: Option<u8>,
    /// The processes that make all of it again: the name, and the first arguments where one program does other things too.
    pub programs: &'static [&'static str],
}

/// All that are known.
pub const ORIGINS: [Origin; 4] = [
    Origin {
        name: "flannel",
        files: &["10-flannel.conflist"],
        networks: &["cbr0"],
        data_dir: None,
        bridge: Some("cni0"),
        ends: None,
        devices: &[
            ("flannel.1", "vxlan"),
            ("flannel-v6.1", "vxlan"),
            ("flannel-wg", "wireguard"),
            ("flannel-wg-v6", "wireguard"),
        ],
        chains: &["FLANNEL-"],
        comments: &[],
        tables: &["flannel-ipv4", "flannel-ipv6"],
        protocol: None,
        // k3s has flannel within.
        programs: &["flanneld", "k3s", "k3s-server", "k3s-agent"],
    },
    Origin {
        name: "kindnet",
        files: &["10-kindnet.conflist"],
        networks: &["kindnet"],
        data_dir: Some("/run/cni-ipam-state"),
        bridge: None,
        ends: None,
        devices: &[],
        chains: &["KIND-MASQ-AGENT"],
        comments: &[],
        tables: &["kindnet-network-policies"],
        protocol: None,
        programs: &["kindnetd"],
    },
    Origin {
        name: "kube-router",
        files: &["10-kuberouter.conflist"],
        networks: &["mynet"],
        data_dir: None,
        bridge: Some("kube-bridge"),
        ends: None,
        devices: &[("kube-dummy-if", "dummy")],
        chains: &["KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-"],
        comments: &[],
        tables: &["kube-router-filter-ipv4", "kube-router-filter-ipv6"],
        protocol: None,
        // k3s and RKE2 have its policy controller within.
        programs: &["kube-router", "k3s", "k3s-server", "k3s-agent"],
    },
    Origin {
        name: "calico",
        files: &["10-calico.conflist", "10-canal.conflist"],
        networks: &["k8s-pod-network"],
        data_dir: None,
        bridge: None,
        ends: Some("cali"),
        devices: &[
            ("vxlan.calico", "vxlan"),
            ("vxlan-v6.calico", "vxlan"),
            ("wireguard.cali", "wireguard"),
            ("wg-v6.cali", "wireguard"),
        ],
        chains: &["cali-"],
        comments: &["cali:"],
        tables: &["calico"],
        protocol: Some(80),
        // Since 2026 one program is all of Calico, also `calico ctl` and Typha.
        programs: &[
            "calico-node",
            "calico component felix",
            "calico component confd",
            "calico component node",
            "calico component cni",
        ],
    },
];

/// The origin of this name.
pub fn named(name: &str) -> Option<&'static Origin> {
    ORIGINS.iter().find(|origin| origin.name == name)
}

/// The network that alone makes such a link. A bridge does not count: the plugin `bridge` makes one of this name, too.
pub fn of_device(link: &Link) -> Option<&'static Origin> {
    ORIGINS.iter().find(|origin| origin.has_device(link))
}

/// The network that alone makes routes with this protocol.
pub fn of_protocol(protocol: u8) -> Option<&'static Origin> {
    ORIGINS.iter().find(|origin| origin.protocol == Some(protocol))
}

/// Whether a bridge of this name may have been left by one of the networks.
pub fn may_leave_bridge(name: &str) -> bool {
    ORIGINS.iter().any(|origin| origin.bridge == Some(name))
}

impl Origin {
    /// The command that removes what it has left.
    pub fn cleanup(&self) -> String {
        format!("ferrule-node cleanup --left-overs {}", self.name)
    }

    /// Whether the link is one of its devices, or its bridge.
    pub fn owns(&self, link: &Link) -> bool {
        let is_bridge = self.bridge == Some(link.name.as_str()) && link.kind == "bridge";
        is_bridge || self.has_device(link)
    }

    fn has_device(&self, link: &Link) -> bool {
        self.devices.contains(&(link.name.as_str(), link.kind.as_str()))
    }

    /// Whether a chain of a table of iptables is its.
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Whether a rule of a chain of iptables must go before its chains can: a jump to one of them, or a rule with its comment.
    pub fn has_rule(&self, chain: &str, target: Option<&str>, comment: Option<&str>) -> bool {
        !self.has_chain(chain)
            && (target.is_some_and(|target| self.has_chain(target))
                || comment.is_some_and(|text| self.comments.iter().any(|prefix| text.starts_with(prefix))))
    }

    /// The links of pods that still use it: ports of its bridge, links with its names, and links that lead to an address that its
    /// store holds. `leads` are the routes to single addresses, each with its link.
    fn users(&self, links: &[Link], leads: &[(IpAddr, u32)], held: &BTreeSet<IpAddr>) -> Vec<String> {
        let bridge =
            links.iter().find(|link| Some(link.name.as_str()) == self.bridge && link.kind == "bridge");
        let of_bridge = |link: &Link| bridge.is_some_and(|bridge| link.master == Some(bridge.index));
        let is_end = |link: &Link| {
            self.ends.is_some_and(|prefix| link.name.starts_with(prefix) && link.kind == "veth")
        };
        let mut users = Vec::new();
        for link in links {
            let address =
                leads.iter().find(|(address, index)| *index == link.index && held.contains(address));
            match (address, of_bridge(link) || is_end(link)) {
                (Some((address, _)), _) => users.push(format!("{address} by {}", link.name)),
                (None, true) => users.push(link.name.clone()),
                (None, false) => {}
            }
        }
        users
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str, master: Option<u32>) -> Link {
        Link { index, name: name.to_owned(), kind: kind.to_owned(), master, ..Link::default() }
    }

    #[test]
    fn users_are_ports_named_links_and_ways_to_addresses() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let links = [
            link(2, "cni0", "bridge", None),
            link(3, "veth1", "veth", Some(2)),
            link(4, "cali12", "veth", None),
            link(5, "veth2", "veth", None),
            link(6, "calibre", "vlan", None),
        ];
        let leads = [(ip("10.244.1.7"), 5), (ip("10.244.1.8"), 4)];
        let held = [ip("10.244.1.7")].into();
        let of = |name: &str, held: &BTreeSet<IpAddr>| named(name).unwrap().users(&links, &leads, held);
        assert_eq!(of("flannel", &BTreeSet::new()), ["veth1"]);
        assert_eq!(of("kindnet", &held), ["10.244.1.7 by veth2"]);
        assert_eq!(of("kindnet", &BTreeSet::new()), [""; 0]);
        assert_eq!(of("calico", &BTreeSet::new()), ["cali12"]);
        assert_eq!(of("kube-router", &BTreeSet::new()), [""; 0]);
    }

    /// A bridge cni0 of flannel may be that of a network of ours; a link of another kind never is.
    #[test]
    fn names_alone_prove_nothing() {
        let flannel = named("flannel").unwrap();
        assert!(
            flannel.owns(&link(2, "cni0", "bridge", None))
                && flannel.owns(&link(2, "flannel.1", "vxlan", None))
        );
        assert!(
            !flannel.owns(&link(2, "cni0", "dummy", None)) && !flannel.owns(&link(2, "flannel.1", "", None))
        );
        let calico = named("calico").unwrap();
        assert!(calico.has_rule("FORWARD", Some("cali-FORWARD"), None));
        assert!(calico.has_rule("FORWARD", Some("ACCEPT"), Some("cali:x")));
        assert!(
            !calico.has_rule("cali-FORWARD", Some("cali-x"), None)
                && !calico.has_rule("FORWARD", Some("KUBE-FORWARD"), None)
        );
        assert!(named("cilium").is_none());
        assert_eq!(of_device(&link(2, "vxlan.calico", "vxlan", None)), Some(calico));
        assert_eq!(of_device(&link(2, "cni0", "bridge", None)), None);
        assert_eq!((of_protocol(80), of_protocol(4)), (Some(calico), None));
    }

    /// No origin takes a chain, table or link of ours, of Kubernetes or of another origin.
    #[test]
    fn nothing_of_others_is_in_the_table() {
        let others = [
            "FERRULE-NODE",
            "CNI-FORWARD",
            "CNI-HOSTPORT-DNAT",
            "KUBE-SERVICES",
            "KUBE-FORWARD",
            "KUBE-POSTROUTING",
            "DOCKER",
        ];
        for origin in &ORIGINS {
            assert!(!others.iter().any(|chain| origin.has_chain(chain)), "{}", origin.name);
            assert!(
                !origin
                    .tables
                    .iter()
                    .any(|table| table.starts_with("ferrule") || *table == "filter" || *table == "nat")
            );
            for other in ORIGINS.iter().filter(|other| other.name != origin.name) {
                assert!(
                    !other.chains.iter().any(|prefix| origin.has_chain(prefix)),
                    "{} {}",
                    origin.name,
                    other.name
                );
            }
        }
    }
}
