//! The driver of Dynamic Resource Allocation (DRA): pods get devices by claims.
//!
//! - `nic`, `slices`, `parameters` and `claim` decide. Pure.
//! - `publish` keeps the node's ResourceSlices true, and `status` tells in a claim's status what ADD has made of it.
//! - `prepare` writes a record of each claim before the kubelet starts the pod; ADD of `host-device` reads it.
//! - `service`, `sockets` and `leader` are the kubelet's side, also for two instances at once.
//! - [`driver`] joins them; [`list`] is `ferrule-nic claims`.

mod claim;
mod cluster;
pub mod driver;
mod leader;
pub mod list;
mod nic;
mod parameters;
mod prepare;
mod publish;
mod registration;
mod service;
mod slices;
mod sockets;
mod status;

pub use leader::lead;
pub use nic::Nic;
