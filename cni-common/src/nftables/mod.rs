//! nf_tables over netlink: tables, chains, rules, sets and maps, written in atomic batches and read without an `nft`
//! process.
//!
//! A [`Batch`] collects requests, and the kernel carries out all of them or none. An [`Expr`] is one step of a rule; the
//! functions of [`matches`](mod@matches) put steps together so that `nft list ruleset` prints what somebody would have
//! typed. [`rules`], [`chains`], [`sets`], [`elements`] and [`find_elements`] read; [`RawExpr::decode`] makes a step of
//! what was read, so that a rule can be compared with the one that should be there.
//!
//! To change only what is as it was when it was read, ask for the [`generation`] first and commit the batch with it.
//!
//! # What it costs
//!
//! A batch that only adds, and any read, is a round trip of some ten microseconds. A batch that deletes, flushes, or adds a
//! chain that exists already leaves work behind that has to wait for an RCU grace period, 6 to 30 ms. The kernel makes
//! the process wait for it when the *socket is closed*, process exit included, and not in the batch. So whoever deletes
//! should commit early, do its other work, and close the socket last: the grace period passes meanwhile.
//!
//! # References
//! linux/netfilter/nf_tables.h; nft(8).

mod batch;
mod decode;
mod encode;
mod expr;
mod generation;
pub mod matches;
mod read;
mod set;
mod userdata;
pub mod xt;

pub use batch::Batch;
pub use expr::{
    CmpOp, CtKey, Expr, FIB_DADDR, FULLY_RANDOM, LOCAL, MetaKey, PayloadBase, Register, STATUS_DNAT, Verdict,
    Xt,
};
pub use generation::{Generation, generation};
pub use read::{Chain, RawExpr, Rule, all_chains, chains, probe, rules};
pub use set::{DataType, Element, Value, Values, elements, find_elements, sets};
pub use userdata::{COMMENT_MAX, cut_comment};

use std::fmt;

use nix::errno::Errno;

use crate::netlink;

/// `NFNL_SUBSYS_NFTABLES`: the upper byte of every nf_tables message's type.
const SUBSYSTEM: u16 = 10;

/// The type of an nf_tables message.
const fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// `struct nfgenmsg`: the family, version 0, and a resource that only the frame of a batch uses.
const fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// The header of a request that is about no table.
const fn request_header() -> [u8; 4] {
    header(0, 0)
}

/// Which packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6 (`NFPROTO_INET`).
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// What crosses a bridge.
    Bridge,
}

impl Family {
    /// The number in a message's header.
    const fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Ip => 2,
            Family::Bridge => 7,
            Family::Ip6 => 10,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Bridge => "bridge",
        })
    }
}

/// A table's name, which is its own in each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: &'a str,
}

impl<'a> Table<'a> {
    /// The table of that family and name.
    pub const fn new(family: Family, name: &'a str) -> Self {
        Table { family, name }
    }

    const fn header(&self) -> [u8; 4] {
        header(self.family.number(), 0)
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// What a base chain does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// Let pass, drop, mark.
    Filter,
    /// Translate addresses: sees the first packet of a connection only.
    Nat,
}

/// Where on a packet's way a base chain sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// As it arrives.
    Prerouting,
    /// If it is for this host.
    Input,
    /// If it is for another.
    Forward,
    /// If it is this host's own.
    Output,
    /// As it leaves.
    Postrouting,
}

/// What becomes of a packet that reaches a base chain's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It is dropped.
    Drop,
    /// It goes on.
    Accept,
}

/// What makes a chain a base chain, into which the kernel sends packets of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// What the chain does.
    pub chain_type: ChainType,
    /// Where it sits.
    pub point: HookPoint,
    /// Its place among the chains there: lower is earlier.
    pub priority: i32,
    /// What its end means.
    pub policy: Policy,
}

/// Why nf_tables refused: which request, and what the kernel said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{request}: {source}")]
pub struct Error {
    /// The request in words.
    pub request: String,
    /// The kernel's answer.
    pub source: netlink::Error,
}

impl Error {
    /// Whether something that the request names does not exist (`ENOENT`).
    pub fn is_not_found(&self) -> bool {
        self.source.errno == Errno::ENOENT
    }

    /// Whether something of that name or key exists already: `EEXIST`, and `EBUSY` from kernels before 5.9 for a map's key
    /// that leads elsewhere.
    pub fn is_taken(&self) -> bool {
        matches!(self.source.errno, Errno::EEXIST | Errno::EBUSY)
    }

    /// Whether the ruleset has changed since the [`Generation`] that the batch was made for.
    pub fn is_outdated(&self) -> bool {
        self.source.errno == Errno::ERESTART
    }
}
