//! The daemon and the plugin on a node with a bridge, against test servers and against dnsmasq. Needs root and dnsmasq.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod crowd;
mod dnsmasq;
mod failing;
mod faults;
mod ipv6;
mod killed;
mod lab;
mod life;
mod peers;
mod planted;
mod renewals;
mod restart;
mod rogue;
mod server;
mod server6;
mod service;
