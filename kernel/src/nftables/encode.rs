//! Encodes expressions as netlink attributes.

use super::expr::{Expr, Register, Verdict, Xt};
use crate::netlink::Message;

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

/// `NFT_FIB_RESULT_OIF`.
pub(super) const FIB_RESULT_LINK: u32 = 1;
/// `NFT_FIB_RESULT_ADDRTYPE`.
pub(super) const FIB_RESULT_TYPE: u32 = 3;
/// `NFT_DYNSET_OP_UPDATE`.
pub(super) const DYNSET_UPDATE: u32 = 1;
/// `NFTA_DYNSET_EXPR`.
pub(super) const DYNSET_EXPR: u16 = 7;
/// `NFT_CT_SRC_IP`, `NFT_CT_SRC_IP6`.
pub(super) const CT_SOURCE: [u32; 2] = [19, 21];
/// `NFT_LOOKUP_F_INV`.
pub(super) const LOOKUP_INVERTED: u32 = 1;
/// `NF_NAT_RANGE_PROTO_SPECIFIED`.
const PORT_GIVEN: u32 = 2;

impl Expr {
    /// The kernel's name of the expression.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Expr::Meta { .. } | Expr::SetMeta { .. } => "meta",
            Expr::Ct { .. } | Expr::CtSource { .. } => "ct",
            Expr::FibType { .. } | Expr::FibLink { .. } => "fib",
            Expr::Payload { .. } => "payload",
            Expr::Bitwise { .. } => "bitwise",
            Expr::Cmp { .. } => "cmp",
            Expr::Verdict(_) | Expr::Immediate { .. } => "immediate",
            Expr::Lookup { .. } | Expr::NotIn { .. } => "lookup",
            Expr::Count { .. } | Expr::Renew { .. } => "dynset",
            Expr::Counter => "counter",
            Expr::Limit { .. } => "limit",
            Expr::Dnat { .. } => "nat",
            Expr::Masquerade { .. } => "masq",
            Expr::Xt(Xt { is_target: false, .. }) => "match",
            Expr::Xt(Xt { is_target: true, .. }) => "target",
        }
    }

    /// Adds `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
    pub(super) fn encode(&self, message: Message) -> Message {
        message.attr_text(NAME, self.name()).nest(DATA, |data| self.encode_data(data))
    }

    fn encode_data(&self, data: Message) -> Message {
        match self {
            // NFTA_META_DREG, _KEY
            Expr::Meta { key, to } => data.attr_be32(1, to.0).attr_be32(2, *key as u32),
            // NFTA_PAYLOAD_DREG, _BASE, _OFFSET, _LEN
            Expr::Payload { base, offset, len, to } => {
                data.attr_be32(1, to.0).attr_be32(2, *base as u32).attr_be32(3, *offset).attr_be32(4, *len)
            }
            // NFTA_META_SREG, _KEY
            Expr::SetMeta { key, from } => data.attr_be32(2, *key as u32).attr_be32(3, from.0),
            // NFTA_CT_DREG, _KEY
            Expr::Ct { key, to } => data.attr_be32(1, to.0).attr_be32(2, *key as u32),
            // NFTA_CT_DIRECTION
            Expr::CtSource { family, is_reply, to } => data
                .attr_be32(1, to.0)
                .attr_be32(2, CT_SOURCE[*family as usize])
                .attr(3, &[u8::from(*is_reply)]),
            // NFTA_FIB_DREG, _RESULT (the address type), _FLAGS
            Expr::FibType { flags, to } => {
                data.attr_be32(1, to.0).attr_be32(2, FIB_RESULT_TYPE).attr_be32(3, *flags)
            }
            Expr::FibLink { flags, to } => {
                data.attr_be32(1, to.0).attr_be32(2, FIB_RESULT_LINK).attr_be32(3, *flags)
            }
            // NFTA_BITWISE_SREG, _DREG, _LEN, _MASK, _XOR
            Expr::Bitwise { register, mask, xor } => {
                // Cannot fail: a register has 16 bytes.
                let len = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                data.attr_be32(1, register.0)
                    .attr_be32(2, register.0)
                    .attr_be32(3, len)
                    .nest(4, |m| m.attr(DATA_VALUE, mask))
                    .nest(5, |m| m.attr(DATA_VALUE, xor))
            }
            Expr::Immediate { to, value } => {
                data.attr_be32(1, to.0).nest(IMMEDIATE_DATA, |m| m.attr(DATA_VALUE, value))
            }
            // NFTA_LOOKUP_SET, _SREG, _DREG
            Expr::Lookup { set, from, to } => {
                data.attr_text(1, set).attr_be32(2, from.0).attr_if(3, to.map(|to| to.0.to_be_bytes()))
            }
            // NFTA_LOOKUP_FLAGS
            Expr::NotIn { set, from } => {
                data.attr_text(1, set).attr_be32(2, from.0).attr_be32(5, LOOKUP_INVERTED)
            }
            // NFTA_DYNSET_SET_NAME, _OP, _SREG_KEY
            Expr::Count { set, from } => data
                .attr_text(1, set)
                .attr_be32(3, DYNSET_UPDATE)
                .attr_be32(4, from.0)
                .nest(DYNSET_EXPR, |message| Expr::Counter.encode(message)),
            Expr::Renew { set, from } => {
                data.attr_text(1, set).attr_be32(3, DYNSET_UPDATE).attr_be32(4, from.0)
            }
            // NFTA_COUNTER_BYTES, _PACKETS
            Expr::Counter => data.attr(1, &[0; 8]).attr(2, &[0; 8]),
            // NFTA_LIMIT_RATE, _UNIT (a second), _BURST, _TYPE (packets), _FLAGS
            Expr::Limit { rate, burst } => data
                .attr(1, &u64::from(*rate).to_be_bytes())
                .attr(2, &1_u64.to_be_bytes())
                .attr_be32(3, *burst)
                .attr_be32(4, 0)
                .attr_be32(5, 0),
            // NFTA_NAT_TYPE (destination), _FAMILY, _REG_ADDR_MIN, _REG_PROTO_MIN, _FLAGS
            Expr::Dnat { family, address, port } => data
                .attr_be32(1, 1)
                .attr_be32(2, family.number().into())
                .attr_be32(3, address.0)
                .attr_be32(5, port.0)
                .attr_be32(7, PORT_GIVEN),
            // NFTA_CMP_SREG, _OP, _DATA
            Expr::Cmp { register, op, value } => {
                data.attr_be32(1, register.0).attr_be32(2, *op as u32).nest(3, |m| m.attr(DATA_VALUE, value))
            }
            // NFTA_IMMEDIATE_DREG, _DATA
            Expr::Verdict(verdict) => data
                .attr_be32(1, Register::VERDICT.0)
                .nest(IMMEDIATE_DATA, |m| m.nest(DATA_VERDICT, |m| verdict.encode(m))),
            // NFTA_MASQ_FLAGS
            Expr::Masquerade { flags: 0 } => data,
            Expr::Masquerade { flags } => data.attr_be32(1, *flags),
            // NFTA_MATCH_NAME, _REV, _INFO; NFTA_TARGET_* have the same numbers
            Expr::Xt(xt) => data.attr_text(1, &xt.name).attr_be32(2, xt.revision).attr(3, &xt.info),
        }
    }
}

