//! Decodes the netlink attributes of expressions, so that an existing rule can be compared with the expected
//! one.

use super::encode::{
    CT_SOURCE, DATA_VALUE, DATA_VERDICT, DYNSET_EXPR, DYNSET_UPDATE, FIB_RESULT_LINK, FIB_RESULT_TYPE,
    IMMEDIATE_DATA, LOOKUP_INVERTED, NAME, VERDICT_CHAIN,
};
use super::expr::{CmpOp, CtKey, Expr, MetaKey, PayloadBase, Register, Verdict, Xt};
use super::read::RawExpr;
use crate::ip::IpFamily;
use crate::netlink::message::{find_attr, text};

/// The attributes of an expression.
struct Data<'a>(&'a [u8]);

impl Data<'_> {
    fn number(&self, kind: u16) -> Option<u32> {
        find_attr(self.0, kind)?.try_into().ok().map(u32::from_be_bytes)
    }

    fn long(&self, kind: u16) -> Option<u64> {
        find_attr(self.0, kind)?.try_into().ok().map(u64::from_be_bytes)
    }

    fn register(&self, kind: u16) -> Option<Register> {
        self.number(kind).map(Register)
    }

    fn value(&self, kind: u16) -> Option<Vec<u8>> {
        find_attr(find_attr(self.0, kind)?, DATA_VALUE).map(<[u8]>::to_vec)
    }

    /// Whether the attribute is absent or has no bit set.
    fn is_zero(&self, kind: u16) -> bool {
        find_attr(self.0, kind).is_none_or(|value| value.iter().all(|byte| *byte == 0))
    }

    fn text(&self, kind: u16) -> Option<String> {
        find_attr(self.0, kind).map(text)
    }
}

const META_KEYS: [MetaKey; 6] =
    [MetaKey::NfProto, MetaKey::L4Proto, MetaKey::IifName, MetaKey::OifName, MetaKey::Mark, MetaKey::IifKind];
const BASES: [PayloadBase; 3] = [PayloadBase::Link, PayloadBase::Network, PayloadBase::Transport];
const CT_KEYS: [CtKey; 3] = [CtKey::Direction, CtKey::Status, CtKey::State];
const OPS: [CmpOp; 4] = [CmpOp::Eq, CmpOp::Neq, CmpOp::Lte, CmpOp::Gte];

impl RawExpr {
    /// Decodes the expression. `None` if [`Expr`] does not model it. `encode.rs` names the attribute numbers.
    pub fn decode(&self) -> Option<Expr> {
        let data = Data(&self.data);
        let is = |kind, number| data.number(kind) == Some(number);
        let meta_key = || META_KEYS.into_iter().find(|key| is(2, *key as u32));
        match self.name.as_str() {
            "meta" => match data.register(3) {
                Some(from) => Some(Expr::SetMeta { key: meta_key()?, from }),
                None => Some(Expr::Meta { key: meta_key()?, to: data.register(1)? }),
            },
            // NFTA_CT_DIRECTION
            "ct" => match find_attr(data.0, 3) {
                Some(direction) => Some(Expr::CtSource {
                    family: IpFamily::ALL.into_iter().find(|of| is(2, CT_SOURCE[*of as usize]))?,
                    is_reply: direction == [1],
                    to: data.register(1)?,
                }),
                None => Some(Expr::Ct {
                    key: CT_KEYS.into_iter().find(|key| is(2, *key as u32))?,
                    to: data.register(1)?,
                }),
            },
            "fib" if is(2, FIB_RESULT_TYPE) => {
                Some(Expr::FibType { flags: data.number(3)?, to: data.register(1)? })
            }
            "fib" if is(2, FIB_RESULT_LINK) => {
                Some(Expr::FibLink { flags: data.number(3)?, to: data.register(1)? })
            }
            "payload" => Some(Expr::Payload {
                base: BASES.into_iter().find(|base| is(2, *base as u32))?,
                offset: data.number(3)?,
                len: data.number(4)?,
                to: data.register(1)?,
            }),
            "bitwise" if data.register(1) == data.register(2) => {
                Some(Expr::Bitwise { register: data.register(1)?, mask: data.value(4)?, xor: data.value(5)? })
            }
            "cmp" => Some(Expr::Cmp {
                register: data.register(1)?,
                op: OPS.into_iter().find(|op| is(2, *op as u32))?,
                value: data.value(3)?,
            }),
            "immediate" => match data.value(IMMEDIATE_DATA) {
                Some(value) => Some(Expr::Immediate { to: data.register(1)?, value }),
                None => decode_verdict(find_attr(data.0, IMMEDIATE_DATA)?).map(Expr::Verdict),
            },
            "lookup" => {
                let (set, from) = (data.text(1)?, data.register(2)?);
                match (data.number(5).unwrap_or_default(), data.register(3)) {
                    (0, to) => Some(Expr::Lookup { set, from, to }),
                    (LOOKUP_INVERTED, None) => Some(Expr::NotIn { set, from }),
                    _ => None,
                }
            }
            // NFTA_DYNSET_SREG_DATA and a time of its own (NFTA_DYNSET_TIMEOUT) are not modelled.
            "dynset" if is(3, DYNSET_UPDATE) && data.number(5).is_none() && data.is_zero(6) => {
                let (set, from) = (data.text(1)?, data.register(4)?);
                let Some(expr) = find_attr(data.0, DYNSET_EXPR) else {
                    return Some(Expr::Renew { set, from });
                };
                let counts = Data(expr).text(NAME)? == "counter";
                counts.then_some(Expr::Count { set, from })
            }
            "counter" => Some(Expr::Counter),
            "limit" if data.long(2) == Some(1) && data.is_zero(4) && data.is_zero(5) => {
                Some(Expr::Limit { rate: data.long(1)?.try_into().ok()?, burst: data.number(3)? })
            }
            "nat" if is(1, 1) => Some(Expr::Dnat {
                family: if is(2, 10) { IpFamily::V6 } else { IpFamily::V4 },
                address: data.register(3)?,
                port: data.register(5)?,
            }),
            "masq" => Some(Expr::Masquerade { flags: data.number(1).unwrap_or_default() }),
            "match" | "target" => Some(Expr::Xt(Xt {
                is_target: self.name == "target",
                name: data.text(1)?,
                revision: data.number(2)?,
                info: find_attr(data.0, 3)?.to_vec(),
            })),
            _ => None,
        }
    }
}

