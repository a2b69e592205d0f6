//! `portmap export`: gives the host ports of running containers to the reference plugin before it replaces
//! this one.
//!
//! ```text
//! portmap export [--to nftables|iptables] [--dry-run]
//! ```
//!
//! Converts the host ports of our table to the rules of the reference: those of its nftables backend (1.6 and
//! later) in one batch, or those of its iptables backend container by container. Existing connections
//! continue. Without `--to` the backend is the reference's default: iptables if it is installed. Host ports
//! of our iptables backend have the reference's layout already.
//!
//! Some host ports cannot be converted. They stay, and the output names their owners: owners with a truncated
//! label, and, with `--to iptables`, owners with conditions.
//!
//! `portmap hand-back` is the former name of the command, and is still accepted.

use std::process::ExitCode;

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{self, Batch};
use ferrule_kit::owner::{self, describe};
use ferrule_kit::retry::retry;
use ferrule_kit::socket::netfilter;
use ipnetwork::IpNetwork;

use crate::config::{Backend, Conf};
use crate::iptables;
use crate::mapping::{HostIp, Mapping};
use crate::mark::{Mark, Masquerade};
use crate::nft::{ATTEMPTS, OwnedHostPorts, delete_owned, host_ports_by_owner};
use crate::plan::HostPort;
use crate::reference::{self, HOSTPORTS, MASQUERADING};
use crate::services;

const USAGE: &str = "usage: portmap export [--to nftables|iptables] [--dry-run]";

