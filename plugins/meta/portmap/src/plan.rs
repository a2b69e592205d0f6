//! What the mappings mean for the addresses of a container: a value, worked out without the kernel.

use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::mapping::Proto;
use crate::mark::Masquerade;
use ferrule_kit::hash::sha512_hex;

/// A set of host ports that are looked at under the same conditions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Realm {
    /// IPv6 or IPv4.
    pub v6: bool,
    /// What its conditions are called; none for host ports without conditions.
    pub id: Option<String>,
}

impl Realm {
    /// The realm of a network's host ports in a family.
    pub fn of(conf: &Conf, network: &str, v6: bool) -> Self {
        let conditions = conf.conditions[usize::from(v6)].join(" ");
        let id = (!conditions.trim().is_empty()).then(|| sha512_hex(&format!("{network} {conditions}"), 8));
        Realm { v6, id }
    }
}

/// Which packets a mapping is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Under which conditions, and of which family.
    pub realm: Realm,
    /// To which address of the host; none for any.
    pub host_ip: Option<IpAddr>,
    /// By which protocol.
    pub proto: Proto,
    /// To which port.
    pub port: u16,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host_ip {
            Some(ip) => write!(f, "{}/{}", SocketAddr::new(ip, self.port), self.proto),
            None => {
                write!(f, "{}/{} ({})", self.port, self.proto, if self.realm.v6 { "IPv6" } else { "IPv4" })
            }
        }
    }
}

/// Where a host port leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which packets.
    pub key: Key,
    /// Where they go.
    pub target: SocketAddr,
    /// Which of their connections are masqueraded.
    pub masquerade: Masquerade,
}

