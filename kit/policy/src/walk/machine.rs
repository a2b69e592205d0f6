//! One rule: registers, and what its expressions do with them.

use ferrule_kernel::nftables::{CmpOp, CtKey, Expr, MetaKey, Register, STATE_NEW, Value, Verdict};

use super::packet::{Bytes, Packet};
use super::set::Found;
use super::{Step, Tables};

/// The bytes of all registers.
const SIZE: usize = 80;
/// The length of a link's name with its zeros.
const NAME: usize = 16;

/// What a rule does with the packet.
pub(super) enum Outcome {
    /// It does not match, or only counts.
    Not,
    /// It matches, if what is not known is as it asks.
    Maybe,
    Verdict(Verdict),
    Masquerade,
    /// An expression is not understood.
    Unknown(String),
}

struct Registers([Option<u8>; SIZE]);

impl Registers {
    /// The place of the first byte. The registers of 16 bytes and those of 4 are the same memory.
    fn at(register: Register) -> usize {
        match register.0 {
            wide @ 1..=4 => (wide as usize - 1) * 16,
            word => (word.max(8) as usize - 8) * 4,
        }
    }

    fn read(&self, register: Register, len: usize) -> Bytes {
        let at = Self::at(register);
        (at..at + len).map(|at| self.0.get(at).copied().flatten()).collect()
    }

    /// What is behind the bytes in their last word becomes 0.
    fn write(&mut self, register: Register, bytes: &[Option<u8>]) {
        let padded = bytes.len().next_multiple_of(4);
        let all = bytes.iter().copied().chain(std::iter::repeat(Some(0)));
        let places = self.0.iter_mut().skip(Self::at(register)).take(padded);
        places.zip(all).for_each(|(to, from)| *to = from);
    }
}

/// The outcome, and the sets in which the packet is.
pub(super) fn apply<T: Tables>(
    tables: &mut T,
    rule: &[Step],
    packet: &Packet,
) -> Result<(Outcome, Vec<String>), T::Error> {
    let mut registers = Registers([None; SIZE]);
    let mut sets = Vec::new();
    for (at, step) in rule.iter().enumerate() {
        let rest = rule.get(at + 1..).unwrap_or_default();
        let maybe = if decides(rest) { Outcome::Maybe } else { Outcome::Not };
        let expr = match step {
            Step::Known(expr) => expr,
            Step::Effectless => continue,
            Step::Unknown(name) if name == "reject" => return Ok((Outcome::Verdict(Verdict::Drop), sets)),
            Step::Unknown(name) if decides(rest) => return Ok((Outcome::Unknown(name.clone()), sets)),
            Step::Unknown(_) => return Ok((Outcome::Not, sets)),
        };
        match expr {
            Expr::Meta { key, to } => registers.write(*to, &meta(*key, packet)),
            Expr::Payload { base, offset, len, to } => {
                registers.write(*to, &packet.payload(*base, *offset, *len));
            }
            Expr::Ct { key, to } => registers.write(*to, &tracked(*key)),
            Expr::Immediate { to, value } => registers.write(*to, &known(value)),
            Expr::Bitwise { register, mask, xor } => {
                let now = registers.read(*register, mask.len());
                let changed = now.iter().zip(mask).zip(xor).map(|((byte, mask), xor)| match (byte, mask) {
                    (_, 0) => Some(*xor),
                    (byte, mask) => byte.map(|byte| byte & mask ^ xor),
                });
                registers.write(*register, &changed.collect::<Bytes>());
            }
            Expr::Cmp { register, op, value } => {
                match compare(&registers.read(*register, value.len()), *op, value) {
                    Some(true) => {}
                    Some(false) => return Ok((Outcome::Not, sets)),
                    None => return Ok((maybe, sets)),
                }
            }
            Expr::Lookup { set, from, to } => {
                let found = tables.set(set)?.find(|len| registers.read(*from, len));
                if found != Found::No {
                    sets.push(set.clone());
                }
                match (found, to) {
                    (Found::No, _) => return Ok((Outcome::Not, sets)),
                    (Found::Maybe, Some(Register::VERDICT)) => return Ok((Outcome::Maybe, sets)),
                    (Found::Maybe, _) => return Ok((maybe, sets)),
                    (Found::Yes(Some(Value::Verdict(verdict))), Some(_)) => {
                        return Ok((Outcome::Verdict(verdict), sets));
                    }
                    (Found::Yes(Some(Value::Bytes(bytes))), Some(to)) => registers.write(*to, &known(&bytes)),
                    (Found::Yes(_), _) => {}
                }
            }
            Expr::NotIn { set, from } => match tables.set(set)?.find(|len| registers.read(*from, len)) {
                Found::No => {}
                Found::Yes(_) => return Ok((Outcome::Not, sets)),
                Found::Maybe => return Ok((maybe, sets)),
            },
            Expr::Verdict(verdict) => return Ok((Outcome::Verdict(verdict.clone()), sets)),
            Expr::Masquerade { .. } => return Ok((Outcome::Masquerade, sets)),
            Expr::FibType { to, .. } | Expr::FibLink { to, .. } => registers.write(*to, &[None; 4]),
            Expr::Counter | Expr::Count { .. } | Expr::Renew { .. } | Expr::SetMeta { .. } => {}
            other => return Ok((Outcome::Unknown(format!("{other:?}")), sets)),
        }
    }
    Ok((Outcome::Not, sets))
}

/// Whether one of the steps may decide what becomes of the packet.
fn decides(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Known(Expr::Lookup { to, .. }) => *to == Some(Register::VERDICT),
        Step::Known(Expr::Verdict(_) | Expr::Masquerade { .. } | Expr::Dnat { .. } | Expr::Xt(_)) => true,
        Step::Unknown(name) => name == "reject" || name == "queue" || name == "nat",
        _ => false,
    })
}

fn meta(key: MetaKey, packet: &Packet) -> Bytes {
    match key {
        MetaKey::NfProto => vec![Some(packet.family().number())],
        MetaKey::L4Proto => vec![Some(packet.protocol)],
        MetaKey::IifName => match &packet.input {
            Some(name) => {
                let mut name = known(name.as_bytes());
                name.resize(NAME, Some(0));
                name
            }
            None => vec![None; NAME],
        },
        MetaKey::OifName | MetaKey::IifKind => vec![None; NAME],
        MetaKey::Mark => vec![None; 4],
    }
}

/// The connection is new.
fn tracked(key: CtKey) -> Bytes {
    match key {
        CtKey::State => known(&STATE_NEW.to_ne_bytes()),
        CtKey::Direction => vec![Some(0)],
        CtKey::Status => vec![None; 4],
    }
}

fn known(bytes: &[u8]) -> Bytes {
    bytes.iter().copied().map(Some).collect()
}

/// `None` if it depends on what is not known.
fn compare(bytes: &[Option<u8>], op: CmpOp, value: &[u8]) -> Option<bool> {
    let differs = bytes.iter().zip(value).any(|(byte, is)| byte.is_some_and(|byte| byte != *is));
    let whole: Option<Vec<u8>> = bytes.iter().copied().collect();
    match (op, whole) {
        (CmpOp::Eq, _) if differs => Some(false),
        (CmpOp::Neq, _) if differs => Some(true),
        (_, None) => None,
        (CmpOp::Eq, Some(bytes)) => Some(bytes == value),
        (CmpOp::Neq, Some(bytes)) => Some(bytes != value),
        (CmpOp::Lte, Some(bytes)) => Some(*bytes <= *value),
        (CmpOp::Gte, Some(bytes)) => Some(*bytes >= *value),
    }
}