/// Runs the command if the arguments name it. Exit status: 0 if all host ports are exported, 1 after an
/// error, 2 for wrong usage, 3 if some host ports stay.
pub fn tool(arguments: &[String]) -> Option<ExitCode> {
    let (first, rest) = arguments.split_first()?;
    if !matches!(first.as_str(), "export" | "hand-back") {
        return None;
    }
    let Some((backend, dry_run)) = parse(rest) else {
        eprintln!("{USAGE}");
        return Some(ExitCode::from(2));
    };
    let backend = backend.unwrap_or(match iptables::available(IpFamily::V4) {
        Ok(()) => Backend::Iptables,
        Err(_) => Backend::Nftables,
    });
    Some(match export(backend, dry_run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("portmap export: {error}");
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

/// Exports the host ports. Returns whether all could be exported.
fn export(backend: Backend, dry_run: bool) -> Result<bool, CniError> {
    let mut socket = netfilter()?;
    let outcome = retry(ATTEMPTS, nftables::Error::is_outdated, || {
        let (generation, all) = host_ports_by_owner(&mut socket)?;
        let (exported, staying): (Vec<&OwnedHostPorts>, Vec<&OwnedHostPorts>) =
            all.iter().partition(|owned| obstacle(owned, backend).is_none());
        let mut batch = Batch::new();
        if !dry_run {
            match backend {
                Backend::Nftables => to_nftables(&mut socket, &mut batch, &exported)?,
                Backend::Iptables => to_iptables(&mut socket, &exported)?,
            }
            delete_owned(&mut batch, &exported, staying.is_empty() && !all.is_empty());
            let committed = match backend {
                // The changes by `iptables-restore` have increased the generation.
                Backend::Iptables => batch.commit(&mut socket),
                Backend::Nftables => batch.commit_at(&mut socket, generation),
            };
            if let Err(error) = committed {
                return Ok(Err(error));
            }
            services::collect(&mut socket)?;
        }
        for owned in &exported {
            println!("{}: {} host ports", describe(&owned.label), owned.host_ports.len());
        }
        for owned in &staying {
            let why = obstacle(owned, backend).unwrap_or_default();
            eprintln!("{}: {} host ports stay: {why}", describe(&owned.label), owned.host_ports.len());
        }
        Ok(Ok(staying.is_empty()))
    });
    outcome?.context(|| "export host ports")
}

/// Why an owner's host ports cannot be exported; `None` if they can.
fn obstacle(owned: &OwnedHostPorts, backend: Backend) -> Option<&'static str> {
    if owner::parse(&owned.label).is_none() {
        return Some("the owner label is truncated, so the container ID is unknown");
    }
    let has_conditions = owned.host_ports.iter().any(|host_port| host_port.key.map_set.id.is_some());
    (backend == Backend::Iptables && has_conditions).then_some("their conditions are in nft syntax")
}

fn to_nftables(socket: &mut Socket, batch: &mut Batch, owners: &[&OwnedHostPorts]) -> Result<(), CniError> {
    let host_ports = || owners.iter().flat_map(|owned| &owned.host_ports);
    for family in IpFamily::ALL {
        if !host_ports().any(|host_port| host_port.key.map_set.family == family) {
            continue;
        }
        let table = reference::create_missing(socket, batch, family)?;
        for owned in owners {
            let Some(owner) = owner::parse(&owned.label) else { continue };
            let comment = Some(owner.container_id);
            let mut masqueraded = Vec::new();
            for (host_port, conditions) in owned.host_ports.iter().zip(&owned.conditions) {
                if host_port.key.map_set.family != family {
                    continue;
                }
                for alternative in conditions {
                    batch.add_rule(table, HOSTPORTS, &reference::rule(host_port, alternative), comment);
                }
                for rule in reference::masquerade_rules(host_port.target.ip(), &host_port.masquerade) {
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

/// Adds the host ports of all interfaces of a container at once: the reference has one chain for a container
/// on a network.
fn to_iptables(socket: &mut Socket, owners: &[&OwnedHostPorts]) -> Result<(), CniError> {
    let mut done: Vec<(&str, &str)> = Vec::new();
    for owned in owners {
        let Some(owner) = owner::parse(&owned.label) else { continue };
        if done.contains(&(owner.network, owner.container_id)) {
            continue;
        }
        done.push((owner.network, owner.container_id));
        let of_container = owners.iter().filter(|other| {
            owner::parse(&other.label).is_some_and(|other| {
                (other.network, other.container_id) == (owner.network, owner.container_id)
            })
        });
        let host_ports: Vec<&HostPort> = of_container.flat_map(|owned| &owned.host_ports).collect();
        let mut addresses: Vec<IpNetwork> = Vec::new();
        for host_port in &host_ports {
            let address = address(host_port);
            if !addresses.iter().any(|known| IpFamily::of(known.ip()) == IpFamily::of(address.ip())) {
                addresses.push(address);
            }
        }
        for address in addresses {
            iptables::add(socket, &conf(&host_ports, IpFamily::of(address.ip())), &owner, &[address])?;
        }
    }
    Ok(())
}

/// The container's address with the prefix length of its subnet, if only the subnet is masqueraded.
fn address(host_port: &HostPort) -> IpNetwork {
    let ip = host_port.target.ip();
    match &host_port.masquerade {
        Masquerade::From(network, _) => IpNetwork::new(ip, network.prefix()).unwrap_or_else(|_| ip.into()),
        _ => ip.into(),
    }
}

/// A configuration of the iptables backend that results in these host ports, for one family.
fn conf(host_ports: &[&HostPort], family: IpFamily) -> Conf {
    let of_family = || host_ports.iter().filter(|host_port| host_port.key.map_set.family == family);
    let mapping = |host_port: &&HostPort| Mapping {
        proto: host_port.key.proto,
        host_ip: host_port.key.host_ip.map_or(HostIp::AnyOf(family), HostIp::One),
        host_port: host_port.key.port,
        container_port: host_port.target.port(),
    };
    let is_masqueraded = |host_port: &&HostPort| host_port.masquerade != Masquerade::Nothing;
    Conf {
        backend: Backend::Iptables,
        snat: of_family().any(is_masqueraded),
        masq_all: of_family().any(|host_port| matches!(host_port.masquerade, Masquerade::All(_))),
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
