//! Which of the objects that a plugin has found for the operator's tool still belong to nobody alive.
//!
//! The tool passes `are_dead`, a closure with one answer for each object that it named. A plugin asks it after it has found the objects, so
//! that the evidence is never older than they are, and only if it has found any: each answer costs a look at the node.

use std::collections::BTreeSet;

/// The objects that are found and dead, in the order of `found`.
pub fn confirmed(mut found: Vec<bool>, are_dead: &mut dyn FnMut() -> Vec<bool>) -> Vec<bool> {
    if found.contains(&true) {
        found.iter_mut().zip(are_dead()).for_each(|(found, is_dead)| *found &= is_dead);
    }
    found
}

/// As [`confirmed`], for objects that have names: those of `named` that are `found` and dead.
pub fn confirmed_names(
    named: &[String],
    found: &BTreeSet<String>,
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> BTreeSet<String> {
    let confirmed = confirmed(named.iter().map(|name| found.contains(name)).collect(), are_dead);
    named.iter().zip(confirmed).filter(|(_, is_dead)| *is_dead).map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_found_is_not_asked_about() {
        let mut asked = 0;
        let mut answer = |found: &[bool]| {
            confirmed(found.to_vec(), &mut || {
                asked += 1;
                vec![true, false]
            })
        };
        assert_eq!(answer(&[false, false]), [false, false]);
        assert_eq!(answer(&[true, true]), [true, false]);
        assert_eq!(answer(&[false, true]), [false, false]);
        assert_eq!(asked, 2);
    }
}
