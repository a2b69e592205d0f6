//! The parts of `ferrule-node` against the kernel, in namespaces of their own. They need root, `ip`, `bridge` and `nft`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod endpoint;
mod guard;
mod housekeeping;
mod lab;
mod left_overs;
mod masquerade;
mod objects;
mod planted;
mod policy;
mod probe;
mod vxlan;
mod wireguard;
