//! `portmap hand-back`: gives the host ports of running containers to the reference plugin, before it takes this one's
//! place.
//!
//! ```text
//! portmap hand-back [--to nftables|iptables] [--dry-run]
//! ```
//!
//! The entries of our table become what the reference's plugin would have made, by its nftables backend (1.6 and later) in
//! one change of the ruleset, or by its iptables backend container after container; connections that stand are not touched.
//! Without `--to` it is the backend that the reference would choose by itself: iptables where there is one. What iptables
//! made for us is the reference's layout already. Entries that cannot be said in the other's words stay where they are and
//! are named: those whose owner's name was too long for a comment, and, with iptables, those with conditions.

use std::process::ExitCode;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Batch;
use ipnetwork::IpNetwork;

use crate::config::{Backend, Conf};
use crate::iptables;
use crate::mapping::{HostIp, Mapping};
use crate::mark::{Mark, Masquerade};
use crate::nft::{Live, abandon, live};
use crate::owner::{self, describe};
use crate::plan::Entry;
use crate::reference::{self, HOSTPORTS, MASQUERADING};
use crate::services;

const USAGE: &str = "usage: portmap hand-back [--to nftables|iptables] [--dry-run]";
/// How often what was read is read again because somebody changed a ruleset meanwhile.
const TRIES: u32 = 200;

/// Does it if the arguments ask for it. The exit status is 0 if all is handed over, 1 after an error, 2 for wrong usage, 3
/// if something had to stay.
pub fn tool(arguments: &[String]) -> Option<ExitCode> {
    let (first, rest) = arguments.split_first()?;
    if first != "hand-back" {
        return None;
    }
    let Some((backend, dry_run)) = parse(rest) else {
        eprintln!("{USAGE}");
        return Some(ExitCode::from(2));
    };
    let backend = backend.unwrap_or(match iptables::available(false) {
        Ok(()) => Backend::Iptables,
        Err(_) => Backend::Nftables,
    });
    Some(match hand_back(backend, dry_run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("portmap hand-back: {error}");
            ExitCode::FAILURE
        }
    })
}

fn parse(arguments: &[String]) -> Option<(Option<Backend>, bool)> {
    let (mut backend, mut dry_run) = (None, false);
    let mut words = arguments.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--dry-run" => dry_run = true,
            "--to" => match words.next()? {
                "nftables" => backend = Some(Backend::Nftables),
                "iptables" => backend = Some(Backend::Iptables),
                _ => return None,
            },
            _ => return None,
        }
    }
    Some((backend, dry_run))
}

/// Whether all was handed over.
fn hand_back(backend: Backend, dry_run: bool) -> Result<bool, CniError> {
    let mut socket = Socket::netfilter().context(|| "open a netfilter socket")?;
    let mut tries = TRIES;
    loop {
        let (generation, all) = live(&mut socket)?;
        let (over, stay): (Vec<&Live>, Vec<&Live>) =
            all.iter().partition(|live| obstacle(live, backend).is_none());
        let mut batch = Batch::new();
        if !dry_run {
            match backend {
                Backend::Nftables => to_nftables(&mut socket, &mut batch, &over)?,
                Backend::Iptables => to_iptables(&mut socket, &over)?,
            }
            abandon(&mut batch, &over, stay.is_empty() && !all.is_empty());
            let committed = match backend {
                // What the programs did counts as a change of the ruleset.
                Backend::Iptables => batch.commit(&mut socket),
                Backend::Nftables => batch.commit_at(&mut socket, generation),
            };
            match committed {
                Err(error) if error.is_outdated() && tries > 0 => {
                    tries -= 1;
                    continue;
                }
                outcome => outcome.context(|| "hand host ports over")?,
            }
            services::collect(&mut socket)?;
        }
        for live in &over {
            println!("{}: {} host ports", describe(&live.label), live.entries.len());
        }
        for live in &stay {
            let why = obstacle(live, backend).unwrap_or_default();
            eprintln!("{}: {} host ports stay: {why}", describe(&live.label), live.entries.len());
        }
        return Ok(stay.is_empty());
    }
}

/// Why an owner's entries cannot be said in the reference's words.
fn obstacle(live: &Live, backend: Backend) -> Option<&'static str> {
    if owner::parse(&live.label).is_none() {
        return Some("the container's name is cut");
    }
    let has_conditions = live.entries.iter().any(|entry| entry.key.realm.id.is_some());
    (backend == Backend::Iptables && has_conditions).then_some("they have conditions in nft's words")
}

