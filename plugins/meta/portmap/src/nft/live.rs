//! Reads and deletes whole owners, for the export to the reference plugin.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Error, Expr, Generation, elements, generation, rules};
use ferrule_kit::sandbox::Sandbox;

use crate::plan::HostPort;

use super::element::DnatElement;
use super::layout::{NETWORKS, OWNERS, TABLE};
use super::owner_metadata::sandbox;
use super::{change, list};

/// The host ports of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedHostPorts {
    /// The owner label.
    pub label: String,
    /// The host ports, sorted by key.
    pub host_ports: Vec<HostPort>,
    /// The conditions of each host port, in the same order: alternative sequences of expressions. A host port
    /// without conditions has one empty alternative.
    pub conditions: Vec<Vec<Vec<Expr>>>,
}

/// Lists all owners that have host ports, sorted by label. The generation is that of the ruleset before the
/// listing.
///
/// # Errors
/// Code 999 if the kernel refuses to list the table.
pub fn host_ports_by_owner(socket: &mut Socket) -> Result<(Generation, Vec<OwnedHostPorts>), CniError> {
    let step = || format!("list table {TABLE}");
    let generation = generation(socket).context(step)?;
    let found = sorted(socket).context(step)?;
    let labels: Vec<String> = found.iter().map(|element| element.label.clone()).collect();
    let host_ports = list::with_masquerades(socket, found).context(step)?;
    let networks = rules(socket, TABLE, NETWORKS).context(step)?;
    let mut all: Vec<OwnedHostPorts> = Vec::new();
    for (label, host_port) in labels.into_iter().zip(host_ports) {
        let conditions = match host_port.key.map_set.chain() {
            None => vec![Vec::new()],
            Some(chain) => networks
                .iter()
                .filter(|rule| rule.jump_target().as_deref() == Some(chain.as_str()))
                // Strip the two leading expressions, which test the family, and the trailing jump.
                .filter_map(|rule| Some(rule.decode()?.get(2..)?.split_last()?.1.to_vec()))
                .collect(),
        };
        match all.last_mut().filter(|owned| owned.label == label) {
            Some(owned) => {
                owned.host_ports.push(host_port);
                owned.conditions.push(conditions);
            }
            None => {
                all.push(OwnedHostPorts { label, host_ports: vec![host_port], conditions: vec![conditions] })
            }
        }
    }
    Ok((generation, all))
}

fn sorted(socket: &mut Socket) -> Result<Vec<DnatElement>, Error> {
    let mut found = list::dnat_elements(socket, |_| true)?;
    found.sort_by(|a, b| (&a.label, &a.key).cmp(&(&b.label, &b.key)));
    Ok(found)
}

/// The owner label of each host port, and the host port as if it had no masquerading: that would take one request for each.
///
/// # Errors
/// Code 999 if the kernel refuses to list the table.
pub fn labelled_host_ports(socket: &mut Socket) -> Result<Vec<(String, HostPort)>, CniError> {
    let found = sorted(socket).context(|| format!("list table {TABLE}"))?;
    Ok(found.into_iter().map(|element| (element.label.clone(), element.with_mark(None))).collect())
}

/// The labels of all owners, and the state of their network namespaces.
///
/// # Errors
/// Code 999 if the kernel refuses to list the set.
pub fn sandboxes(socket: &mut Socket) -> Result<Vec<(String, Sandbox)>, CniError> {
    let found = elements(socket, TABLE, OWNERS).context(|| format!("list table {TABLE}"))?;
    let state = |metadata: &Option<Vec<u8>>| metadata.as_deref().map_or(Sandbox::Unknown, sandbox);
    Ok(found.into_iter().filter_map(|owner| Some((owner.comment?, state(&owner.metadata)))).collect())
}

/// Adds the deletion of these owners and their host ports to the batch; with `all`, which means that there are
/// no other owners, the deletion of the table.
pub fn delete_owned(batch: &mut Batch, owners: &[&OwnedHostPorts], all: bool) {
    if all {
        batch.delete_table(TABLE);
        return;
    }
    for owned in owners {
        change::delete(batch, &owned.host_ports);
    }
    let labels: Vec<String> = owners.iter().map(|owned| owned.label.clone()).collect();
    change::delete_owners(batch, &labels);
}
