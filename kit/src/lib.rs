//! What several plugins share. Everything here joins the types of CNI (`cni-common`) with the kernel
//! (`ferrule-kernel`), which do not know each other.

#![deny(missing_docs)]

pub mod address_wait;
pub mod boot;
pub mod check;
pub mod cluster;
pub mod config;
pub mod container;
pub mod hash;
pub mod ipam;
pub mod leftover;
pub mod lock;
pub mod netns;
pub mod owner;
pub mod plan;
pub mod presence;
pub mod remedy;
pub mod repair;
pub mod route;
pub mod router_wait;
pub mod socket;
pub mod state_file;
pub mod steps;
pub mod sysctl;
pub mod sysfs;
pub mod table;
pub mod veth;

/// The allocator of every program that uses this crate: the plugins and their tests. That of musl makes a system
/// call for nearly each block above 2 KiB, and a page fault for each size of block.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