fn network_of(address: IpNetwork) -> IpNetwork {
    // The prefix length is the address's own.
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

/// Everything that one container's host ports need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The entries, no two of one key.
    pub entries: Vec<Entry>,
    /// What is odd about the mappings, for standard error.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Works it out. Of two mappings for the same packets the first one counts, as with the reference.
    pub fn new(conf: &Conf, network: &str, addresses: &[IpNetwork]) -> Self {
        let mut plan = Plan::default();
        for address in addresses {
            let v6 = address.is_ipv6();
            let realm = Realm::of(conf, network, v6);
            let masquerade = match (conf.snat, conf.masq_all) {
                (false, _) => Masquerade::Nothing,
                (true, true) => Masquerade::All(conf.mark.clone()),
                (true, false) => Masquerade::From(network_of(*address), conf.mark.clone()),
            };
            for mapping in &conf.mappings {
                let Some(host_ip) = mapping.host_ip.in_family(v6) else { continue };
                let key =
                    Key { realm: realm.clone(), host_ip, proto: mapping.proto, port: mapping.host_port };
                let target = SocketAddr::new(address.ip(), mapping.container_port);
                plan.add(Entry { key, target, masquerade: masquerade.clone() });
            }
        }
        plan
    }

    fn add(&mut self, entry: Entry) {
        let key = &entry.key;
        if matches!(key.host_ip, Some(IpAddr::V6(ip)) if ip.is_loopback()) {
            let why = "what is sent to the IPv6 loopback address never leaves the host";
            self.warnings.push(format!("host port {key} is left out: {why}"));
        } else if let Some(first) = self.entries.iter().find(|first| first.key == *key) {
            if first.target != entry.target {
                let (kept, other) = (first.target, entry.target);
                self.warnings.push(format!(
                    "host port {key} leads to {kept}, and to {other} as well: the first counts"
                ));
            }
        } else {
            self.entries.push(entry);
        }
    }

    /// The pod's IPv4 address, if a connection to the host's loopback address can lead to it.
    pub fn from_loopback(&self) -> Option<IpAddr> {
        let can = |entry: &&Entry| {
            let loopback = entry.key.host_ip.is_none_or(|ip| ip.is_loopback());
            entry.target.is_ipv4() && loopback && entry.masquerade != Masquerade::Nothing
        };
        self.entries.iter().find(can).map(|entry| entry.target.ip())
    }

    /// The realms that the entries are in.
    pub fn realms(&self) -> Vec<Realm> {
        let mut realms: Vec<Realm> = self.entries.iter().map(|entry| entry.key.realm.clone()).collect();
        realms.sort();
        realms.dedup();
        realms
    }

    /// The masqueradings that the entries ask for.
    pub fn masquerades(&self) -> Vec<Masquerade> {
        let mut all: Vec<Masquerade> = Vec::new();
        for entry in &self.entries {
            if entry.masquerade != Masquerade::Nothing && !all.contains(&entry.masquerade) {
                all.push(entry.masquerade.clone());
            }
        }
        all
    }
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
        plan.entries.iter().map(|entry| format!("{} to {}", entry.key, entry.target)).collect()
    }

    #[test]
    fn a_mapping_counts_in_the_families_that_it_is_for() {
        let all = ["", "0.0.0.0", "::", "192.0.2.1", "2001:db8::1"].map(|ip| (ip, mapping(ip, 8080, 80)));
        let of = |wanted: &str| shown(&plan("", &all.iter().find(|(ip, _)| *ip == wanted).unwrap().1));
        assert_eq!(of(""), ["8080/tcp (IPv4) to 10.0.0.2:80", "8080/tcp (IPv6) to [fd00::2]:80"]);
        assert_eq!(of("0.0.0.0"), ["8080/tcp (IPv4) to 10.0.0.2:80"]);
        assert_eq!(of("::"), ["8080/tcp (IPv6) to [fd00::2]:80"]);
        assert_eq!(of("192.0.2.1"), ["192.0.2.1:8080/tcp to 10.0.0.2:80"]);
        assert_eq!(of("2001:db8::1"), ["[2001:db8::1]:8080/tcp to [fd00::2]:80"]);
    }

    #[test]
    fn twice_the_same_is_once_and_of_two_different_the_first_counts() {
        let twice = plan("", &[mapping("", 8080, 80), mapping("0.0.0.0", 8080, 80)].join(","));
        assert_eq!((twice.entries.len(), twice.warnings.len()), (2, 0));
        let other = plan("", &[mapping("0.0.0.0", 8080, 80), mapping("", 8080, 81)].join(","));
        assert_eq!(shown(&other), ["8080/tcp (IPv4) to 10.0.0.2:80", "8080/tcp (IPv6) to [fd00::2]:81"]);
        assert!(other.warnings[0].contains("8080/tcp (IPv4) leads to 10.0.0.2:80, and to 10.0.0.2:81"));
    }

    #[test]
    fn only_what_loopback_can_reach_needs_a_way_from_there() {
        let pod: Option<IpAddr> = "10.0.0.2".parse().ok();
        assert_eq!(plan("", &mapping("", 8080, 80)).from_loopback(), pod);
        assert_eq!(plan("", &mapping("127.0.0.9", 8080, 80)).from_loopback(), pod);
        assert_eq!(plan("", &mapping("192.0.2.1", 8080, 80)).from_loopback(), None);
        assert_eq!(plan("", &mapping("::", 8080, 80)).from_loopback(), None);
        assert_eq!(plan(r#","snat":false"#, &mapping("", 8080, 80)).from_loopback(), None);
        let loopback = plan("", &mapping("::1", 8080, 80));
        assert!(
            loopback.entries.is_empty()
                && loopback.warnings[0].starts_with("host port [::1]:8080/tcp is left out")
        );
    }

    #[test]
    fn conditions_make_a_realm_of_their_own_in_their_family() {
        let realms = plan(r#","conditionsV4":["ip saddr 10.0.0.1"]"#, &mapping("", 1, 1)).realms();
        assert!(!realms[0].v6 && realms[0].id.is_some());
        assert_eq!(realms[1], Realm { v6: true, id: None });
        let masquerades = plan("", &mapping("", 1, 1)).masquerades();
        assert_eq!(masquerades.len(), 2);
        assert!(plan(r#","snat":false"#, &mapping("", 1, 1)).masquerades().is_empty());
        assert_eq!(plan(r#","masqAll":true"#, &mapping("", 1, 1)).masquerades().len(), 1);
    }
}
