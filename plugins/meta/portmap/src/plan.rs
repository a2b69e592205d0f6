//! Computes the host ports of a container from its mappings and addresses, without kernel access.

use std::net::{IpAddr, SocketAddr};

use cni_common::plugin::Attachment;
use cni_common::spec::{AddResult, IpConfig};
use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

use crate::conditions::Matches;
use crate::config::{Backend, Conf};
use crate::mapping::Proto;
use crate::mark::Masquerade;
use ferrule_kit::hash::sha512_hex;
use ferrule_kit::owner;

/// One family's four maps: the shared ones, or those of a network with conditions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapSet {
    /// The family.
    pub family: IpFamily,
    /// A hash of the network and its conditions, 8 hexadecimal digits; `None` without conditions.
    pub id: Option<String>,
}

/// The conditions of one network in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The map set of the network.
    pub map_set: MapSet,
    /// Alternatives: a packet must match all expressions of at least one.
    pub alternatives: Matches,
    /// The network's name and the conditions as configured: the comment of the chain.
    pub text: String,
}

impl Conditions {
    /// The conditions in one family, in the syntax of `nft`. `None` without any.
    fn of(conf: &Conf, network: &str, family: IpFamily) -> Option<Self> {
        let text = conf.conditions[family as usize].join(" ");
        let id = sha512_hex(&format!("{network} {text}"), 8);
        (conf.backend == Backend::Nftables && !text.trim().is_empty()).then(|| Conditions {
            map_set: MapSet { family, id: Some(id) },
            alternatives: conf.matches[family as usize].clone(),
            // A comment cannot contain quotes.
            text: format!("{network}: {}", text.replace('"', "")),
        })
    }
}

/// The packets that a host port matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The map set, which stands for the family and the conditions.
    pub map_set: MapSet,
    /// The destination address; `None` for any address of the node.
    pub host_ip: Option<IpAddr>,
    /// The transport protocol.
    pub proto: Proto,
    /// The destination port.
    pub port: u16,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host_ip {
            Some(ip) => write!(f, "{}/{}", SocketAddr::new(ip, self.port), self.proto),
            None => {
                write!(f, "{}/{} ({})", self.port, self.proto, self.map_set.family)
            }
        }
    }
}

/// One host port that leads to one container port, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The packets that it matches.
    pub key: Key,
    /// The container's address and port.
    pub target: SocketAddr,
    /// Which connections are masqueraded; `None` if none are.
    pub masquerade: Option<Masquerade>,
}

impl HostPort {
    /// Whether a client that goes on sending keeps the translation of its first packet: with all protocols but TCP.
    pub fn has_lasting_flows(&self) -> bool {
        self.key.proto != Proto::Tcp
    }
}

fn network_of(address: IpNetwork) -> IpNetwork {
    // This cannot fail: the prefix length is valid in `address`.
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

/// The first IPv4 and the first IPv6 address of the container's interface, each with its prefix length, see
/// [`AddResult::ips_of`]. Only those that `is_assigned` accepts as given by IPAM, if there are any: each router of the network can give others.
pub fn addresses(
    result: &AddResult,
    ifname: &str,
    is_assigned: &mut dyn FnMut(&IpConfig) -> bool,
) -> Vec<IpNetwork> {
    let all: Vec<&IpConfig> = result.ips_of(ifname).collect();
    let assigned: Vec<&IpConfig> = all.iter().copied().filter(|ip| is_assigned(ip)).collect();
    let ips = if assigned.is_empty() { all } else { assigned };
    let first = |family| ips.iter().map(|ip| ip.address).find(|address| IpFamily::of(address.ip()) == family);
    IpFamily::ALL.into_iter().filter_map(first).collect()
}

/// What ADD creates for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<'a> {
    /// The attachment.
    pub owner: Attachment<'a>,
    /// Its owner label.
    pub label: String,
    /// The container's addresses that the host ports lead to.
    pub addresses: Vec<IpNetwork>,
    /// The host ports, with distinct keys.
    pub host_ports: Vec<HostPort>,
    /// The conditions of the network in the families of the addresses.
    pub conditions: Vec<Conditions>,
    /// Texts about ignored mappings, for standard error.
    pub warnings: Vec<String>,
}

