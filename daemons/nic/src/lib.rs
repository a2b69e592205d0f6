//! `ferrule-nic`: a device plugin of the kubelet, and a driver of Dynamic Resource Allocation (DRA). It advertises the node's network
//! devices.
//!
//! - [`config`] and its selectors say which devices a resource has. Pure.
//! - [`device`], [`discovery`] and `state_file` find the devices and follow them into pods and back.
//! - [`health`], [`plan`], `preferred`, `answer` and [`report`] decide. Pure.
//! - [`tracker`] joins these to a list that stays true.
//! - [`dra`] is the driver.
//! - [`serve`] is the kubelet's side; [`daemon`] and [`arguments`] are the process.

/// Writes a line to standard error, without what a terminal obeys. `eprintln!` panics if that fails, for example on a full disk.
macro_rules! log {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", cni_common::line::Line::new(format_args!($($text)*)));
    }};
}

mod answer;
pub mod arguments;
pub mod config;
pub mod daemon;
pub mod device;
pub mod discovery;
pub mod dra;
pub mod health;
pub mod plan;
mod preferred;
pub mod report;
pub mod serve;
mod state_file;
pub mod tracker;
