//! The nf_tables backend: a table of our own, [`layout`], whose maps have one element for each host port.
//!
//! # Cost
//!
//! [`look`] looks up all chains at once, and [`add_only`] commits one batch. [`replace`] runs only if the
//! table or a chain is missing, or if a host port exists already. It lists the table and commits a batch
//! that the kernel refuses after a concurrent change. [`delete`] and [`check`] look up the owner and the host
//! ports of the configuration. Only if the owner has more host ports than that, they list the maps, which
//! takes time in proportion to the host ports of the node. For an ADD with masquerading the kernel walks all
//! mark elements of the table, 0.12 µs each.

use cni_common::spec::{CniError, Code, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::Error;
use ferrule_kernel::retry::Limit;
use ferrule_kit::retry::retry;

use crate::plan::HostPort;

mod add;
mod change;
mod check;
pub mod element;
mod establish;
pub mod gate;
pub mod layout;
mod list;
mod live;
pub mod maps;
pub mod owner_metadata;
mod remove;

pub use add::{add_only, look, replace};
pub use check::{Prerouting, check, find, prerouting};
pub use establish::Conditions;
pub use gate::{Families, Gate, TableGate};
pub use list::{Elements, has_own};
pub use live::{OwnedHostPorts, delete_owned, host_ports_by_owner, labelled_host_ports, sandboxes};
pub use remove::{delete, delete_if, gc};

use layout::{GUARD, TABLE};

/// Creates the guard for the iptables backend, which has no other objects in the table.
///
/// # Errors
/// Code 999 if the kernel refuses the batch.
pub fn create_guard(socket: &mut Socket) -> Result<(), CniError> {
    establish::create_guard(socket).context(|| format!("create chain {GUARD:?} of table {TABLE}"))
}

/// Reads which gate the table has.
///
/// # Errors
/// Code 999 if the kernel refuses to list the rules.
pub fn gate(socket: &mut Socket) -> Result<TableGate, CniError> {
    establish::gate(socket).context(|| format!("read the gate of table {TABLE}"))
}

/// Lists all host ports of the table.
///
/// # Errors
/// Code 999 if the kernel refuses to list the maps.
pub fn host_ports(socket: &mut Socket) -> Result<Vec<HostPort>, CniError> {
    let step = || "list host ports";
    let found = list::dnat_elements(socket, |_| true).context(step)?;
    list::with_masquerades(socket, found).context(step)
}

/// Gives the table this gate. Does nothing if there is no table or the table has the gate already.
///
/// # Errors
/// Code 999 if the kernel refuses the batch.
pub fn switch(socket: &mut Socket, gate: Gate) -> Result<(), CniError> {
    establish::switch(socket, gate).context(|| format!("replace the gate of table {TABLE}"))
}

/// The attempts at a change. An attempt fails if the ruleset has changed since it was listed.
pub const ATTEMPTS: Limit = Limit { attempts: 200, changes: "ruleset changes" };

/// Makes a change of the table. `attempt` reads the generation, lists the table, and commits the change at
/// that generation. Its inner error is the answer of the kernel to the batch.
///
/// # Errors
/// The outer error of `attempt`; code 11 after 200 concurrent changes; code 999 if the kernel refuses the
/// batch.
fn repeat<T>(step: &str, attempt: impl FnMut() -> Result<Result<T, Error>, CniError>) -> Result<T, CniError> {
    retry(ATTEMPTS, Error::is_outdated, attempt)?.map_err(|error| {
        let code = if error.is_outdated() { Code::TryAgainLater } else { Code::Internal };
        CniError::new(code, format!("{step}: {error}"))
    })
}
