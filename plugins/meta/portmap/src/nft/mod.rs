//! The nf_tables backend: a table of our own, [`layout`], whose maps have one element for each host port.
//!
//! # Cost
//!
//! [`look`] asks for all chains at once, and [`add_only`] commits one batch. [`replace`] runs only if the
//! table or a chain of every table is missing, or if a host port exists already. It lists the table and commits a batch
//! that the kernel refuses after a concurrent change. [`delete`] and [`check`] ask for the owner and the host
//! ports of the configuration. Only if the owner has more host ports than that, they list the maps, which
//! takes time in proportion to the host ports of the node. For an ADD with masquerading the kernel walks all
//! mark elements of the table, 0.12 µs each.

use cni_common::spec::{CniError, Code};
use ferrule_kernel::nftables::Error;

mod add;
mod check;
mod dead;
pub mod element;
mod establish;
pub mod gate;
pub mod layout;
mod list;
pub mod maps;
pub mod owner_metadata;
mod pods;
mod remove;

pub use add::{Purpose, add_only, ensure_free, finish, replace};
pub use check::{check, find};
pub use dead::drop_dead;
pub use element::Owned;
pub use establish::{create_guard, gate, look, switch};
pub use gate::Gate;
pub use list::{Exported, OwnerPorts, Present, has_own, list, list_by_owner, list_owners};
pub use remove::{delete, delete_dead, delete_owned, gc};

/// The error of a change of the table: code 11 after 200 concurrent changes; code 999 if the kernel refuses a request.
fn refused(step: &str) -> impl FnOnce(Error) -> CniError {
    move |error| {
        let code = if error.is_outdated() { Code::TryAgainLater } else { Code::Internal };
        CniError::new(code, format!("{step}: {error}"))
    }
}
