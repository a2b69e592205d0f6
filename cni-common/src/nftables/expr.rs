//! The steps of a rule, and how each looks on the wire.
//!
//! A rule loads something into a register, compares it, and ends in a verdict or an action. A comparison that fails
//! ends the rule.

/// A register of the kernel's little machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u32);

impl Register {
    /// Where a verdict goes.
    pub(super) const VERDICT: Register = Register(0);
    /// The first of 16 bytes, which `nft` uses wherever one is enough.
    pub const R1: Register = Register(1);

    /// The register that is `words` units of four bytes behind the start of [`Register::R1`]: how the parts of a
    /// concatenation lie. The numbers are those that the kernel gives back, so a rule read is equal to the rule written.
    pub const fn word(words: u32) -> Register {
        if words.is_multiple_of(4) { Register(1 + words / 4) } else { Register(8 + words) }
    }
}

/// What `meta` loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    /// The packet's family: 2 is IPv4, 10 is IPv6.
    NfProto,
    /// The transport protocol.
    L4Proto,
    /// The name of the interface it came in by, 16 bytes.
    IifName,
    /// The name of the interface it leaves by, 16 bytes.
    OifName,
    /// The mark, four bytes in host byte order.
    Mark,
}

/// What `ct` loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    /// 0 for a packet of the side that began, 1 for an answer.
    Direction,
    /// `IPS_*`, four bytes in host byte order.
    Status,
}

/// `IPS_DST_NAT`: the connection's destination was translated.
pub const STATUS_DNAT: u32 = 1 << 5;
/// `NFTA_FIB_F_DADDR`: look the destination address up.
pub const FIB_DADDR: u32 = 1 << 1;
/// `RTN_LOCAL`: an address of this host.
pub const LOCAL: u32 = 2;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`: `fully-random`.
pub const FULLY_RANDOM: u32 = 1 << 4;

/// From where `payload` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadBase {
    /// The IP header.
    Network,
    /// The TCP, UDP or SCTP header.
    Transport,
}

/// How `cmp` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal.
    Neq,
}

/// Where a packet goes from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On, out of this base chain.
    Accept,
    /// Nowhere.
    Drop,
    /// Back to the chain that jumped here.
    Return,
    /// To a chain, and back behind this rule.
    Jump(String),
    /// To a chain, and not back.
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

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads a fact about the packet.
    Meta {
        /// Which.
        key: MetaKey,
        /// Where to.
        to: Register,
    },
    /// Loads bytes of the packet.
    Payload {
        /// From where `offset` counts.
        base: PayloadBase,
        /// The first byte.
        offset: u32,
        /// How many.
        len: u32,
        /// Where to.
        to: Register,
    },
    /// Gives the packet the fact.
    SetMeta {
        /// Which.
        key: MetaKey,
        /// Where from.
        from: Register,
    },
    /// Loads a fact about the packet's connection.
    Ct {
        /// Which.
        key: CtKey,
        /// Where to.
        to: Register,
    },
    /// Loads the type that the routing tables give an address (`RTN_*`, four bytes in host byte order).
    FibType {
        /// Which address, and what else to look at: `NFTA_FIB_F_*`.
        flags: u32,
        /// Where to.
        to: Register,
    },
    /// Keeps the bits of a register that are set in the mask, then flips those that are set in the other.
    Bitwise {
        /// The register.
        register: Register,
        /// As many bytes as were loaded.
        mask: Vec<u8>,
        /// As many.
        xor: Vec<u8>,
    },
    /// Loads a constant.
    Immediate {
        /// Where to.
        to: Register,
        /// What.
        value: Vec<u8>,
    },
    /// Looks for a key in a set or map, and ends the rule if it is not there.
    Lookup {
        /// The set's name.
        set: String,
        /// The key's first register.
        from: Register,
        /// Where a map's value goes; `None` for a set.
        to: Option<Register>,
    },
    /// Looks for a key in a map of verdicts, and does what it says there.
    VerdictMap {
        /// The map's name.
        map: String,
        /// The key's first register.
        from: Register,
    },
    /// Sends the connection elsewhere.
    Dnat {
        /// The address is an IPv6 one.
        v6: bool,
        /// Where the address is.
        address: Register,
        /// Where the port is.
        port: Register,
    },
    /// Ends the rule unless the register compares with the value as asked.
    Cmp {
        /// The register.
        register: Register,
        /// How.
        op: CmpOp,
        /// With what.
        value: Vec<u8>,
    },
    /// Decides.
    Verdict(Verdict),
    /// Gives the connection the address of the interface it leaves by; `flags` are the kernel's `NF_NAT_RANGE_*`.
    Masquerade {
        /// 0 for none.
        flags: u32,
    },
    /// A match or a target of iptables, for a rule in a table that iptables-nft reads: see [`xt`](super::xt).
    Xt(Xt),
}
