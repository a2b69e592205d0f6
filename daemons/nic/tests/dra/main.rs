//! The driver of Dynamic Resource Allocation against a fake kubelet and a fake API server, with veth ends as devices. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod claims;
mod cluster;
mod instances;
#[allow(dead_code, reason = "the device plugin's tests use all of it")]
#[path = "../daemon/lab.rs"]
mod lab;
mod manifest;
mod outages;
mod pods;
mod slices;
