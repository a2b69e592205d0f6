//! What policies mean: a table of examples, and random ones. Each is asked of the judge, and of the ruleset as the kernel walks it.

mod broken;
mod changes;
mod doubts;
mod dry;
mod interpreter;
mod kit;
mod random;
mod semantics;
mod tiers;
mod why;
