//! Settings of the kernel that no plugin changes.

use std::path::Path;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::sysctl;
use ferrule_kubelet::KUBELET;
use serde_json::Value;

use super::firewalls::FORWARDED;
use super::networks::Network;
use super::{Finding, Subject};

/// `net.bridge.bridge-nf-call-iptables`, which exists as soon as br_netfilter is loaded.
const CALL_IPTABLES: &str = "net/bridge/bridge-nf-call-iptables";
/// What sets it for ever.
const SET_CALL_IPTABLES: &str = "modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1; name both in \
    /etc/modules-load.d and /etc/sysctl.d";

/// What the node has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether a kubelet has run here.
    pub is_kubernetes: bool,
    /// Whether packets between ports of a bridge pass iptables.
    pub bridge_calls_iptables: bool,
    /// `net.ipv6.conf.all.disable_ipv6`
    pub ipv6_is_disabled: bool,
    /// The tracked connections, and how many there may be.
    pub connections: Option<(u64, u64)>,
}

impl Facts {
    /// Reads them. A sysctl is missing if its module is not loaded.
    ///
    /// # Errors
    /// A sysctl cannot be read, or not even one that each kernel has.
    pub fn read() -> Result<Facts, CniError> {
        let must = |name| sysctl::read(name).context(|| format!("read /proc/sys/{name}"));
        let read = |name| match sysctl::exists(name) {
            true => must(name),
            false => Ok(String::new()),
        };
        must("net/ipv4/ip_forward")?;
        let count = read("net/netfilter/nf_conntrack_count")?.parse().ok();
        let limit = read("net/netfilter/nf_conntrack_max")?.parse().ok();
        Ok(Facts {
            is_kubernetes: Path::new(KUBELET).is_dir(),
            bridge_calls_iptables: read(CALL_IPTABLES)? == "1",
            ipv6_is_disabled: read("net/ipv6/conf/all/disable_ipv6")? == "1",
            connections: count.zip(limit),
        })
    }
}

/// Compares the networks with the facts.
pub fn judge(networks: &[Network], facts: &Facts) -> Subject {
    let mut findings = Vec::new();
    let bridged = networks.iter().find(|network| network.has(&["bridge"])).map(Network::subject);
    if let Some(network) = bridged.filter(|_| facts.is_kubernetes && !facts.bridge_calls_iptables) {
        let problem = format!(
            "is not 1: a pod of {network} cannot reach a Service that leads to a pod on the same bridge"
        );
        findings.push(Finding::warning("net.bridge.bridge-nf-call-iptables", problem, SET_CALL_IPTABLES));
    }
    if let Some(network) = networks.iter().find(|network| has_ipv6(network) && facts.ipv6_is_disabled) {
        let problem = format!("is 1, and {} has IPv6 addresses", network.subject());
        let remedy = "sysctl -w net.ipv6.conf.all.disable_ipv6=0, also in /etc/sysctl.d";
        findings.push(Finding::error("net.ipv6.conf.all.disable_ipv6", problem, remedy));
    }
    if let Some((count, limit)) = facts.connections.filter(|(count, limit)| count * 10 >= limit * 9) {
        let problem =
            format!("{count} of {limit} connections are in use; the kernel drops packets of further ones");
        let remedy = format!("sysctl -w net.netfilter.nf_conntrack_max={}, also in /etc/sysctl.d", limit * 2);
        findings.push(Finding::warning("net.netfilter.nf_conntrack_max", problem, remedy));
    }
    let mut seen = vec![format!("disable_ipv6 is {}", u8::from(facts.ipv6_is_disabled))];
    if facts.is_kubernetes {
        seen.push(format!("bridge-nf-call-iptables is {}", u8::from(facts.bridge_calls_iptables)));
    }
    seen.extend(facts.connections.map(|_| "less than 90 % of all connections are in use".to_owned()));
    Subject::new("sysctls", seen.join(", "), findings)
}

/// Whether a network that needs addresses on the host has an IPv6 subnet.
fn has_ipv6(network: &Network) -> bool {
    network.has(&FORWARDED) && network.plugins.iter().any(|plugin| names_ipv6(&plugin["ipam"]))
}

/// Whether a value has an IPv6 subnet or address.
fn names_ipv6(value: &Value) -> bool {
    match value {
        Value::String(text) => text.parse::<ipnetwork::Ipv6Network>().is_ok(),
        Value::Array(values) => values.iter().any(names_ipv6),
        Value::Object(values) => values.values().any(names_ipv6),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::networks::tests::network;
    use super::*;

    #[test]
    fn settings() {
        let dual = r#"[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]]}}]"#;
        let networks =
            [network("lan", r#"[{"type":"macvlan","ipam":{"subnet":"fd00::/64"}}]"#), network("dual", dual)];
        let subjects = |facts: Facts| -> Vec<String> {
            judge(&networks, &facts)
                .findings
                .into_iter()
                .map(|one| format!("{}: {}", one.subject, one.problem))
                .collect()
        };
        assert_eq!(subjects(Facts { connections: Some((89, 100)), ..Facts::default() }), [""; 0]);
        let found = subjects(Facts {
            is_kubernetes: true,
            ipv6_is_disabled: true,
            connections: Some((90, 100)),
            ..Facts::default()
        });
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[1].contains("disable_ipv6") && found[1].contains("network dual"), "{found:?}");
        assert_eq!(
            subjects(Facts { is_kubernetes: true, bridge_calls_iptables: true, ..Facts::default() }),
            [""; 0]
        );
    }
}
