//! Computes the host ports of a container from its mappings and addresses, without kernel access.

use std::net::{IpAddr, SocketAddr};

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::sorted;
use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::mapping::Proto;
use crate::mark::Masquerade;
use ferrule_kit::hash::sha512_hex;

/// One family's four maps: the shared ones, or those of a network with conditions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapSet {
    /// The family.
    pub family: IpFamily,
    /// A hash of the network and its conditions, 8 hexadecimal digits; `None` without conditions.
    pub id: Option<String>,
}

impl MapSet {
    /// The map set for the host ports of a network in one family.
    pub fn of(conf: &Conf, network: &str, family: IpFamily) -> Self {
        let conditions = conf.conditions[family as usize].join(" ");
        let id = (!conditions.trim().is_empty()).then(|| sha512_hex(&format!("{network} {conditions}"), 8));
        MapSet { family, id }
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
    /// Which connections are masqueraded.
    pub masquerade: Masquerade,
}

fn network_of(address: IpNetwork) -> IpNetwork {
    // This cannot fail: the prefix length is valid in `address`.
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

/// All host ports that ADD creates for one attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The host ports, with distinct keys.
    pub host_ports: Vec<HostPort>,
    /// Texts about ignored mappings, for standard error.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Plans the mappings for the container's addresses. Of two mappings for the same packets the first wins,
    /// as in the reference.
    pub fn new(conf: &Conf, network: &str, addresses: &[IpNetwork]) -> Self {
        let mut plan = Plan::default();
        for address in addresses {
            let family = IpFamily::of(address.ip());
            let map_set = MapSet::of(conf, network, family);
            let masquerade = match (conf.snat, conf.masq_all) {
                (false, _) => Masquerade::Nothing,
                (true, true) => Masquerade::All(conf.mark.clone()),
                (true, false) => Masquerade::From(network_of(*address), conf.mark.clone()),
            };
            for mapping in &conf.mappings {
                let Some(host_ip) = mapping.host_ip.in_family(family) else { continue };
                let key =
                    Key { map_set: map_set.clone(), host_ip, proto: mapping.proto, port: mapping.host_port };
                let target = SocketAddr::new(address.ip(), mapping.container_port);
                plan.add(HostPort { key, target, masquerade: masquerade.clone() });
            }
        }
        plan
    }

    fn add(&mut self, host_port: HostPort) {
        let key = &host_port.key;
        if matches!(key.host_ip, Some(IpAddr::V6(ip)) if ip.is_loopback()) {
            let why = "packets to the IPv6 loopback address never leave the host";
            self.warnings.push(format!("host port {key} is ignored: {why}"));
        } else if let Some(first) = self.host_ports.iter().find(|first| first.key == *key) {
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
            host_port.target.is_ipv4() && loopback && host_port.masquerade != Masquerade::Nothing
        };
        self.host_ports.iter().find(can).map(|host_port| host_port.target.ip())
    }

    /// The map sets that the host ports use.
    pub fn map_sets(&self) -> Vec<MapSet> {
        sorted(self.host_ports.iter().map(|host_port| host_port.key.map_set.clone()))
    }

    /// The distinct kinds of masquerading of the host ports.
    pub fn masquerades(&self) -> Vec<Masquerade> {
        masquerades(&self.host_ports)
    }
}

/// The distinct kinds of masquerading of these host ports.
pub fn masquerades(host_ports: &[HostPort]) -> Vec<Masquerade> {
    let mut all: Vec<Masquerade> = Vec::new();
    for host_port in host_ports {
        if host_port.masquerade != Masquerade::Nothing && !all.contains(&host_port.masquerade) {
            all.push(host_port.masquerade.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use cni_common::spec::NetConf;

    use super::*;

    fn plan(keys: &str, mappings: &str) -> Plan {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"n","type":"portmap"{keys},"runtimeConfig":{{"portMappings":[{mappings}]}}}}"#
        );
        let conf = Conf::read(&NetConf::parse(text.into_bytes()).unwrap()).unwrap();
        Plan::new(&conf, "n", &["10.0.0.2/24".parse().unwrap(), "fd00::2/64".parse().unwrap()])
    }

    fn mapping(host_ip: &str, host: u16, container: u16) -> String {
        format!(r#"{{"hostIP":"{host_ip}","hostPort":{host},"containerPort":{container},"protocol":"tcp"}}"#)
    }

    fn shown(plan: &Plan) -> Vec<String> {
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
        let map_sets = plan(r#","conditionsV4":["ip saddr 10.0.0.1"]"#, &mapping("", 1, 1)).map_sets();
        assert!(map_sets[0].family == IpFamily::V4 && map_sets[0].id.is_some());
        assert_eq!(map_sets[1], MapSet { family: IpFamily::V6, id: None });
        let masquerades = plan("", &mapping("", 1, 1)).masquerades();
        assert_eq!(masquerades.len(), 2);
        assert!(plan(r#","snat":false"#, &mapping("", 1, 1)).masquerades().is_empty());
        assert_eq!(plan(r#","masqAll":true"#, &mapping("", 1, 1)).masquerades().len(), 1);
    }
}
