//! The daemon against a fake kubelet, with veth ends as devices. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod calls;
mod devices;
mod failing;
mod faults;
mod killed;
mod lab;
mod load;
mod pci;
mod planted;
mod registration;
mod releases;
