//! Walks the first packet of a flow through rules of nf_tables, as the kernel does. Pure.
//!
//! Not all is known of the packet: its source port, for example. A rule that asks for it counts as one that does not match;
//! [`Walk::maybe`] has those that could.

mod allows;
mod machine;
mod packet;
mod set;

use std::rc::Rc;

use ferrule_kernel::nftables::{self, Expr, Verdict};

pub use allows::allows;
use machine::{Outcome, apply};
pub use packet::Packet;
pub use set::{Found, Set};

/// The most rules of one walk: the kernel allows no loop, but the tables may change while they are read.
const MOST: usize = 1 << 20;

/// What has the rules and the sets of one table.
pub trait Tables {
    /// Why they cannot be read.
    type Error;

    /// The rules of a chain; none if it does not exist.
    ///
    /// # Errors
    /// It cannot be read.
    fn rules(&mut self, chain: &str) -> Result<Rc<[Rule]>, Self::Error>;

    /// A set or map; an empty one if it does not exist.
    ///
    /// # Errors
    /// It cannot be read.
    fn set(&mut self, name: &str) -> Result<Rc<Set>, Self::Error>;
}

/// The steps of a rule.
pub type Rule = Vec<Step>;

/// An expression of a rule, as far as it matters for what becomes of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is understood.
    Known(Expr),
    /// It counts or logs.
    Effectless,
    /// It is not understood: the kernel's name of it.
    Unknown(String),
}

/// Expressions of the kernel after which a rule goes on.
const EFFECTLESS: [&str; 5] = ["counter", "log", "objref", "last", "dynset"];

/// The steps of a rule that was read.
pub fn steps(rule: &nftables::Rule) -> Rule {
    let step = |raw: &nftables::RawExpr| match raw.decode() {
        _ if EFFECTLESS.contains(&raw.name.as_str()) => Step::Effectless,
        Some(expr) => Step::Known(expr),
        None => Step::Unknown(raw.name.clone()),
    };
    rule.expressions.iter().map(step).collect()
}

/// How a walk ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// No rule has decided: the base chain's policy counts.
    #[default]
    Through,
    /// A rule accepts it.
    Accept,
    /// A rule drops or rejects it.
    Drop,
    /// A rule gives it another source address, that of the link on which it leaves.
    Masquerade,
    /// It depends on something that is not understood.
    Unknown(String),
}

/// A rule that has led on, or decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The chain.
    pub chain: String,
    /// The rule's number in it, from 0.
    pub rule: usize,
    /// How many rules the chain has.
    pub rules: usize,
    /// The sets and maps of the rule in which the packet is.
    pub sets: Vec<String>,
}

/// What becomes of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// The end.
    pub end: End,
    /// The rules that have led there, the last one last. A rule that returns is one of them.
    pub path: Vec<Place>,
    /// Rules that match if what is not known of the packet is as they ask.
    pub maybe: Vec<Place>,
}

/// Walks the chain, and those to which it leads.
///
/// # Errors
/// Those of the tables.
pub fn walk<T: Tables>(tables: &mut T, chain: &str, packet: &Packet) -> Result<Walk, T::Error> {
    let mut walk = Walk::default();
    let mut callers: Vec<(String, usize)> = Vec::new();
    let (mut chain, mut next) = (chain.to_owned(), 0);
    for _ in 0..MOST {
        let rules = tables.rules(&chain)?;
        let Some(rule) = rules.get(next) else {
            let Some(caller) = callers.pop() else { return Ok(walk) };
            (chain, next) = caller;
            continue;
        };
        let (outcome, sets) = apply(tables, rule, packet)?;
        let place = Place { chain: chain.clone(), rule: next, rules: rules.len(), sets };
        next += 1;
        let end = match outcome {
            Outcome::Not => continue,
            Outcome::Maybe => {
                walk.maybe.push(place);
                continue;
            }
            Outcome::Verdict(Verdict::Accept) => End::Accept,
            Outcome::Verdict(Verdict::Drop) => End::Drop,
            Outcome::Masquerade => End::Masquerade,
            Outcome::Unknown(what) => End::Unknown(what),
            Outcome::Verdict(to) => {
                walk.path.push(place);
                let caller = (chain.clone(), next);
                match to {
                    Verdict::Jump(to) => {
                        callers.push(caller);
                        (chain, next) = (to, 0);
                    }
                    Verdict::Goto(to) => (chain, next) = (to, 0),
                    _ => next = rules.len(),
                }
                continue;
            }
        };
        walk.path.push(place);
        walk.end = end;
        return Ok(walk);
    }
    walk.end = End::Unknown("more rules than the kernel allows".to_owned());
    Ok(walk)
}

#[cfg(test)]
mod tests;
