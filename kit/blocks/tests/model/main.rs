//! A model of the protocol: two nodes, an API server that loses or delays requests and answers, crashes between any two steps, machines
//! that lose power or their ledgers, Nodes that are deleted while their pods run, and an operator who fences a node that is off and takes the
//! taint away again. A breadth-first search visits every state.
//!
//! The nodes use the real [`Ledger`]; the steps have the names of its functions. One block with one address is enough: blocks have
//! names of their own, and nothing connects them.
//!
//! Two properties hold: no address is used twice, and none is lost for ever, that is: from each state, steps without another fault lead to
//! a state in which the node that wants the address has it. [`Rule`] lists what the protocol keeps; without any one of them the search finds a
//! state that breaks a property.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod explorer;
mod fencing;
mod state;
mod steps;

use explorer::explore;
use state::{Faults, Rule};

#[test]
fn no_address_is_used_twice_and_none_is_lost() {
    for faults in [Faults::Losses, Faults::Fencing] {
        let explored = explore(faults, None);
        if let Some(found) = &explored.broken {
            panic!("{found}");
        }
        eprintln!("{faults:?}: {} states", explored.states);
        assert!(explored.states > 10_000, "the model has only {} states", explored.states);
    }
}

#[test]
fn without_any_one_rule_a_property_breaks() {
    for rule in Rule::ALL {
        let explored = explore(rule.faults(), Some(rule));
        let found = explored.broken.unwrap_or_else(|| panic!("nobody misses {rule:?}"));
        eprintln!("{rule:?}: {found}");
    }
}
