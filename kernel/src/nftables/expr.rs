//! The expressions of rules.
//!
//! A rule loads packet data or metadata into registers, compares them, and ends with a verdict or an action.
//! A failed comparison ends the rule.

use crate::ip::IpFamily;

/// A register of the nf_tables virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u32);

impl Register {
    /// `NFT_REG_VERDICT`: the register for verdicts.
    pub const VERDICT: Register = Register(0);
    /// `NFT_REG_1`: the first register of 16 bytes. `nft` uses it wherever one register is enough.
    pub const R1: Register = Register(1);

    /// The register that starts `words` × 4 bytes after the start of [`Register::R1`], for the parts of a
    /// concatenation. Uses the same register numbers as the kernel's answers, so that a rule that was read
    /// equals the added rule.
    pub const fn word(words: u32) -> Register {
        if words.is_multiple_of(4) { Register(1 + words / 4) } else { Register(8 + words) }
    }
}

/// The metadata that a `meta` expression loads or sets (`enum nft_meta_keys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    /// The family of the packet, 1 byte: 2 for IPv4, 10 for IPv6.
    NfProto = 15,
    /// The transport protocol number, 1 byte.
    L4Proto = 16,
    /// The name of the input interface, 16 bytes.
    IifName = 6,
    /// The name of the output interface, 16 bytes.
    OifName = 7,
    /// The packet mark, 4 bytes in host byte order.
    Mark = 3,
    /// The kind of the input interface, such as `veth`, 16 bytes.
    IifKind = 26,
}

/// The conntrack data that a `ct` expression loads (`enum nft_ct_keys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    /// The direction, 1 byte: 0 for a packet in the original direction, 1 for a reply.
    Direction = 1,
    /// `IPS_*`, 4 bytes in host byte order.
    Status = 2,
    /// `NF_CT_STATE_BIT`, 4 bytes in host byte order.
    State = 0,
}

/// The states `established` and `related`.
pub const STATE_KNOWN: u32 = 2 | 4;
/// The state `established`.
pub const STATE_ESTABLISHED: u32 = 2;
/// The state `related`: an error about a connection, or a connection that another one has announced.
pub const STATE_RELATED: u32 = 4;
/// The connection's second direction: packets of its server.
pub const DIRECTION_REPLY: u8 = 1;
/// The state `new`.
pub const STATE_NEW: u32 = 8;

/// `IPS_DST_NAT`: the connection's destination was translated.
pub const STATUS_DNAT: u32 = 1 << 5;
/// `NFTA_FIB_F_DADDR`: find the type of the destination address.
pub const FIB_DADDR: u32 = 1 << 1;
/// `NFTA_FIB_F_SADDR`, `_IIF` and `_PRESENT`: whether the way to the source address leads to the input interface.
pub const FIB_SOURCE_BY_INPUT: u32 = 1 | 1 << 3 | 1 << 5;
/// `RTN_LOCAL`: a local address of this namespace.
pub const LOCAL: u32 = 2;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`: `fully-random`.
pub const FULLY_RANDOM: u32 = 1 << 4;

/// The header from whose start a `payload` expression counts its offset (`enum nft_payload_bases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadBase {
    /// The Ethernet header.
    Link = 0,
    /// The IP header.
    Network = 1,
    /// The TCP, UDP or SCTP header.
    Transport = 2,
}

/// The operator of a `cmp` expression (`enum nft_cmp_ops`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Neq = 1,
    /// Less or equal, in network byte order.
    Lte = 3,
    /// Greater or equal.
    Gte = 5,
}

/// A verdict on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ends this base chain; the packet continues.
    Accept,
    /// Drops the packet.
    Drop,
    /// Returns to the calling chain.
    Return,
    /// Calls a chain, and continues after this rule when that chain returns.
    Jump(String),
    /// Continues in a chain, without returning to this one.
    Goto(String),
}

/// An extension of iptables (`xt_*`), carried by nf_tables as `nft_compat` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xt {
    /// A target ends the rule with an action; a match only tests the packet.
    pub is_target: bool,
    /// The extension's name, as in `-m NAME` or `-j NAME`.
    pub name: String,
    /// The version of the layout of `info`.
    pub revision: u32,
    /// The extension's C struct in host byte order, padded to a multiple of 8 bytes (`XT_ALIGN`).
    pub info: Vec<u8>,
}

