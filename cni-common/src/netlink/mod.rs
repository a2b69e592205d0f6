//! Netlink: the one place that sends messages to the kernel.
//!
//! An encoder of our own on a blocking socket. nf_tables needs one anyway, since no pure Rust crate has its NAT, fib and
//! maps; used for links, addresses and routes as well it makes the plugins half as large and starts them faster than a
//! crate of typed packets does.

pub mod addr;
pub mod filter;
pub mod ifb;
pub mod link;
pub mod mac;
pub mod message;
pub mod nsid;
pub mod qdisc;
pub mod route;
mod socket;
mod tc;

pub use link::{Link, LinkId};
pub use mac::Mac;
pub use message::Message;
pub use socket::{Answer, BatchError, Error, Socket};
