//! Everything that asks the kernel about the network, or changes it.
//!
//! - [`netns`]: runs code in another network namespace; [`netns_file`] makes one with a path.
//! - [`netlink`]: links, addresses, routes, qdiscs and filters.
//! - [`nftables`] and [`conntrack`]: the netfilter parts of netlink.
//! - [`iptables`]: reads and changes iptables rules. Only this module starts processes, and only if netlink
//!   cannot do the work.
//! - [`sysctl`] and [`lock`]: files in `/proc/sys` and lock files.
//! - [`tun`]: makes tap devices, which netlink cannot.
//! - [`unix_stream`]: a connection to a Unix socket that waits for nothing longer than its limit.
//! - [`ip`]: the families IPv4 and IPv6, and IP addresses as bytes.
//! - [`ping`]: sockets for echo requests.
//! - [`probe`](mod@probe): asks on a link whether a host has an address.
//! - [`notices`]: waits for the kernel's messages about changes.
//! - [`budget`]: limits what one container may cost.
//! - [`observer`]: reports to the program how long requests take, and their errors.
//! - [`retry`](mod@retry): repeats a change after a concurrent one.
//! - [`sorted`](fn@sorted): sorted lists without duplicates.
//!
//! This crate knows nothing of CNI and depends on no other crate of the workspace. No other crate of a
//! plugin opens netlink sockets or enters namespaces.

#![deny(missing_docs)]

pub mod conntrack;
pub mod file;
pub mod ip;
pub mod iptables;
mod limited;
pub mod lock;
pub mod netlink;
pub mod netns;
pub mod netns_file;
pub mod nftables;
pub mod notices;
pub mod ping;
pub mod probe;
pub mod retry;
mod sorted;
pub mod sysctl;
pub mod tun;
pub mod unix_stream;

pub use netlink::{budget, observer};
pub use sorted::sorted;
