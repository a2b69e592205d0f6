//! The driver of Dynamic Resource Allocation (DRA): pods get devices by claims.
//!
//! - `slices`, `parameters` and `claim` decide. Pure.
//! - `publish` keeps the node's ResourceSlices up to date, and `status` writes the pod's interfaces into the status of its claim.
//! - `prepare` writes a record of each claim before the kubelet starts the pod; ADD of the plugin `claims` reads it.
//! - `service`, `sockets` and `leader` serve the kubelet, also with two instances at once.
//! - [`driver`] joins them; [`list`] is `ferrule-nic claims`.

mod claim;
mod cluster;
pub mod driver;
mod leader;
pub mod list;
mod parameters;
mod prepare;
mod publish;
mod registration;
mod service;
mod slices;
mod sockets;
mod status;

pub use leader::lead;
