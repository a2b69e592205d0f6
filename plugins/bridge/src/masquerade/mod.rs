//! Masquerading: what a pod sends out of its network leaves with the node's address.
//!
//! The state in the kernel is, to the byte, what the reference plugin makes with its nftables backend, so that either can
//! take over from the other; see [`plan`]. What the reference's *iptables* backend made counts in [`check`] and is
//! removed by [`delete`] and [`gc`], but is never added.
//!
//! # What it costs
//!
//! [`add`] looks whether the table stands (10 µs) and then only adds, which costs one round trip more. [`delete`] lists
//! one chain, deletes by handle, and looks for two iptables chains. Only where the kernel has a *legacy* iptables nat
//! table is a process started.
//!
//! A deletion leaves an RCU grace period (6 to 30 ms) to wait for, and the kernel makes the process wait for it when the
//! socket is closed. So a DEL should call [`delete`] first, delete its link on another socket, and drop the nf_tables
//! socket last.

mod iptables;
mod nft;
pub mod plan;

use std::net::IpAddr;

use cni_common::netlink::Socket;
use cni_common::nftables::probe;
use cni_common::spec::{CniError, Code, Failures, Step, ValidAttachment};
use ipnetwork::IpNetwork;

use cni_common::plugin::Attachment;
use plan::TABLE;

/// Masquerades what comes from each of the addresses and goes out of its network.
///
/// It only adds. A second ADD of the attachment, which a runtime sends if it lost the first one's outcome, adds a rule
/// beside the first one's: finding that one would mean to list all rules at each ADD, and the two do what one does. A
/// rule that is left for an address which the attachment no longer has goes like all others at DEL or GC.
///
/// # Errors
/// Code 999 with the refused request.
pub fn add(
    socket: &mut Socket,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<(), CniError> {
    nft::add(socket, attachment, addresses).step(|| "masquerade")
}

/// Whether the kernel can do it.
///
/// # Errors
/// Code 50 with what the kernel says.
pub fn status() -> Result<(), CniError> {
    let probed = Socket::netfilter().and_then(|mut socket| probe(&mut socket, TABLE.family));
    probed.map_err(|error| {
        CniError::new(Code::NotAvailable, format!("ipMasq needs nf_tables, and the kernel says: {error}"))
    })
}

/// Those of the addresses that are not masqueraded, neither by rules of ours nor by the reference's iptables backend.
///
/// # Errors
/// Code 999 if the rules cannot be read.
pub fn check(
    socket: &mut Socket,
    attachment: &Attachment<'_>,
    addresses: &[IpNetwork],
) -> Result<Vec<IpNetwork>, CniError> {
    let chain = plan::chain_of(attachment.network, attachment.container_id);
    let without = |missing: Vec<IpNetwork>, sources: Vec<IpAddr>| -> Vec<IpNetwork> {
        missing.into_iter().filter(|address| !sources.contains(&address.ip())).collect()
    };
    let mut missing = without(addresses.to_vec(), nft::sources(socket, attachment).step(|| "masquerade")?);
    if !missing.is_empty() {
        missing = without(missing, iptables::sources(socket, &chain)?);
    }
    if !missing.is_empty() {
        missing = without(missing, iptables::legacy_sources(&chain)?);
    }
    Ok(missing)
}

/// Removes whatever masquerades for the attachment, by whichever backend it came; nothing there is success.
///
/// The reference's iptables backend knows a container's chain by network and container alone. If the container is on
/// the network with a second interface, both share the chain, and it goes with the first of them, as it does with the
/// reference.
///
/// # Errors
/// All steps are taken; code 999 with what failed.
pub fn delete(socket: &mut Socket, attachment: &Attachment<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let chain = plan::chain_of(attachment.network, attachment.container_id);
    failures.keep(nft::delete(socket, attachment).step(|| "remove masquerade"));
    failures.keep(iptables::delete(socket, &chain));
    failures.into_result()
}

/// Removes what masquerades on the network for attachments that are not among the valid ones.
///
/// # Errors
/// All steps are taken; code 999 with what failed.
pub fn gc(socket: &mut Socket, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let mut failures = Failures::default();
    failures.keep(nft::gc(socket, network, valid).step(|| "collect masquerade"));
    failures.keep(iptables::gc(socket, network, valid));
    failures.into_result()
}
