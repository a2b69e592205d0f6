//! Masquerading: traffic from a container to outside its subnet gets the host's address as its source.
//!
//! [`Backend`] says where ADD puts the rules. Either state equals that of the reference byte for byte, so either
//! plugin can continue the other's attachments; see [`plan`]. [`check`] accepts the rules of both backends, and
//! [`delete`] and [`gc`] remove those of both, with any configuration.
//!
//! # Cost
//!
//! With nftables, [`add`] checks whether the table exists (10 µs) and then adds rules with one more round trip.
//! With iptables it starts one process for each address family. [`delete`]
//! lists one chain, deletes rules by handle, and looks for two iptables chains. It starts a process only if
//! the kernel has a *legacy* iptables nat table.
//!
//! After a deletion the kernel waits for an RCU grace period (6 to 30 ms) when the process closes the socket.
//! So DEL calls [`delete`] first, deletes its link on another socket, and closes the nf_tables socket last.

#![deny(missing_docs)]

pub mod config;
pub mod detach;
mod iptables;
pub mod list;
mod nft;
pub mod plan;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Code, Context, Failures, ValidAttachment};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::probe;
use ferrule_kit::remedy;
use ferrule_kit::steps::report_undo;
use ipnetwork::IpNetwork;

use plan::TABLE;

pub use config::{Backend, Masquerade};

/// Masquerades traffic from each address to outside its subnet, as far as the keys of the configuration want it.
///
/// This only adds rules. If a runtime repeats an ADD whose outcome it lost, the second ADD adds duplicates to
/// nftables: finding the first rules would mean listing all rules at each ADD, and a duplicate changes nothing.
/// DEL or GC removes all rules of the attachment, also those for addresses that it no longer has.
///
/// # Errors
/// The kernel's error, or that of the program. The attachment then has no rules, even if the kernel's answer is
/// lost.
pub fn add(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    let added = match wanted.backend {
        Backend::Nftables => nft::add(socket, wanted, attachment, addresses),
        Backend::Iptables => return iptables::add(socket, wanted, attachment, addresses),
    };
    if added.as_ref().is_err_and(|error| error.source.is_answer_lost()) {
        report_undo(nft::delete(socket, attachment));
    }
    added.context(|| "add masquerade rules")
}

/// Checks that the node can masquerade with this backend. Code 50 if it cannot.
pub fn status(wanted: &Masquerade) -> Result<(), CniError> {
    let unavailable = |why: String| CniError::new(Code::NotAvailable, why);
    match wanted.backend {
        Backend::Nftables => {
            let probed = Socket::netfilter().and_then(|mut socket| probe(&mut socket, TABLE.family));
            probed.map_err(|error| {
                let error = unavailable(format!("ipMasq needs nf_tables: {error}"));
                error.with_remedy(remedy::modules("nf_tables nft_masq"))
            })
        }
        Backend::Iptables => iptables::available().map_err(|error| {
            unavailable(format!("ipMasqBackend iptables: {error}")).with_remedy(remedy::IPTABLES)
        }),
    }
}

/// Returns the addresses that the rules of neither backend masquerade as wanted.
pub fn check(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<Vec<IpNetwork>, CniError> {
    let own = nft::own(socket, attachment).context(|| "list masquerade rules")?;
    missing(socket, wanted, attachment, &own, addresses)
}

/// The addresses that neither the rules in nftables nor those of iptables masquerade as wanted.
fn missing(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    own: &nft::Own,
    addresses: &[IpNetwork],
) -> Result<Vec<IpNetwork>, CniError> {
    let mut missing = Vec::new();
    for address in wanted.of(addresses).filter(|address| !own.masquerades(**address, wanted)) {
        let step = || "list masquerade rules of iptables-nft";
        if !iptables::has(socket, wanted, attachment, address).context(step)? {
            missing.push(*address);
        }
    }
    if missing.is_empty() {
        return Ok(missing);
    }
    let step = || "list masquerade rules of iptables-legacy";
    iptables::missing_in_legacy(wanted, attachment, missing).context(step)
}

/// CHECK: every address is masqueraded as wanted.
///
/// # Errors
/// Names the first address that is not.
pub fn ensure(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    match check(socket, wanted, attachment, addresses)?.first() {
        Some(address) => Err(CniError::internal(format!("address {address} is not masqueraded"))),
        None => Ok(()),
    }
}

/// Masquerades those of the addresses again that [`check`] returns. Rules of either backend that are complete stay.
///
/// # Errors
/// The kernel's error, or that of the program.
pub fn repair(
    socket: &mut Socket,
    wanted: &Masquerade,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    let own = nft::own(socket, attachment).context(|| "list masquerade rules")?;
    let missing = missing(socket, wanted, attachment, &own, addresses)?;
    match wanted.backend {
        _ if missing.is_empty() => Ok(()),
        Backend::Nftables => {
            nft::repair(socket, wanted, attachment, &own, &missing).context(|| "add masquerade rules")
        }
        Backend::Iptables => iptables::add(socket, wanted, attachment, &missing),
    }
}

/// Removes all masquerading rules of the attachment, of either backend. Missing rules are success.
///
/// The reference's iptables backend names a chain after network and container alone. If a container has two
/// interfaces on the network, both share the chain, and DEL of the first one removes it, as with the
/// reference.
pub fn delete(socket: &mut Socket, attachment: &Attachment<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let chain = plan::chain_of(attachment.network, attachment.container_id);
    failures.keep(nft::delete(socket, attachment).context(|| "remove masquerade rules"));
    failures.keep(iptables::delete(socket, &chain));
    failures.into_result()
}

/// Removes the masquerading rules of the network's attachments that are not in `valid`.
pub fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let mut failures = Failures::default();
    failures.keep(nft::gc(socket, network, valid).context(|| "remove dead masquerade rules"));
    failures.keep(iptables::gc(socket, network, valid));
    failures.into_result()
}