impl Verdict {
    /// Adds NFTA_VERDICT_CODE (`enum nft_verdicts` or `NF_*`) and, for jump and goto, NFTA_VERDICT_CHAIN.
    pub(super) fn encode(&self, message: Message) -> Message {
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
    use crate::nftables::{CmpOp, PayloadBase};

    /// The bytes of `NFTA_EXPR_DATA`.
    fn data(expr: &Expr) -> Vec<u8> {
        let bytes = expr.encode(Message::new(0, F_ACK, &[])).finish(0, 0).unwrap();
        find_attr(&bytes[16..], DATA).unwrap().to_vec()
    }

    #[test]
    fn payload_has_register_base_offset_and_length_in_network_byte_order() {
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
    fn a_value_of_three_bytes_is_padded_and_keeps_its_length() {
        let cmp = Expr::Cmp { register: Register::R1, op: CmpOp::Neq, value: vec![10, 0, 0] };
        let value = data(&cmp);
        // NFTA_CMP_DATA is nested and contains NFTA_DATA_VALUE with 3 bytes.
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
    fn masquerade_without_flags_has_no_attribute() {
        assert!(data(&Expr::Masquerade { flags: 0 }).is_empty());
        assert_eq!(data(&Expr::Masquerade { flags: 0x10 }), [8, 0, 1, 0, 0, 0, 0, 0x10]);
    }
}