impl<'a> Plan<'a> {
    /// Plans the mappings for the container's addresses. Of two mappings for the same packets the first wins,
    /// as in the reference.
    pub fn new(conf: &Conf, owner: Attachment<'a>, addresses: Vec<IpNetwork>) -> Self {
        let (label, host_ports, warnings) = (owner::label(&owner), Vec::new(), Vec::new());
        let mut plan =
            Plan { owner, label, addresses: Vec::new(), host_ports, conditions: Vec::new(), warnings };
        for address in &addresses {
            let family = IpFamily::of(address.ip());
            let conditions = Conditions::of(conf, owner.network, family);
            let map_set = conditions
                .as_ref()
                .map_or(MapSet { family, id: None }, |conditions| conditions.map_set.clone());
            let from = (!conf.masq_all).then(|| network_of(*address));
            let masquerade = conf.snat.then_some(Masquerade { bit: conf.mark_bit, from });
            plan.conditions.extend(conditions);
            for mapping in &conf.mappings {
                let Some(host_ip) = mapping.host_ip_in(family) else { continue };
                let key =
                    Key { map_set: map_set.clone(), host_ip, proto: mapping.proto, port: mapping.host_port };
                let target = SocketAddr::new(address.ip(), mapping.container_port);
                plan.add(HostPort { key, target, masquerade: masquerade.clone() });
            }
        }
        Plan { addresses, ..plan }
    }

    fn add(&mut self, host_port: HostPort) {
        let key = &host_port.key;
        // The port alone tells nearly all keys apart: a pod may have a thousand.
        let is_same = |first: &&HostPort| first.key.port == key.port && first.key == *key;
        if matches!(key.host_ip, Some(IpAddr::V6(ip)) if ip.is_loopback()) {
            let why = "packets to the IPv6 loopback address never leave the host";
            self.warnings.push(format!("host port {key} is ignored: {why}"));
        } else if let Some(first) = self.host_ports.iter().find(is_same) {
            if first.target != host_port.target {
                let (kept, other) = (first.target, host_port.target);
                self.warnings.push(format!(
                    "host port {key} is mapped to {kept} and to {other}: the second mapping is ignored"
                ));
            }
        } else {
            self.host_ports.push(host_port);
        }
    }

    /// The container's IPv4 address, if connections to 127.0.0.0/8 of the host can lead to it.
    pub fn from_loopback(&self) -> Option<IpAddr> {
        let can = |host_port: &&HostPort| {
            let loopback = host_port.key.host_ip.is_none_or(|ip| ip.is_loopback());
            host_port.target.is_ipv4() && loopback && host_port.masquerade.is_some()
        };
        self.host_ports.iter().find(can).map(|host_port| host_port.target.ip())
    }
}

