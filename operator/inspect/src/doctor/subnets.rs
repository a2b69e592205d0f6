//! Subnets of host-local that overlap with each other, or with another network of the host.

use cni_common::spec::{CniError, Context as _, NetConf, SpecVersion};
use ferrule_host_local::config::Config;
use ferrule_host_local::set::RangeSet;
use ferrule_kernel::netlink::{Link, Socket};
use ipnetwork::IpNetwork;

use super::firewalls::FORWARDED;
use super::networks::{Network, type_of};
use super::{Finding, Subject};

/// The networks of the host's own links, each with its link; neither of loopback nor of ends of pairs.
///
/// # Errors
/// The kernel does not list links or addresses.
pub fn of_host(route: &mut Socket) -> Result<Vec<(Link, IpNetwork)>, CniError> {
    let links = route.links(None).context(|| "list the links")?;
    let addresses = route.all_addresses().context(|| "list the addresses")?;
    let named = addresses.into_iter().filter_map(|(index, address)| {
        let link = links.iter().find(|link| link.index == index)?;
        (link.kind != "veth" && link.name != "lo").then(|| (link.clone(), address.network))
    });
    Ok(named.filter(|(_, network)| !is_link_local(network)).collect())
}

fn is_link_local(network: &IpNetwork) -> bool {
    matches!(network, IpNetwork::V6(network) if network.ip().is_unicast_link_local())
}

/// The ranges of one network.
struct Ranges<'n> {
    network: &'n Network,
    bridge: &'n str,
    sets: Vec<RangeSet>,
}

/// Compares all networks whose packets the host forwards.
pub fn judge(networks: &[Network], of_host: &[(Link, IpNetwork)]) -> Subject {
    let all: Vec<Ranges<'_>> = networks.iter().flat_map(ranges).collect();
    let mut findings = Vec::new();
    for (at, one) in all.iter().enumerate() {
        let subject = one.network.subject();
        let overlaps =
            |other: &&Ranges<'_>| one.sets.iter().any(|a| other.sets.iter().any(|b| a.overlaps(b)));
        if let Some(other) = all[..at].iter().find(overlaps) {
            let other = other.network.subject();
            let problem = format!("its addresses are also those of {other}: two pods can get the same one");
            findings.push(Finding::error(&subject, problem, "give one of them another subnet"));
        }
        let pairs = one.subnets().flat_map(|subnet| of_host.iter().map(move |host| (subnet, host)));
        let mut clashes = pairs.filter(|(subnet, (link, host))| {
            !link.has_name(one.bridge) && (subnet.contains(host.ip()) || host.contains(subnet.network()))
        });
        if let Some((subnet, (link, host))) = clashes.next() {
            let problem = format!(
                "its subnet {subnet} overlaps with {host} on {}: pods cannot reach that network",
                link.name
            );
            findings.push(Finding::error(&subject, problem, "give the network another subnet"));
        }
    }
    let mut of_pods: Vec<String> =
        all.iter().flat_map(Ranges::subnets).map(|subnet| subnet.to_string()).collect();
    of_pods.dedup();
    let seen = match of_pods.is_empty() {
        true => "no bridge or ptp has ranges of host-local".to_owned(),
        false => format!("{}, without overlaps", of_pods.join(", ")),
    };
    Subject::new("subnets", seen, findings)
}

impl Ranges<'_> {
    fn subnets(&self) -> impl Iterator<Item = IpNetwork> {
        self.sets.iter().flat_map(RangeSet::subnets)
    }
}

/// The ranges of the plugins with host-local. An invalid configuration has none here; STATUS finds its error.
fn ranges(network: &Network) -> impl Iterator<Item = Ranges<'_>> {
    network.plugins.iter().filter_map(|plugin| {
        if type_of(&plugin["ipam"])? != "host-local" || !FORWARDED.contains(&type_of(plugin)?) {
            return None;
        }
        let mut config = plugin.clone();
        config["name"] = network.name.clone().into();
        let config = NetConf::parse(config.to_string().into_bytes()).ok()?;
        let sets = Config::load(&config, SpecVersion::NEWEST, "").ok()?.sets;
        Some(Ranges { network, bridge: plugin["bridge"].as_str().unwrap_or("cni0"), sets })
    })
}

#[cfg(test)]
mod tests {
    use super::super::networks::tests::network;
    use super::*;

    fn bridge(name: &str, ipam: &str) -> Network {
        network(
            name,
            &format!(r#"[{{"type":"bridge","bridge":"{name}","ipam":{{"type":"host-local",{ipam}}}}}]"#),
        )
    }

    #[test]
    fn overlaps() {
        let one = bridge("one", r#""subnet":"10.1.0.0/24","rangeEnd":"10.1.0.99""#);
        let upper = bridge("upper", r#""subnet":"10.1.0.0/24","rangeStart":"10.1.0.100""#);
        let wide = bridge("wide", r#""ranges":[[{"subnet":"10.1.0.0/16"}]]"#);
        let link = |name: &str| Link {
            name: name.to_owned(),
            alt_names: vec![format!("alt-{name}")],
            ..Link::default()
        };
        let host = |name: &str, network: &str| vec![(link(name), network.parse::<IpNetwork>().unwrap())];
        let count = |networks: &[Network], host: &[(Link, IpNetwork)]| judge(networks, host).findings.len();
        assert_eq!(count(&[one.clone(), upper.clone()], &[]), 0);
        assert_eq!(count(&[one.clone(), wide.clone()], &[]), 1);
        assert_eq!(count(std::slice::from_ref(&one), &host("one", "10.1.0.1/24")), 0);
        let by_alt_name = bridge("alt-one", r#""subnet":"10.1.0.0/24""#);
        assert_eq!(count(&[by_alt_name], &host("one", "10.1.0.1/24")), 0);
        assert_eq!(count(std::slice::from_ref(&one), &host("eth0", "10.1.5.1/16")), 1);
        assert_eq!(count(std::slice::from_ref(&wide), &host("eth0", "10.1.5.1/24")), 1);
        assert_eq!(count(&[one], &host("eth0", "10.2.0.1/16")), 0);
    }
}
