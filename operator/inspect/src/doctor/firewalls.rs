//! Firewalls that drop what pods send and receive.

use cni_common::spec::{CniError, Context as _};
use ferrule_firewall::firewalld::Firewalld;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{FILTER, NAT, Programs};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Family, HookPoint, Table, all_rules, base_chains};

use super::networks::Network;
use super::{Finding, Subject};

/// The plugins whose containers the host forwards packets for.
pub const FORWARDED: [&str; 2] = ["bridge", "ptp"];

/// What the node has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The chains that drop forwarded packets which no rule accepts.
    pub drops: Vec<String>,
    /// Whether both variants of iptables have rules.
    pub is_mixed: bool,
    /// Whether firewalld runs.
    pub has_firewalld: bool,
}

impl Facts {
    /// Reads them.
    ///
    /// # Errors
    /// The kernel does not list the chains, or a program fails.
    pub fn read(netfilter: &mut Socket) -> Result<Facts, CniError> {
        let chains = base_chains(netfilter).context(|| "list the base chains".to_owned())?;
        let forward = chains.iter().filter(|chain| chain.base.drops && chain.base.is_on(HookPoint::Forward));
        let mut drops: Vec<String> =
            forward.map(|chain| format!("{} {} {}", chain.table.0, chain.table.1, chain.name)).collect();
        let mut is_mixed = false;
        for family in [IpFamily::V4, IpFamily::V6] {
            let mut saved = Vec::new();
            for programs in [FILTER, NAT].into_iter().filter_map(|table| Programs::legacy(family, table)) {
                saved.push(programs.save().context(|| "list the rules of iptables-legacy")?);
            }
            if saved.iter().any(|text| text.contains("\n:FORWARD DROP ")) {
                drops.push(format!("iptables-legacy FORWARD ({family})"));
            }
            if saved.iter().any(|text| text.contains("\n-A ")) {
                for name in [FILTER, NAT] {
                    let rules = all_rules(netfilter, Table::new(Family::of(family), name));
                    is_mixed |= !rules.context(|| format!("list the rules of table {name}"))?.is_empty();
                }
            }
        }
        Ok(Facts { drops, is_mixed, has_firewalld: Firewalld::find().is_some() })
    }
}

/// Compares the networks with the facts.
pub fn judge(networks: &[Network], facts: &Facts) -> Subject {
    let mut findings = Vec::new();
    if facts.is_mixed {
        findings.push(Finding::warning(
            "iptables",
            "both iptables-nft and iptables-legacy have rules: each drops what the other accepts",
            "choose one by update-alternatives --config iptables, then remove the rules of the other",
        ));
    }
    let cause = match (facts.has_firewalld, facts.drops.as_slice()) {
        (true, _) => Some("firewalld drops forwarded packets that it does not know".to_owned()),
        (false, []) => None,
        (false, drops) => Some(format!("{} drops forwarded packets that no rule accepts", drops.join(", "))),
    };
    let open = networks.iter().filter(|network| network.has(&FORWARDED) && !network.has(&["firewall"]));
    findings.extend(open.filter_map(|network| {
        let remedy = "add {\"type\": \"firewall\"} to the end of \"plugins\"";
        Some(Finding::warning(network.subject(), cause.clone()?, remedy))
    }));
    let seen = match &cause {
        Some(cause) => format!("{cause}; the plugin firewall opens them for each network"),
        None => "no chain drops forwarded packets".to_owned(),
    };
    Subject::new("firewalls", seen, findings)
}

#[cfg(test)]
mod tests {
    use super::super::networks::tests::network;
    use super::*;

    #[test]
    fn a_network_without_the_plugin_firewall_loses_packets() {
        let networks = [
            network("open", r#"[{"type":"bridge"}]"#),
            network("guarded", r#"[{"type":"bridge"},{"type":"firewall"}]"#),
            network("lan", r#"[{"type":"macvlan"}]"#),
        ];
        let subjects = |facts: &Facts| -> Vec<String> {
            judge(&networks, facts).findings.into_iter().map(|one| one.subject).collect()
        };
        let open = networks[0].subject();
        assert_eq!(subjects(&Facts::default()), [""; 0]);
        assert_eq!(
            subjects(&Facts { drops: vec!["ip filter FORWARD".into()], ..Facts::default() }),
            [open.as_str()]
        );
        assert_eq!(
            subjects(&Facts { has_firewalld: true, is_mixed: true, ..Facts::default() }),
            ["iptables", &open]
        );
    }
}
