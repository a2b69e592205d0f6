//! Three nodes in namespaces, the real plugins and a fake API server. Needs root.
//!
//! ```text
//!  a  192.0.2.1 ──┐
//!                 ├── hub: switch, router, API server, outside world ── 198.51.100.3  c
//!  b  192.0.2.2 ──┘
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod api;
mod claims;
mod cluster_policies;
mod conflist;
mod crowd;
mod damage;
mod firewalls;
mod guard;
mod health;
mod interface;
mod judge;
mod killed;
mod lab;
mod member;
mod networks;
mod nodes;
mod policies;
mod proved;
mod reboot;
mod switched;
mod uplink;
mod ways;
mod wireguard;
