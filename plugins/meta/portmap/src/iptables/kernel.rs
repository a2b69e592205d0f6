//! The rules of a container in the tables of iptables-nft, read and deleted over netlink.

use std::collections::BTreeSet;

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::kernel::{delete_chain, delete_dead, exist, families_with, table};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Error, Table, rules};

use super::rules::{DNAT, OLD_SNAT, Rules, Shared, chain_of, dead_chain, old_chain_of};
use cni_common::plugin::Attachment;

/// The lines that create missing shared chains and rules. `-N` creates a chain and fails if it exists. A
/// declaration as in the output of `iptables-save` would flush a chain that another process has just created.
pub(super) fn missing(socket: &mut Socket, rules: &Rules) -> Result<Vec<String>, Error> {
    let present = exist(socket, rules.family, &rules.shared_chains)?;
    let missing = rules.shared_chains.iter().zip(present).filter(|(_, present)| !present);
    let mut lines: Vec<String> = missing.map(|(chain, _)| format!("-N {chain}")).collect();
    for shared in &rules.shared {
        if !has(socket, rules.family, shared)? {
            lines.push(shared.line());
        }
    }
    Ok(lines)
}

/// Whether a shared rule exists, judged by its chain and jump target. Each chain has at most one shared rule
/// that does not jump to one of our chains.
fn has(socket: &mut Socket, family: IpFamily, shared: &Shared) -> Result<bool, Error> {
    let target = shared.rule.argument("-j").unwrap_or_default();
    let found = rules(socket, table(family), &shared.rule.chain)?;
    Ok(found.iter().any(|rule| match rule.jump_target() {
        Some(jump) => jump == target,
        None => !target.starts_with("CNI-"),
    }))
}

/// The families in which a container has a chain of the current or of the old layout.
pub(super) fn families_of(socket: &mut Socket, owner: &Attachment<'_>) -> Result<Vec<IpFamily>, Error> {
    let chain = chain_of(owner.network, owner.container_id);
    families_with(socket, &[&chain, &old_chain_of(owner.network, owner.container_id)])
}

/// The chains that [`families_of`] looks for.
pub(super) fn chains_of(owner: &Attachment<'_>) -> impl Iterator<Item = (Table<'static>, String)> + use<> {
    let chain = chain_of(owner.network, owner.container_id);
    let old = old_chain_of(owner.network, owner.container_id);
    let both = move |family| [(table(family), chain.clone()), (table(family), old.clone())];
    IpFamily::ALL.into_iter().flat_map(both)
}

/// Deletes a container's chains, and the rules that jump to them, in both families.
pub(super) fn delete(socket: &mut Socket, owner: &Attachment<'_>) -> Result<(), Error> {
    families_of(socket, owner)?.into_iter().try_for_each(|family| delete_in(socket, family, owner))
}

/// Deletes a container's chains, and the rules that jump to them, in one family.
pub(super) fn delete_in(socket: &mut Socket, family: IpFamily, owner: &Attachment<'_>) -> Result<(), Error> {
    delete_chain(socket, family, &[DNAT], &chain_of(owner.network, owner.container_id))?;
    delete_chain(socket, family, &[OLD_SNAT], &old_chain_of(owner.network, owner.container_id))
}

/// Deletes the chains of the network's containers without valid attachment.
pub(super) fn gc(socket: &mut Socket, network: &str, valid: &BTreeSet<String>) -> Result<(), Error> {
    [DNAT, OLD_SNAT].into_iter().try_for_each(|parent| {
        delete_dead(socket, parent, |comment, target| dead_chain(comment, target, network, valid))
    })
}
