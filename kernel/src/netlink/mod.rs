//! Netlink: our own encoder and decoder, and a blocking socket.
//!
//! nf_tables needs its own encoder, because no pure Rust crate supports its NAT and fib expressions and maps.
//! Links, addresses and routes use the same encoder: compared with a crate of typed packets, the plugins are
//! half as large and start faster.
//!
//! Most functions here only build a request ([`Message`]) or decode an [`Answer`]. [`Socket::request`] sends
//! one request, [`Socket::requests`] sends several at once.

pub mod addr;
pub mod bridge;
pub mod budget;
mod default_route;
pub mod deferred;
pub mod devconf;
mod error;
pub mod features;
pub mod filter;
pub mod generic;
pub mod ifb;
mod ifinfo;
pub mod link;
pub mod link_data;
pub mod mac;
pub mod message;
pub mod neighbour;
mod new_link;
pub mod notice;
pub mod nsid;
pub mod observer;
pub mod qdisc;
pub mod route;
pub mod rule;
mod socket;
pub mod stored_route;
mod tc;
pub mod transfer;
pub mod vf;
pub mod vrf;

pub use error::Error;
pub use link::{Link, LinkId};
pub use link_data::LinkData;
pub use mac::Mac;
pub use message::Message;
pub use socket::{Answer, Socket, may_be_done};
