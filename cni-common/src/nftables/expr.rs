//! The steps of a rule, and how each looks on the wire.
//!
//! A rule loads something into a register, compares it, and ends in a verdict or an action. A comparison that fails
//! ends the rule.

use crate::netlink::Message;

/// A register of the kernel's little machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u32);

impl Register {
    /// Where a verdict goes.
    const VERDICT: Register = Register(0);
    /// The first of 16 bytes, which `nft` uses wherever one is enough.
    pub const R1: Register = Register(1);
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
}

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
    /// Keeps the bits of a register that are set in the mask.
    Mask {
        /// The register.
        register: Register,
        /// As many bytes as were loaded.
        mask: Vec<u8>,
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
}

/// `NFTA_EXPR_NAME`.
pub(super) const NAME: u16 = 1;
/// `NFTA_EXPR_DATA`.
pub(super) const DATA: u16 = 2;
/// `NFTA_DATA_VALUE`.
pub(super) const DATA_VALUE: u16 = 1;
/// `NFTA_DATA_VERDICT`.
pub(super) const DATA_VERDICT: u16 = 2;
/// `NFTA_VERDICT_CHAIN`.
pub(super) const VERDICT_CHAIN: u16 = 2;
/// `NFTA_IMMEDIATE_DATA`.
pub(super) const IMMEDIATE_DATA: u16 = 2;

impl Expr {
    /// The kernel's name for it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Expr::Meta { .. } => "meta",
            Expr::Payload { .. } => "payload",
            Expr::Mask { .. } => "bitwise",
            Expr::Cmp { .. } => "cmp",
            Expr::Verdict(_) => "immediate",
            Expr::Masquerade { .. } => "masq",
        }
    }

    /// Adds `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
    pub(super) fn encode(&self, message: Message) -> Message {
        message.attr_text(NAME, self.name()).nest(DATA, |data| self.encode_data(data))
    }

    fn encode_data(&self, data: Message) -> Message {
        match self {
            // NFTA_META_DREG, _KEY
            Expr::Meta { key, to } => data.attr_be32(1, to.0).attr_be32(2, key.number()),
            // NFTA_PAYLOAD_DREG, _BASE, _OFFSET, _LEN
            Expr::Payload { base, offset, len, to } => {
                data.attr_be32(1, to.0).attr_be32(2, base.number()).attr_be32(3, *offset).attr_be32(4, *len)
            }
            // NFTA_BITWISE_SREG, _DREG, _LEN, _MASK, _XOR
            Expr::Mask { register, mask } => {
                // A register has 16 bytes.
                let len = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                data.attr_be32(1, register.0)
                    .attr_be32(2, register.0)
                    .attr_be32(3, len)
                    .nest(4, |m| m.attr(DATA_VALUE, mask))
                    .nest(5, |m| m.attr(DATA_VALUE, &vec![0; mask.len()]))
            }
            // NFTA_CMP_SREG, _OP, _DATA
            Expr::Cmp { register, op, value } => {
                data.attr_be32(1, register.0).attr_be32(2, op.number()).nest(3, |m| m.attr(DATA_VALUE, value))
            }
            // NFTA_IMMEDIATE_DREG, _DATA
            Expr::Verdict(verdict) => data
                .attr_be32(1, Register::VERDICT.0)
                .nest(IMMEDIATE_DATA, |m| m.nest(DATA_VERDICT, |m| verdict.encode(m))),
            // NFTA_MASQ_FLAGS
            Expr::Masquerade { flags: 0 } => data,
            Expr::Masquerade { flags } => data.attr_be32(1, *flags),
        }
    }
}

impl MetaKey {
    /// `enum nft_meta_keys`.
    const fn number(self) -> u32 {
        match self {
            MetaKey::IifName => 6,
            MetaKey::NfProto => 15,
            MetaKey::L4Proto => 16,
        }
    }
}

impl PayloadBase {
    /// `enum nft_payload_bases`.
    pub(super) const fn number(self) -> u32 {
        match self {
            PayloadBase::Network => 1,
            PayloadBase::Transport => 2,
        }
    }
}

impl CmpOp {
    /// `enum nft_cmp_ops`.
    pub(super) const fn number(self) -> u32 {
        match self {
            CmpOp::Eq => 0,
            CmpOp::Neq => 1,
        }
    }
}

impl Verdict {
    /// `enum nft_verdicts` and `NF_*`, then the chain: NFTA_VERDICT_CODE, _CHAIN.
    fn encode(&self, message: Message) -> Message {
        let code = |message: Message, code: i32| message.attr(1, &code.to_be_bytes());
        match self {
            Verdict::Drop => code(message, 0),
            Verdict::Accept => code(message, 1),
            Verdict::Return => code(message, -5),
            Verdict::Jump(chain) => code(message, -3).attr_text(VERDICT_CHAIN, chain),
            Verdict::Goto(chain) => code(message, -4).attr_text(VERDICT_CHAIN, chain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::{F_ACK, find_attr};

    /// The bytes of `NFTA_EXPR_DATA`.
    fn data(expr: &Expr) -> Vec<u8> {
        let bytes = expr.encode(Message::new(0, F_ACK, &[])).finish(0, 0);
        find_attr(&bytes[16..], DATA).unwrap().to_vec()
    }

    #[test]
    fn a_load_names_register_base_offset_and_length_in_network_order() {
        let load = Expr::Payload { base: PayloadBase::Network, offset: 12, len: 4, to: Register::R1 };
        let wire = [
            [8, 0, 1, 0, 0, 0, 0, 1],
            [8, 0, 2, 0, 0, 0, 0, 1],
            [8, 0, 3, 0, 0, 0, 0, 12],
            [8, 0, 4, 0, 0, 0, 0, 4],
        ];
        assert_eq!(data(&load), wire.concat());
    }

    #[test]
    fn values_that_are_no_multiple_of_four_bytes_are_padded_but_keep_their_length() {
        let cmp = Expr::Cmp { register: Register::R1, op: CmpOp::Neq, value: vec![10, 0, 0] };
        let value = data(&cmp);
        // NFTA_CMP_DATA, nested, holds NFTA_DATA_VALUE of three bytes.
        assert_eq!(value[16..], [12, 0, 3, 0x80, 7, 0, 1, 0, 10, 0, 0, 0]);
    }

    #[test]
    fn verdicts_are_negative_numbers_with_a_chain() {
        let verdict = data(&Expr::Verdict(Verdict::Goto("to".to_owned())));
        let inner = find_attr(find_attr(&verdict, IMMEDIATE_DATA).unwrap(), DATA_VERDICT).unwrap();
        assert_eq!(find_attr(inner, 1).unwrap(), (-4_i32).to_be_bytes());
        assert_eq!(find_attr(inner, VERDICT_CHAIN).unwrap(), b"to\0");
    }

    #[test]
    fn no_flags_no_attribute() {
        assert!(data(&Expr::Masquerade { flags: 0 }).is_empty());
        assert_eq!(data(&Expr::Masquerade { flags: 0x10 }), [8, 0, 1, 0, 0, 0, 0, 0x10]);
    }
}
