//! Everything that asks the kernel about the network, or changes it.
//!
//! - [`netns`]: runs code in another network namespace.
//! - [`netlink`]: links, addresses, routes, qdiscs and filters.
//! - [`nftables`] and [`conntrack`]: the netfilter parts of netlink.
//! - [`iptables`]: reads and changes iptables rules. Only this module starts processes, and only if netlink
//!   cannot do the work.
//! - [`sysctl`] and [`lock`]: files in `/proc/sys` and lock files.
//! - [`tun`]: makes tap devices, which netlink cannot.
//! - [`dbus`]: calls methods on the system bus, for firewalld; [`unix_stream`] connects within a time limit.
//! - [`grpc`]: makes one call of a gRPC server on a Unix socket, for the kubelet.
//! - `decoders`, a feature of tests: the decoders of this crate that are not public.
//! - [`ip`]: the families IPv4 and IPv6, and IP addresses as bytes.
//! - [`observer`]: tells the program how long requests take, and their errors.
//! - [`retry`](mod@retry): repeats a change after a concurrent one.
//! - [`sorted`](fn@sorted): sorted lists without duplicates.
//!
//! This crate knows nothing of CNI and depends on no other crate of the workspace. No other crate of a
//! plugin opens netlink sockets or enters namespaces.

#![deny(missing_docs)]

pub mod conntrack;
pub mod dbus;
#[cfg(feature = "decoders")]
pub mod decoders;
pub mod grpc;
pub mod ip;
pub mod iptables;
mod limited;
pub mod lock;
pub mod netlink;
pub mod netns;
pub mod nftables;
pub mod observer;
pub mod retry;
mod sorted;
pub mod sysctl;
pub mod tun;
pub mod unix_stream;

pub use sorted::sorted;