/// One expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads metadata of the packet.
    Meta {
        /// The metadata.
        key: MetaKey,
        /// Destination register.
        to: Register,
    },
    /// Loads bytes of the packet.
    Payload {
        /// The header from which `offset` counts.
        base: PayloadBase,
        /// Offset of the first byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
        /// Destination register.
        to: Register,
    },
    /// Sets metadata of the packet.
    SetMeta {
        /// The metadata.
        key: MetaKey,
        /// Source register.
        from: Register,
    },
    /// Loads conntrack data of the packet's connection.
    Ct {
        /// The conntrack data.
        key: CtKey,
        /// Destination register.
        to: Register,
    },
    /// Loads the source of the packets of the connection in one direction: that of the reply is the server behind a translation.
    CtSource {
        /// The family of the connection.
        family: IpFamily,
        /// Whether it is the second direction.
        is_reply: bool,
        /// Destination register.
        to: Register,
    },
    /// Loads the type of an address from the routing tables (`RTN_*`, 4 bytes in host byte order).
    FibType {
        /// `NFTA_FIB_F_*`: which address, and restrictions.
        flags: u32,
        /// Destination register.
        to: Register,
    },
    /// Asks the routing tables for a link; with `NFTA_FIB_F_PRESENT` loads 1 if there is one, else 0, 1 byte.
    FibLink {
        /// `NFTA_FIB_F_*`: which address, and restrictions.
        flags: u32,
        /// Destination register.
        to: Register,
    },
    /// Changes a register in place: `register = (register & mask) ^ xor`.
    Bitwise {
        /// Source and destination register.
        register: Register,
        /// As long as the loaded data.
        mask: Vec<u8>,
        /// As long as `mask`.
        xor: Vec<u8>,
    },
    /// Loads a constant.
    Immediate {
        /// Destination register.
        to: Register,
        /// The constant.
        value: Vec<u8>,
    },
    /// Finds a key in a set or map. Ends the rule if the key does not exist.
    Lookup {
        /// The name of the set or map.
        set: String,
        /// The first register of the key.
        from: Register,
        /// Destination register for the value of a map, [`Register::VERDICT`] to apply it; `None` for a set.
        to: Option<Register>,
    },
    /// Ends the rule if a key exists in a set.
    NotIn {
        /// The name of the set.
        set: String,
        /// The first register of the key.
        from: Register,
    },
    /// Adds a key to a set, or renews its time, and counts the packet there. Ends the rule if the set is full.
    Count {
        /// The name of the set.
        set: String,
        /// The first register of the key.
        from: Register,
    },
    /// Adds a key to a set, or renews its time. Ends the rule if the set is full.
    Renew {
        /// The name of the set.
        set: String,
        /// The first register of the key.
        from: Register,
    },
    /// Counts the packet and its bytes. A counter that was read equals a new one.
    Counter,
    /// Ends the rule above this number of packets a second, after the first `burst` ones.
    Limit {
        /// Packets a second.
        rate: u32,
        /// The packets that may come at once.
        burst: u32,
    },
    /// Translates the destination address and port of the connection.
    Dnat {
        /// The family of the connection and of the new address.
        family: IpFamily,
        /// The register with the new address.
        address: Register,
        /// The register with the new port.
        port: Register,
    },
    /// Compares a register with a value. Ends the rule if the comparison is false.
    Cmp {
        /// The register.
        register: Register,
        /// The operator.
        op: CmpOp,
        /// The value.
        value: Vec<u8>,
    },
    /// Applies a verdict.
    Verdict(Verdict),
    /// Translates the source address of the connection to the address of the output interface.
    Masquerade {
        /// The kernel's `NF_NAT_RANGE_*`; 0 for none.
        flags: u32,
    },
    /// A match or a target of iptables, for a rule in a table that iptables-nft reads: see [`xt`](super::xt).
    Xt(Xt),
}
