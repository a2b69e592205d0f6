//! `ferrule-nic`: a device plugin of the kubelet, and a driver of Dynamic Resource Allocation (DRA). It advertises the node's network
//! devices.
//!
//! - [`config`] and its selectors say which devices a resource has. Pure.
//! - [`device`], [`discovery`] and `state_file` find the devices and follow them into pods and back.
//! - [`health`], [`plan`], `preferred`, `answer` and [`report`] decide. Pure.
//! - [`tracker`] joins these to a list that stays true.
//! - [`dra`] is the driver.
//! - [`serve`] is the kubelet's side; [`daemon`] and [`arguments`] are the process.

#[macro_use]
extern crate ferrule_daemon;

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