fn to_nftables(socket: &mut Socket, batch: &mut Batch, owners: &[&Live]) -> Result<(), CniError> {
    let entries = || owners.iter().flat_map(|live| &live.entries);
    for v6 in [false, true] {
        if !entries().any(|entry| entry.key.realm.v6 == v6) {
            continue;
        }
        let table = reference::establish(socket, batch, v6)?;
        for live in owners {
            let Some(owner) = owner::parse(&live.label) else { continue };
            let comment = Some(owner.container_id);
            let mut masqueraded = Vec::new();
            for (entry, conditions) in live.entries.iter().zip(&live.conditions) {
                if entry.key.realm.v6 != v6 {
                    continue;
                }
                for alternative in conditions {
                    batch.add_rule(table, HOSTPORTS, &reference::rule(entry, alternative), comment);
                }
                for rule in reference::masquerade_rules(entry.target.ip(), &entry.masquerade) {
                    if !masqueraded.contains(&rule) {
                        batch.add_rule(table, MASQUERADING, &rule, comment);
                        masqueraded.push(rule);
                    }
                }
            }
        }
    }
    Ok(())
}

/// The reference has one chain for a container on a network, whatever its interfaces.
fn to_iptables(socket: &mut Socket, owners: &[&Live]) -> Result<(), CniError> {
    let mut done: Vec<(&str, &str)> = Vec::new();
    for live in owners {
        let Some(owner) = owner::parse(&live.label) else { continue };
        if done.contains(&(owner.network, owner.container_id)) {
            continue;
        }
        done.push((owner.network, owner.container_id));
        let of_container = owners.iter().filter(|other| {
            owner::parse(&other.label).is_some_and(|other| {
                (other.network, other.container_id) == (owner.network, owner.container_id)
            })
        });
        let entries: Vec<&Entry> = of_container.flat_map(|live| &live.entries).collect();
        let mut addresses: Vec<IpNetwork> = Vec::new();
        for entry in &entries {
            let address = address(entry);
            if !addresses.iter().any(|known| known.is_ipv6() == address.is_ipv6()) {
                addresses.push(address);
            }
        }
        for address in addresses {
            iptables::add(socket, &conf(&entries, address.is_ipv6()), &owner, &[address])?;
        }
    }
    Ok(())
}

/// The pod's address, with the prefix length of the network that is masqueraded.
fn address(entry: &Entry) -> IpNetwork {
    let ip = entry.target.ip();
    match &entry.masquerade {
        Masquerade::From(network, _) => IpNetwork::new(ip, network.prefix()).unwrap_or_else(|_| ip.into()),
        _ => ip.into(),
    }
}

/// A configuration that comes to these entries, for one family.
fn conf(entries: &[&Entry], v6: bool) -> Conf {
    let of_family = || entries.iter().filter(|entry| entry.key.realm.v6 == v6);
    let mapping = |entry: &&Entry| Mapping {
        proto: entry.key.proto,
        host_ip: entry.key.host_ip.map_or(HostIp::AnyOf { v6 }, HostIp::One),
        host_port: entry.key.port,
        container_port: entry.target.port(),
    };
    let marks = |entry: &&Entry| entry.masquerade != Masquerade::Nothing;
    Conf {
        backend: Backend::Iptables,
        snat: of_family().any(marks),
        masq_all: of_family().any(|entry| matches!(entry.masquerade, Masquerade::All(_))),
        mark: Mark::default(),
        services_bit: services::DEFAULT_BIT,
        masq_bit: None,
        external_chain: None,
        conditions: [Vec::new(), Vec::new()],
        mappings: of_family().map(mapping).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn arguments() {
        assert_eq!(parse(&words("")), Some((None, false)));
        assert_eq!(parse(&words("--to iptables --dry-run")), Some((Some(Backend::Iptables), true)));
        assert_eq!(parse(&words("--to nftables")), Some((Some(Backend::Nftables), false)));
        for bad in ["--to", "--to ipvs", "now", "--to nftables now"] {
            assert_eq!(parse(&words(bad)), None, "{bad}");
        }
        assert!(tool(&words("")).is_none() && tool(&words("--help")).is_none());
    }
}
