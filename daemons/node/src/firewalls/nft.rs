//! Rules of nf_tables, as [`super::walk`] sees them.

use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::matches::End;
use ferrule_kernel::nftables::{CmpOp, Expr, MetaKey, PayloadBase, Rule, Verdict};
use ipnetwork::IpNetwork;

use super::walk::{Step, Then, When};
use super::{Pods, is_link};

/// What a rule has loaded into a register.
enum Loaded {
    /// The first bytes of an address, and those of its bits that count.
    Address { mask: Vec<u8> },
    /// The name of a link.
    Link,
}

/// The rule for packets of these pods.
pub(super) fn step(rule: &Rule, pods: &Pods<'_>) -> Step {
    let when = match names(rule, pods) {
        _ if rule.is_unconditional() => When::Always,
        Some(true) => When::Pods,
        Some(false) => When::Else,
        None => return Step { when: When::Else, then: Then::Next },
    };
    let then = match rule.verdict() {
        Some(Verdict::Accept) => Then::Accept,
        Some(Verdict::Drop) => Then::Drop,
        Some(Verdict::Return) => Then::Return,
        Some(Verdict::Jump(chain)) => Then::Jump(chain),
        Some(Verdict::Goto(chain)) => Then::Goto(chain),
        None => Then::Next,
    };
    Step { when, then }
}

/// Whether a condition names the pods' addresses or links; `None` if one excludes them all.
fn names(rule: &Rule, pods: &Pods<'_>) -> Option<bool> {
    let (mut loaded, mut is_named) = (None, false);
    for expr in &rule.expressions {
        loaded = match (expr.decode(), loaded) {
            (Some(Expr::Payload { base: PayloadBase::Network, offset, len, .. }), _) => {
                address(pods.network, offset, len)
            }
            (Some(Expr::Meta { key: MetaKey::IifName | MetaKey::OifName, .. }), _) => Some(Loaded::Link),
            (Some(Expr::Bitwise { mask, .. }), Some(Loaded::Address { .. })) => {
                Some(Loaded::Address { mask })
            }
            (Some(Expr::Cmp { op, value, .. }), Some(loaded)) => {
                if !loaded.may_be(op, &value, pods) {
                    return None;
                }
                is_named = true;
                Some(loaded)
            }
            // A set may have them.
            (Some(Expr::Lookup { .. } | Expr::NotIn { .. }), Some(_)) => {
                is_named = true;
                None
            }
            (Some(Expr::Xt(xt)), _) => {
                is_named |= !xt.is_target && ["set", "iprange"].contains(&xt.name.as_str());
                None
            }
            (None, Some(loaded)) if expr.name == "range" => {
                is_named = true;
                Some(loaded)
            }
            _ => None,
        };
    }
    Some(is_named)
}

fn address(network: IpNetwork, offset: u32, len: u32) -> Option<Loaded> {
    let family = IpFamily::of(network.ip());
    let is_one = [End::Source, End::Destination].into_iter().any(|end| {
        let (begin, full) = end.position(family);
        begin == offset && len <= full
    });
    is_one.then(|| Loaded::Address { mask: vec![0xff; len as usize] })
}

impl Loaded {
    /// Whether the comparison is true for some of the pods.
    fn may_be(&self, op: CmpOp, value: &[u8], pods: &Pods<'_>) -> bool {
        let (has_equal, has_others) = match self {
            Loaded::Address { mask } => {
                let (ip, own) = (octets(pods.network.network()), octets(pods.network.mask()));
                let bits = || mask.iter().zip(&own);
                let differs =
                    |((ip, value), (mask, own)): ((&u8, &u8), (&u8, &u8))| (ip ^ value) & mask & own != 0;
                let is_equal = !ip.iter().zip(value).zip(bits()).any(differs);
                (is_equal, !is_equal || bits().any(|(mask, own)| mask & !own != 0))
            }
            Loaded::Link => {
                let name: Vec<u8> = value.iter().copied().take_while(|byte| *byte != 0).collect();
                let is_link =
                    is_link(&String::from_utf8_lossy(&name), name.len() == value.len(), pods.bridges);
                (is_link, !is_link)
            }
        };
        match op {
            CmpOp::Eq => has_equal,
            CmpOp::Neq => has_others,
            CmpOp::Lte | CmpOp::Gte => true,
        }
    }
}
