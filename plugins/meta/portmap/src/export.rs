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
//! label, and, with `--to iptables`, owners with conditions. Host ports of containers that no longer exist are dropped, and the output
//! names their owners: the reference would keep them for ever.
//!
//! `portmap hand-back` is the former name of the command, and is still accepted.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;

use cni_common::line::Line;
use cni_common::plugin::Attachment;
use cni_common::remark;
use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{self, ATTEMPTS, Batch};
use ferrule_kernel::retry::retry_step;
use ferrule_kernel::sorted;
use ferrule_kit::owner::{self, describe};
use ferrule_kit::presence::Presence;
use ferrule_kit::socket::netfilter;
use ipnetwork::IpNetwork;

use crate::config::{Backend, Conf, SERVICES_BIT};
use crate::mapping::Mapping;
use crate::mark::DEFAULT_BIT;
use crate::nft::{Exported, OwnerPorts, delete_owned, list_by_owner, list_owners};
use crate::plan::HostPort;
use crate::reference::{self, HOSTPORTS, MASQUERADING};
use crate::{flows, iptables, services};

const USAGE: &str = "usage: portmap export [--to nftables|iptables] [--dry-run]";

/// Runs the command if the arguments name it. Exit status: 0 if all host ports are exported, 1 after an
/// error, 2 for wrong usage, 3 if some host ports stay.
pub fn tool(arguments: &[String]) -> Option<ExitCode> {
    let (first, rest) = arguments.split_first()?;
    if !matches!(first.as_str(), "export" | "hand-back") {
        return None;
    }
    let Some((backend, dry_run)) = parse(rest) else {
        remark!("{USAGE}");
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
            remark!("portmap export: {error}");
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
    let outcome: Result<_, CniError> = retry_step(ATTEMPTS, nftables::Error::is_outdated, || {
        let (generation, all) = list_by_owner(&mut socket)?;
        let is_empty = all.is_empty();
        let gone: Vec<String> = list_owners(&mut socket)?
            .into_iter()
            .filter(|(_, presence)| matches!(presence, Presence::Gone { .. }))
            .map(|(label, _)| label)
            .collect();
        let (gone, living): (Vec<OwnerPorts>, Vec<OwnerPorts>) =
            all.into_iter().partition(|(label, _)| gone.contains(label));
        let (exported, staying): (Vec<OwnerPorts>, Vec<OwnerPorts>) =
            living.into_iter().partition(|owner| obstacle(owner, backend).is_none());
        if !dry_run {
            let mut batch = Batch::new();
            match backend {
                Backend::Nftables => to_nftables(&mut socket, &mut batch, &exported)?,
                Backend::Iptables => to_iptables(&mut socket, &exported)?,
            }
            let deleted = || exported.iter().chain(&gone);
            let labels: Vec<String> = deleted().map(|(label, _)| label.clone()).collect();
            let host_ports: Vec<HostPort> = all_of(deleted()).cloned().collect();
            let is_last = staying.is_empty() && !is_empty;
            delete_owned(&mut socket, &mut batch, &labels, &host_ports, is_last)?;
            let committed = match backend {
                // The changes by `iptables-restore` have increased the generation.
                Backend::Iptables => batch.commit(&mut socket),
                Backend::Nftables => batch.commit_at(&mut socket, generation),
            };
            if let Err(error) = committed {
                return Ok(Err(error));
            }
            services::collect(&mut socket)?;
            flows::delete_after_removal(&mut socket, &all_of(&gone).cloned().collect::<Vec<_>>());
        }
        for (label, host_ports) in &gone {
            let (owner, count) = (describe(label), host_ports.len());
            remark!("{owner}: {count} host ports are dropped: the container no longer exists");
        }
        for (label, host_ports) in &exported {
            let line = Line::new(format_args!("{}: {} host ports", describe(label), host_ports.len()));
            // A reader such as `head` may close the pipe.
            let _ = writeln!(io::stdout(), "{line}");
        }
        for owner in &staying {
            let why = obstacle(owner, backend).unwrap_or_default();
            let (name, count) = (describe(&owner.0), owner.1.len());
            remark!("{name}: {count} host ports stay: {why}");
        }
        Ok(Ok(staying.is_empty()))
    });
    outcome?.context(|| "export host ports")
}

fn all_of<'o>(owners: impl IntoIterator<Item = &'o OwnerPorts>) -> impl Iterator<Item = &'o HostPort> {
    owners.into_iter().flat_map(|(_, host_ports)| host_ports).map(|exported| &exported.host_port)
}

