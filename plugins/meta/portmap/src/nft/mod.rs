//! The nf_tables backend: a table of our own, [`layout`], in which the mappings are elements of maps.
//!
//! # What it costs
//!
//! [`add`] asks for seven chains and commits one batch, two round trips. Only where the table or a chain of it is missing,
//! or one of the entries is there already, it looks at what there is and changes that, by a batch that the kernel refuses
//! if anybody has changed anything meanwhile. [`delete`] and [`check`] look the owner up, and the entries at the host ports that
//! the configuration names. Only if these are not all that the owner has the maps are read, which takes the longer the more
//! host ports the node has. At each [`add`] of what has to be masqueraded the kernel itself looks through all marks, 0.12 µs
//! each.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;

use crate::plan::Entry;

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
pub mod note;
mod remove;

pub use add::{add, try_add};
pub use check::{check, is_present};
pub use establish::Conditions;
pub use gate::{Families, Gate, TableGate};
pub use list::has_own;
pub use live::{Live, abandon, live};
pub use remove::{delete, gc};

/// Has the chain stand that keeps what comes over a wire from 127.0.0.0/8, for a backend that has nothing else here.
///
/// # Errors
/// Code 999 with what the kernel refused.
pub fn guard(socket: &mut Socket) -> Result<(), CniError> {
    establish::guard(socket).context(|| "guard 127.0.0.0/8")
}

/// The gate that the table has.
///
/// # Errors
/// Code 999 if the table cannot be read.
pub fn gate(socket: &mut Socket) -> Result<TableGate, CniError> {
    establish::gate(socket).context(|| "look at the table of host ports")
}

/// All entries of the table.
///
/// # Errors
/// Code 999 if the table cannot be read.
pub fn entries(socket: &mut Socket) -> Result<Vec<Entry>, CniError> {
    let step = || "list host ports";
    let found = list::entries(socket, |_| true).context(step)?;
    list::with_marks(socket, found).context(step)
}

/// Gives the table this gate, if there is a table and its gate is another.
///
/// # Errors
/// Code 999 with what the kernel refused.
pub fn switch(socket: &mut Socket, gate: Gate) -> Result<(), CniError> {
    establish::switch(socket, gate).context(|| "switch the gate of host ports")
}

/// How often what was read is read again because somebody changed a ruleset meanwhile.
const TRIES: u32 = 200;
