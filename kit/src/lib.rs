//! What several plugins share. Everything here joins the types of CNI (`cni-common`) with the kernel
//! (`ferrule-kernel`), which do not know each other.
//!
//! - [`config`]: the keys that interface plugins share: MTU, MAC address, `dns`, `ipam.routes`.
//! - [`ipam`]: calls the IPAM plugin, if the network has one, and releases its addresses if ADD fails; a check that IPAM plugins share.
//! - [`plan`]: what ADD gives the container's interface, and the result that reports it. Pure.
//! - [`veth`]: creates the veth or netkit pair in the container's namespace with one request; finds the host's end; deletes the pair without a namespace.
//! - [`leftover`]: DEL: links and addresses that the container has hidden from it. The plan is pure.
//! - [`container`]: sysctls, addresses and routes of the container's interface.
//! - [`presence`]: whether a container's network namespace still exists, and what proves that it does not.
//! - [`address_wait`]: waits until the kernel answers for new IPv6 addresses, or for duplicate address detection, if the configuration asks for it.
//! - [`steps`]: requests with names for errors, sent in one batch; the undo stack of ADD.
//! - [`check`]: CHECK of the container's interface: `prevResult`, link, MAC address, addresses, routes.
//! - [`repair`]: `ferrule repair` of the container's interface and of the host's end of its pair.
//! - [`route`]: routes for the kernel; attributes that results before 1.1.0 lose.
//! - [`fold`]: a network as a list of plugins, or as one `chain`. Pure.
//! - [`sysctl`], [`hash`]: forwarding and router advertisements; the hashes in names of chains and links.
//! - [`origin`]: what other networks of clusters leave on a node.
//! - [`owner`]: owner labels: comments that name the attachment of an nf_tables element.
//! - [`fixed_chain`]: chains of nf_tables with fixed rules: firewall, policy.
//! - [`dead`]: which of the objects that the operator's tool removes together are still to go.
//! - [`table`]: the rules, routes and unused routing tables of a container; the lock of the plugins that choose one: sbr, vrf.
//! - [`sysfs`]: devices on a bus, and their links.
//! - [`state_file`]: a file that keeps the state of one attachment until DEL.
//! - [`remedy`]: what an operator can do about causes that several plugins meet, for the errors that `ferrule doctor` shows.
//! - [`socket`], [`netns`], [`lock`]: what `ferrule-kernel` opens, enters and locks, with CNI errors.

#![deny(missing_docs)]

pub mod address_wait;
pub mod boot;
pub mod check;
pub mod cluster;
pub mod config;
pub mod container;
pub mod dead;
pub mod fixed_chain;
pub mod fold;
pub mod hash;
pub mod ipam;
pub mod leftover;
pub mod lock;
pub mod netns;
pub mod origin;
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
