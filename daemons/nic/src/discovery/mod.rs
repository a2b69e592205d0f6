//! Finds the node's devices and keeps the list true: sysfs and uevents for
//! the buses, rtnetlink for the links.

mod dump;
mod inventory;
mod links;
mod routes;
mod sysfs;
mod uevents;

pub use inventory::{Change, Inventory};
pub use links::{Event, Watch};
pub use sysfs::Sysfs;
