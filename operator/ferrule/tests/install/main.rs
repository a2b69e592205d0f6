//! `ferrule install`, `rollback`, `uninstall` and `status`, in folders on a tmpfs, with scripts that act as
//! plugins.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod back;
mod chain;
mod concurrent;
mod fixture;
mod host_ports;
mod index;
mod installing;
mod interrupted;
mod refusals;
mod status;
mod takeover;
