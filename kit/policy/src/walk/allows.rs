//! What the rules of a pod's chain allow, as text: for a node on which nobody knows the policies behind them.

use ferrule_kernel::ip::from_octets;
use ferrule_kernel::nftables::{CmpOp, Expr, MetaKey, PayloadBase, Verdict};

use super::{Rule, Set, Step, Tables};

/// The most elements of a set that are named.
const FEW: usize = 8;

/// What is in the registers.
#[derive(Clone, Copy, PartialEq)]
enum Held {
    /// That of the chain.
    Family,
    Address,
    Protocol,
    Port,
    /// An address, a protocol and a port.
    Place,
}

/// What a rule allows; `None` for one that allows nothing, or has something that is not known.
///
/// # Errors
/// Those of the tables.
pub fn allows<T: Tables>(tables: &mut T, rule: &Rule) -> Result<Option<String>, T::Error> {
    let (mut parts, mut held, mut protocol) = (Vec::new(), None, None);
    for step in rule {
        let Step::Known(expr) = step else {
            if *step == Step::Effectless {
                continue;
            }
            return Ok(None);
        };
        held = match expr {
            Expr::Payload { base: PayloadBase::Network, .. } => Some(Held::Address),
            Expr::Meta { key: MetaKey::NfProto, .. } => Some(Held::Family),
            Expr::Cmp { op: CmpOp::Eq, .. } if held == Some(Held::Family) => None,
            Expr::Meta { key: MetaKey::L4Proto, .. } => Some(Held::Protocol),
            Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, .. }
                if held == Some(Held::Protocol) =>
            {
                Some(Held::Place)
            }
            Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, .. } => Some(Held::Port),
            Expr::Lookup { set, to: None, .. } => {
                parts.push(named(&*tables.set(set)?, held));
                None
            }
            Expr::Cmp { op: CmpOp::Eq, value, .. } if held == Some(Held::Protocol) => {
                protocol = value.first().map(|number| word(*number));
                None
            }
            Expr::Cmp { op, value, .. } if matches!(held, Some(Held::Port)) => {
                let Ok(number) = <[u8; 2]>::try_from(value.as_slice()).map(u16::from_be_bytes) else {
                    return Ok(None);
                };
                let text = match op {
                    CmpOp::Eq => format!("port {number}"),
                    CmpOp::Gte => format!("ports from {number}"),
                    CmpOp::Lte => format!("to {number}"),
                    CmpOp::Neq => return Ok(None),
                };
                parts.extend(protocol.take().into_iter().chain([text]));
                (*op == CmpOp::Gte).then_some(Held::Port)
            }
            Expr::Verdict(Verdict::Return) => {
                parts.extend(protocol.take());
                let all = if parts.is_empty() { "everything".to_owned() } else { parts.join(" ") };
                return Ok(Some(all));
            }
            _ => return Ok(None),
        };
    }
    Ok(None)
}

fn word(protocol: u8) -> String {
    match protocol {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        132 => "SCTP".to_owned(),
        other => format!("protocol {other}"),
    }
}

fn named(set: &Set, held: Option<Held>) -> String {
    let address = |key: &[u8]| from_octets(key).map(|address| address.to_string());
    let place = |key: &[u8]| {
        let (of, rest) = key.split_at_checked(key.len().checked_sub(8)?)?;
        let [protocol, _, _, _, high, low, ..] = rest else { return None };
        Some(format!("{} {} {}", address(of)?, word(*protocol), u16::from_be_bytes([*high, *low])))
    };
    let mut known: Vec<String> = match set {
        Set::Keys(all) if held == Some(Held::Place) => {
            all.keys().take(FEW).filter_map(|key| place(key)).collect()
        }
        Set::Keys(all) => all.keys().take(FEW).filter_map(|key| address(key)).collect(),
        Set::Intervals(all) => {
            let mut blocks: Vec<String> = Vec::new();
            for (key, begins) in all.iter().take(2 * FEW) {
                let edge = address(key).unwrap_or_default();
                match blocks.last_mut() {
                    Some(block) if !begins => *block += &format!(" to before {edge}"),
                    _ => blocks.push(edge),
                }
            }
            blocks
        }
        Set::Unknown => vec!["a set that is not understood".to_owned()],
    };
    if set.len() > FEW {
        known.push(format!("… {} in all", set.len()));
    }
    if known.is_empty() { "nobody".to_owned() } else { known.join(", ") }
}