/// The distinct kinds of masquerading of these host ports.
pub fn masquerades(host_ports: &[HostPort]) -> Vec<Masquerade> {
    let mut all: Vec<Masquerade> = Vec::new();
    for masquerade in host_ports.iter().filter_map(|host_port| host_port.masquerade.as_ref()) {
        if !all.contains(masquerade) {
            all.push(masquerade.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use cni_common::spec::{Interface, IpConfig, NetConf};

    use super::*;

    fn plan(keys: &str, mappings: &str) -> Plan<'static> {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"n","type":"portmap"{keys},"runtimeConfig":{{"portMappings":[{mappings}]}}}}"#
        );
        let conf = Conf::read(&NetConf::parse(text.into_bytes()).unwrap()).unwrap();
        let owner = Attachment { network: "n", container_id: "one", ifname: "eth0" };
        Plan::new(&conf, owner, vec!["10.0.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()])
    }

    fn mapping(host_ip: &str, host: u16, container: u16) -> String {
        format!(r#"{{"hostIP":"{host_ip}","hostPort":{host},"containerPort":{container},"protocol":"tcp"}}"#)
    }

    fn shown(plan: &Plan<'_>) -> Vec<String> {
        plan.host_ports.iter().map(|host_port| format!("{} to {}", host_port.key, host_port.target)).collect()
    }

    #[test]
    fn mapping_applies_to_the_families_of_its_host_ip() {
        let all = ["", "0.0.0.0", "::", "192.0.2.1", "2001:db8::1"].map(|ip| (ip, mapping(ip, 8080, 80)));
        let of = |wanted: &str| shown(&plan("", &all.iter().find(|(ip, _)| *ip == wanted).unwrap().1));
        assert_eq!(of(""), ["8080/tcp (IPv4) to 10.0.0.2:80", "8080/tcp (IPv6) to [fd00::2]:80"]);
        assert_eq!(of("0.0.0.0"), ["8080/tcp (IPv4) to 10.0.0.2:80"]);
        assert_eq!(of("::"), ["8080/tcp (IPv6) to [fd00::2]:80"]);
        assert_eq!(of("192.0.2.1"), ["192.0.2.1:8080/tcp to 10.0.0.2:80"]);
        assert_eq!(of("2001:db8::1"), ["[2001:db8::1]:8080/tcp to [fd00::2]:80"]);
    }

    #[test]
    fn duplicate_is_merged_and_conflict_is_ignored() {
        let twice = plan("", &[mapping("", 8080, 80), mapping("0.0.0.0", 8080, 80)].join(","));
        assert_eq!((twice.host_ports.len(), twice.warnings.len()), (2, 0));
        let other = plan("", &[mapping("0.0.0.0", 8080, 80), mapping("", 8080, 81)].join(","));
        assert_eq!(shown(&other), ["8080/tcp (IPv4) to 10.0.0.2:80", "8080/tcp (IPv6) to [fd00::2]:81"]);
        assert!(other.warnings[0].contains("8080/tcp (IPv4) is mapped to 10.0.0.2:80 and to 10.0.0.2:81"));
    }

    #[test]
    fn from_loopback_needs_a_matching_host_ip_and_snat() {
        let pod: Option<IpAddr> = "10.0.0.2".parse().ok();
        assert_eq!(plan("", &mapping("", 8080, 80)).from_loopback(), pod);
        assert_eq!(plan("", &mapping("127.0.0.9", 8080, 80)).from_loopback(), pod);
        assert_eq!(plan("", &mapping("192.0.2.1", 8080, 80)).from_loopback(), None);
        assert_eq!(plan("", &mapping("::", 8080, 80)).from_loopback(), None);
        assert_eq!(plan(r#","snat":false"#, &mapping("", 8080, 80)).from_loopback(), None);
        let loopback = plan("", &mapping("::1", 8080, 80));
        assert!(
            loopback.host_ports.is_empty()
                && loopback.warnings[0].starts_with("host port [::1]:8080/tcp is ignored")
        );
    }

    #[test]
    fn conditions_have_their_own_map_set_in_their_family() {
        let with = plan(r#","conditionsV4":["ip saddr 10.0.0.1"]"#, &mapping("", 1, 1));
        let [v4, v6] = [0, 1].map(|index| &with.host_ports[index].key.map_set);
        assert!(v4.family == IpFamily::V4 && v4.id.is_some());
        assert_eq!(*v6, MapSet { family: IpFamily::V6, id: None });
        let conditions: Vec<_> =
            with.conditions.iter().map(|one| (&one.map_set, one.text.as_str())).collect();
        assert_eq!(conditions, [(v4, "n: ip saddr 10.0.0.1")]);
        let masquerades = |keys| super::masquerades(&plan(keys, &mapping("", 1, 1)).host_ports).len();
        let counts = ["", r#","snat":false"#, r#","masqAll":true"#].map(masquerades);
        assert_eq!(counts, [2, 0, 1]);
    }

    fn ip(address: &str, interface: Option<i64>) -> IpConfig {
        IpConfig { address: address.parse().unwrap(), gateway: None, interface }
    }

    #[test]
    fn first_address_of_each_family_of_the_interface() {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            ..Interface::default()
        };
        let mut result = AddResult {
            interfaces: vec![
                interface("cni0", ""),
                interface("eth0", "/run/netns/x"),
                interface("eth1", "/x"),
            ],
            ips: vec![
                ip("10.0.0.1/24", Some(0)),
                ip("10.1.0.2/24", Some(2)),
                ip("10.2.0.2/24", Some(1)),
                ip("fd00::2/64", Some(9)),
                ip("10.3.0.2/24", None),
            ],
            ..AddResult::default()
        };
        let picked = |result: &AddResult, ifname| -> Vec<String> {
            addresses(result, ifname, &mut |_| true).iter().map(ToString::to_string).collect()
        };
        assert_eq!(picked(&result, "eth0"), ["10.2.0.2/24", "fd00::2/64"]);
        assert_eq!(picked(&result, "eth1"), ["10.1.0.2/24", "fd00::2/64"]);
        assert_eq!(picked(&result, "eth2"), ["10.3.0.2/24", "fd00::2/64"]);
        result.ips[3].interface = Some(-1);
        assert_eq!(picked(&result, "eth0")[1], "fd00::2/64");
        let without = |other: &str| {
            let ips = addresses(&result, "eth0", &mut |ip| ip.address != other.parse().unwrap());
            ips.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(without("fd00::2/64"), ["10.2.0.2/24"], "one of a router");
        assert_eq!(addresses(&result, "eth0", &mut |_| false).len(), 2, "all of routers");
        result.ips.clear();
        assert!(picked(&result, "eth0").is_empty());
    }
}