/// Decodes the `NFTA_DATA_VERDICT` in `data`.
pub(super) fn decode_verdict(data: &[u8]) -> Option<Verdict> {
    let verdict = Data(find_attr(data, DATA_VERDICT)?);
    let chain = || verdict.text(VERDICT_CHAIN);
    match verdict.number(1)?.cast_signed() {
        0 => Some(Verdict::Drop),
        1 => Some(Verdict::Accept),
        -5 => Some(Verdict::Return),
        -3 => Some(Verdict::Jump(chain()?)),
        -4 => Some(Verdict::Goto(chain()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Message;
    use crate::netlink::message::find_attr;
    use crate::nftables::{FIB_DADDR, FIB_SOURCE_BY_INPUT, xt};

    fn round(expr: &Expr) -> Option<Expr> {
        let bytes = expr.encode(Message::new(0, 0, &[])).finish(0, 0).unwrap();
        let data = find_attr(&bytes[16..], 2).unwrap_or_default().to_vec();
        RawExpr { name: expr.name().to_owned(), data }.decode()
    }

    #[test]
    fn every_expression_is_encoded_and_decoded() {
        let r = Register::R1;
        let steps = [
            Expr::Meta { key: MetaKey::NfProto, to: r },
            Expr::SetMeta { key: MetaKey::Mark, from: r },
            Expr::Ct { key: CtKey::Status, to: r },
            Expr::FibType { flags: FIB_DADDR, to: r },
            Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to: Register::word(1) },
            Expr::Bitwise { register: r, mask: vec![1, 2, 3, 4], xor: vec![0; 4] },
            Expr::Cmp { register: r, op: CmpOp::Neq, value: vec![10, 0, 0] },
            Expr::Immediate { to: Register::word(4), value: vec![0, 80] },
            Expr::Verdict(Verdict::Jump("to".to_owned())),
            Expr::Verdict(Verdict::Return),
            Expr::Lookup { set: "s".to_owned(), from: r, to: None },
            Expr::Lookup { set: "s".to_owned(), from: r, to: Some(r) },
            Expr::NotIn { set: "s".to_owned(), from: r },
            Expr::Ct { key: CtKey::State, to: r },
            Expr::Lookup { set: "v".to_owned(), from: r, to: Some(Register::VERDICT) },
            Expr::Dnat { family: IpFamily::V6, address: r, port: Register::word(4) },
            Expr::Masquerade { flags: 16 },
            Expr::Meta { key: MetaKey::IifKind, to: r },
            Expr::FibLink { flags: FIB_SOURCE_BY_INPUT, to: r },
            Expr::Count { set: "s".to_owned(), from: r },
            Expr::Counter,
            Expr::Limit { rate: 10, burst: 20 },
            xt::destination_is_local(),
            xt::set_mark_bit(12),
        ];
        for step in steps {
            assert_eq!(round(&step), Some(step));
        }
    }

    #[test]
    fn unknown_and_incomplete_expressions_are_none() {
        let limit = RawExpr { name: "limit".to_owned(), data: Vec::new() };
        assert_eq!(limit.decode(), None);
        let empty = RawExpr { name: "cmp".to_owned(), data: Vec::new() };
        assert_eq!(empty.decode(), None);
    }

    #[test]
    fn register_numbers_of_words() {
        assert_eq!([0, 1, 4, 5].map(Register::word), [Register(1), Register(9), Register(2), Register(13)]);
    }
}
