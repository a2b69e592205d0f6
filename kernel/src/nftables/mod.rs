//! nf_tables over netlink: reads tables, chains, rules, sets and maps, and changes them in atomic batches.
//! Starts no `nft` process.
//!
//! A [`Batch`] collects requests; the kernel applies all of them or none. An [`Expr`] is one expression of a
//! rule. The functions of [`matches`](mod@matches) combine expressions so that `nft list ruleset` prints the
//! usual syntax. [`rules`], [`chains`], [`sets`], [`elements`] and [`find_elements`] read.
//! [`RawExpr::decode`] converts an expression that was read to an [`Expr`], so that a rule can be compared
//! with the expected one.
//!
//! [`change`] reads and changes, and begins again after a concurrent change.
//!
//! # Cost
//!
//! A read, and a batch that only adds, take some 10 µs. After a batch that deletes, flushes, or adds an
//! existing chain, the kernel has to free objects after an RCU grace period of 6 to 30 ms. The process waits
//! for that when the *socket is closed* (also at exit), not in the batch. So commit deletions early, do other
//! work, and close the socket last: the grace period then passes during the other work.
//!
//! # References
//! linux/netfilter/nf_tables.h; nft(8).

mod batch;
mod data_type;
mod decode;
mod delete_rules;
mod encode;
mod expr;
mod generation;
pub mod matches;
pub mod notice;
mod read;
mod set;
mod set_kinds;
mod table_state;
mod userdata;
pub mod xt;

pub use batch::Batch;
pub use data_type::{DataType, Values, link_key, link_of};
pub use delete_rules::delete_rules;
pub use expr::{
    CmpOp, CtKey, DIRECTION_REPLY, Expr, FIB_DADDR, FIB_SOURCE_BY_INPUT, FULLY_RANDOM, LOCAL, MetaKey,
    PayloadBase, Register, STATE_ESTABLISHED, STATE_KNOWN, STATE_NEW, STATE_RELATED, STATUS_DNAT, Verdict,
    Xt,
};
pub use generation::{Generation, change, generation};
pub use read::{
    Base, BaseChain, Chain, RawExpr, Rule, all_chains, all_rules, base_chains, chains, probe, rules,
};
pub use set::{Element, Value, elements, find_elements, sets};
pub use set_kinds::is_of_intervals;
pub use table_state::{TableState, is_dormant, table_state};
pub use userdata::{COMMENT_MAX, cut_comment};

use std::fmt;

use nix::errno::Errno;

use crate::ip::IpFamily;
use crate::netlink;
use crate::retry::{Limit, Prefix};

/// The attempts at a change. An attempt fails if another process changes the same objects, or, at a [`Generation`], any ruleset.
pub const ATTEMPTS: Limit = Limit { attempts: 200, changes: "ruleset changes" };

/// `NFNL_SUBSYS_NFTABLES`: the upper byte of every nf_tables message's type.
const SUBSYSTEM: u16 = 10;

/// The type of an nf_tables message.
const fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// `struct nfgenmsg`: the family, version 0, and the resource ID, which only BATCH_BEGIN and BATCH_END use.
const fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// The header of a request that does not concern a table.
const fn request_header() -> [u8; 4] {
    header(0, 0)
}

/// The family of a table: which packets it sees. Its numbers are `NFPROTO_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6 (`NFPROTO_INET`).
    Inet = 1,
    /// IPv4.
    Ip = 2,
    /// IPv6.
    Ip6 = 10,
    /// Frames that a bridge forwards.
    Bridge = 7,
}

impl Family {
    /// The family of tables that see only packets of this IP family.
    pub const fn of(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Family::Ip,
            IpFamily::V6 => Family::Ip6,
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

/// Identifies a table. Each family has its own table names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: &'a str,
}

impl<'a> Table<'a> {
    /// The table with this family and name.
    pub const fn new(family: Family, name: &'a str) -> Self {
        Table { family, name }
    }

    const fn header(&self) -> [u8; 4] {
        header(self.family as u8, 0)
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// `filter`: accepts, drops or marks packets.
    Filter,
    /// `nat`: translates addresses. Sees only the first packet of a connection.
    Nat,
}

/// The netfilter hook to which a base chain is attached (`enum nf_inet_hooks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    /// All received packets, before routing.
    Prerouting = 0,
    /// Packets to this host.
    Input = 1,
    /// Packets that this host forwards.
    Forward = 2,
    /// Packets from this host.
    Output = 3,
    /// All sent packets, after routing.
    Postrouting = 4,
}

/// The verdict for packets that reach the end of a base chain (`NF_DROP`, `NF_ACCEPT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Drop the packet.
    Drop = 0,
    /// Accept the packet.
    Accept = 1,
}

/// The properties of a base chain: a chain that the kernel calls from a netfilter hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The type of the chain.
    pub chain_type: ChainType,
    /// The hook.
    pub point: HookPoint,
    /// The priority: the chains of one hook run in ascending order.
    pub priority: i32,
    /// The verdict at the end of the chain.
    pub policy: Policy,
}

/// A failed nf_tables request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{request}: {source}")]
pub struct Error {
    /// The description of the request, such as `add chain inet t c`.
    pub request: String,
    /// The kernel's error.
    pub source: netlink::Error,
}

impl Prefix for Error {
    fn prefixed(self, text: &str) -> Self {
        Error { request: format!("{text}: {}", self.request), ..self }
    }
}

impl Error {
    /// Whether an object of the request does not exist (`ENOENT`).
    pub fn is_not_found(&self) -> bool {
        self.source.errno == Errno::ENOENT
    }

    /// Whether an object with this name or key already exists: `EEXIST`. Kernels before 5.9 return `EBUSY`
    /// for a map element with the same key and another value. Deleting a chain that is in use also returns
    /// `EBUSY`.
    pub fn is_taken(&self) -> bool {
        matches!(self.source.errno, Errno::EEXIST | Errno::EBUSY)
    }

    /// Whether another process has added or deleted an object that the batch changes, if the caller has just
    /// listed these objects; also whether objects changed during all attempts to list them
    /// ([`Socket::with_whole_dumps`](super::netlink::Socket::with_whole_dumps)).
    pub fn is_conflict(&self) -> bool {
        self.is_not_found() || self.is_taken() || self.source.errno == Errno::EINTR
    }

    /// Whether the ruleset has changed since the [`Generation`] of the batch (`ERESTART`).
    pub fn is_outdated(&self) -> bool {
        self.source.errno == Errno::ERESTART
    }
}
