//! A breadth-first search over all states, and a search backwards from the good ones.

use std::collections::HashMap;
use std::rc::Rc;

use crate::state::{Faults, Rule, World};
use crate::steps::steps;

/// What the search has found.
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// The shortest way to a state that breaks a property.
    pub(crate) broken: Option<String>,
}

/// Visits every state.
pub(crate) fn explore(faults: Faults, without: Option<Rule>) -> Explored {
    let first = Rc::new(World::new(faults));
    let mut numbers = HashMap::from([(first.clone(), 0)]);
    let mut worlds = vec![first];
    // The state before, and the step; and for each state those from which a step without a fault leads to it.
    let mut before: Vec<Option<(usize, String)>> = vec![None];
    let mut good_before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut at = 0;
    while at < worlds.len() {
        for (name, is_good, world) in steps(&worlds[at].clone(), without) {
            let number = *numbers.entry(Rc::new(world)).or_insert_with_key(|world| {
                worlds.push(world.clone());
                before.push(Some((at, name)));
                good_before.push(Vec::new());
                worlds.len() - 1
            });
            if is_good {
                good_before[number].push(at);
            }
            if worlds[number].nodes.iter().all(|node| node.answers) {
                let broken = Some(format!("the address is used twice after{}", way(&before, number)));
                return Explored { states: worlds.len(), broken };
            }
        }
        at += 1;
    }
    let stuck = (0..2).find_map(|n| Some((n, stuck(&worlds, &good_before, n)?)));
    let broken =
        stuck.map(|(n, number)| format!("node {n} never gets the address after{}", way(&before, number)));
    Explored { states: worlds.len(), broken }
}

/// A state from which no good steps lead to one in which the node has the address.
fn stuck(worlds: &[Rc<World>], good_before: &[Vec<usize>], n: usize) -> Option<usize> {
    let mut leads = vec![false; worlds.len()];
    let mut next: Vec<usize> = (0..worlds.len()).filter(|number| worlds[*number].nodes[n].answers).collect();
    while let Some(number) = next.pop() {
        if !std::mem::replace(&mut leads[number], true) {
            next.extend(&good_before[number]);
        }
    }
    leads.iter().position(|leads| !leads)
}

fn way(before: &[Option<(usize, String)>], mut number: usize) -> String {
    let mut steps = Vec::new();
    while let Some((from, step)) = &before[number] {
        steps.push(format!("\n  {step}"));
        number = *from;
    }
    steps.reverse();
    steps.concat()
}
