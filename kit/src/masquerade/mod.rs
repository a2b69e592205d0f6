//! Masquerading: traffic from a container to outside its subnet gets the host's address as its source.
//!
//! The nftables state equals that of the reference's nftables backend byte for byte, so either plugin can
//! continue the other's attachments; see [`plan`]. [`add_by`] can make the rules of the reference's *iptables* backend
//! instead. [`check`] accepts them, and [`delete`] and [`gc`] remove them.
//!
//! # Cost
//!
//! [`add`] checks whether the table exists (10 µs) and then adds rules with one more round trip. [`delete`]
//! lists one chain, deletes rules by handle, and looks for two iptables chains. It starts a process only if
//! the kernel has a *legacy* iptables nat table.
//!
//! After a deletion the kernel waits for an RCU grace period (6 to 30 ms) when the process closes the socket.
//! So DEL calls [`delete`] first, deletes its link on another socket, and closes the nf_tables socket last.

mod iptables;
mod nft;
pub mod plan;

use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Code, Context, Failures, ValidAttachment};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::Programs;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::probe;
use ipnetwork::IpNetwork;

use crate::socket;
use plan::TABLE;

/// Masquerades traffic from each address to outside its subnet.
///
/// This only adds rules. If a runtime repeats an ADD whose outcome it lost, the second ADD adds duplicates:
/// finding the first rules would mean listing all rules at each ADD, and a duplicate changes nothing. DEL or
/// GC removes all rules of the attachment, also those for addresses that it no longer has.
///
/// # Errors
/// The kernel's error. The attachment then has no rules, even if the kernel's answer is lost.
pub fn add(
    socket: &mut Socket,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    let added = nft::add(socket, attachment, addresses);
    if added.as_ref().is_err_and(|error| error.source.is_answer_lost())
        && let Err(error) = nft::delete(socket, attachment)
    {
        eprintln!("failed to undo the ADD: {error}");
    }
    added.context(|| "add masquerade rules")
}

/// Where the rules are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// In the reference's nftables table.
    #[default]
    Nftables,
    /// In the nat table of iptables.
    Iptables,
}

impl Backend {
    /// The value of `ipMasqBackend`; empty for the default.
    ///
    /// # Errors
    /// Code 7 with the reference's text.
    pub fn parse(text: &str) -> Result<Self, CniError> {
        match text {
            "" | "nftables" => Ok(Backend::Nftables),
            "iptables" => Ok(Backend::Iptables),
            _ => Err(CniError::invalid_config(format!("unknown ipmasq backend {text:?}"))),
        }
    }
}

/// As [`add`], with this backend. If it fails, it removes all rules of the attachment.
pub fn add_by(
    socket: &mut Socket,
    backend: Backend,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    if backend == Backend::Nftables {
        return add(socket, attachment, addresses);
    }
    iptables::add(socket, attachment, addresses).inspect_err(|_| {
        if let Err(error) = delete(socket, attachment) {
            eprintln!("failed to undo masquerading of a failed ADD: {error}");
        }
    })
}

/// Checks that the node can masquerade with this backend. Code 50 if it cannot.
pub fn status_of(backend: Backend) -> Result<(), CniError> {
    if backend == Backend::Nftables {
        return status();
    }
    let missing = |error| CniError::new(Code::NotAvailable, format!("ipMasq needs iptables: {error}"));
    Programs::of_node(IpFamily::V4).map(drop).map_err(missing)
}

/// Checks that the kernel supports nf_tables. Code 50 if it does not.
pub fn status() -> Result<(), CniError> {
    let probed = Socket::netfilter().and_then(|mut socket| probe(&mut socket, TABLE.family));
    probed.map_err(|error| CniError::new(Code::NotAvailable, format!("ipMasq needs nf_tables: {error}")))
}

/// Returns the addresses that neither our rules nor the reference's iptables rules masquerade.
pub fn check(
    socket: &mut Socket,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<Vec<IpNetwork>, CniError> {
    let chain = plan::chain_of(attachment.network, attachment.container_id);
    let without = |missing: Vec<IpNetwork>, sources: Vec<IpAddr>| -> Vec<IpNetwork> {
        missing.into_iter().filter(|address| !sources.contains(&address.ip())).collect()
    };
    let mut missing =
        without(addresses.to_vec(), nft::sources(socket, attachment).context(|| "list masquerade rules")?);
    if !missing.is_empty() {
        missing = without(missing, iptables::sources(socket, &chain)?);
    }
    if !missing.is_empty() {
        missing = without(missing, iptables::legacy_sources(&chain)?);
    }
    Ok(missing)
}

/// CHECK: masquerades every address.
///
/// # Errors
/// Names the first address that is not masqueraded.
pub fn ensure(attachment: &Attachment<'_>, addresses: &[IpNetwork]) -> Result<(), CniError> {
    let missing = check(&mut socket::netfilter()?, attachment, addresses)?;
    missing
        .first()
        .map_or(Ok(()), |address| Err(CniError::internal(format!("address {address} is not masqueraded"))))
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