/// Why an owner's host ports cannot be exported; `None` if they can.
fn obstacle((label, host_ports): &OwnerPorts, backend: Backend) -> Option<&'static str> {
    if owner::parse(label).is_none() {
        return Some("the owner label is truncated, so the container ID is unknown");
    }
    let has_conditions = host_ports.iter().any(|exported| exported.host_port.key.map_set.id.is_some());
    (backend == Backend::Iptables && has_conditions).then_some("their conditions are in nft syntax")
}

fn to_nftables(socket: &mut Socket, batch: &mut Batch, owners: &[OwnerPorts]) -> Result<(), CniError> {
    for family in sorted(all_of(owners).map(|host_port| host_port.key.map_set.family)) {
        let table = reference::create_missing(socket, batch, family)?;
        for (label, host_ports) in owners {
            let comment = owner::parse(label).map(|owner| owner.container_id);
            let mut masqueraded = Vec::new();
            for Exported { host_port, conditions } in host_ports {
                if host_port.key.map_set.family != family {
                    continue;
                }
                for alternative in conditions {
                    batch.add_rule(table, HOSTPORTS, &reference::rule(host_port, alternative), comment);
                }
                let rules = |masquerade| reference::masquerade_rules(host_port.target.ip(), masquerade);
                for rule in host_port.masquerade.iter().flat_map(rules) {
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
fn to_iptables(socket: &mut Socket, owners: &[OwnerPorts]) -> Result<(), CniError> {
    let mut containers: BTreeMap<(&str, &str, IpFamily), Vec<&HostPort>> = BTreeMap::new();
    for (label, host_ports) in owners {
        let Some(owner) = owner::parse(label) else { continue };
        for Exported { host_port, .. } in host_ports {
            let key = (owner.network, owner.container_id, host_port.key.map_set.family);
            containers.entry(key).or_default().push(host_port);
        }
    }
    for ((network, container_id, _), host_ports) in containers {
        let owner = Attachment { network, container_id, ifname: "" };
        let Some(address) = host_ports.first().map(|host_port| address(host_port)) else { continue };
        iptables::add(socket, &conf(&host_ports), &owner, &[address])?;
    }
    Ok(())
}

/// The container's address with the prefix length of its subnet, if only the subnet is masqueraded.
fn address(host_port: &HostPort) -> IpNetwork {
    let ip = host_port.target.ip();
    let subnet = host_port.masquerade.as_ref().and_then(|masquerade| masquerade.from);
    subnet.and_then(|subnet| IpNetwork::new(ip, subnet.prefix()).ok()).unwrap_or_else(|| ip.into())
}

/// A configuration of the iptables backend that results in these host ports of one family.
fn conf(host_ports: &[&HostPort]) -> Conf {
    let mapping = |host_port: &&HostPort| Mapping {
        proto: host_port.key.proto,
        // All mappings are of the family, so no address stands for all of this family.
        host_ip: host_port.key.host_ip,
        host_port: host_port.key.port,
        container_port: host_port.target.port(),
    };
    let mut masquerades = host_ports.iter().filter_map(|host_port| host_port.masquerade.as_ref()).peekable();
    Conf {
        backend: Backend::Iptables,
        snat: masquerades.peek().is_some(),
        masq_all: masquerades.any(|masquerade| masquerade.from.is_none()),
        mark_bit: DEFAULT_BIT,
        services_bit: SERVICES_BIT,
        masq_bit: None,
        external_chain: None,
        conditions: Default::default(),
        matches: Default::default(),
        mappings: host_ports.iter().map(mapping).collect(),
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
