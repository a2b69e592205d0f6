//! Requirements and their trials together. A requirement without a trial, or a trial without one, does not compile.

use super::requirement::Requirement;
use super::requirements::{SECTIONS, Section};
use super::trial::Trial;
use super::trials::TRIALS;

const _: () = assert_complete();

/// A requirement, where it stands, and what shows it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The section of the table.
    pub section: &'static Section,
    /// The row.
    pub requirement: &'static Requirement,
}

impl Entry {
    /// The trials that show it.
    pub fn trials(self) -> impl Iterator<Item = &'static Trial> {
        TRIALS
            .iter()
            .flat_map(|trials| trials.iter())
            .filter(move |trial| trial.requirement == self.requirement.id)
    }
}

/// Every requirement, in the order of the document.
pub fn entries() -> impl Iterator<Item = Entry> {
    SECTIONS.iter().flat_map(|section| {
        section.requirements.iter().map(move |requirement| Entry { section, requirement })
    })
}

/// Fails to compile unless each section's trials and requirements belong together.
#[allow(long_running_const_eval, reason = "every trial is compared with every requirement of its section")]
const fn assert_complete() {
    assert!(SECTIONS.len() == TRIALS.len(), "each section has its file of trials");
    let mut section = 0;
    while section < SECTIONS.len() {
        let (requirements, trials) = (SECTIONS[section].requirements, TRIALS[section]);
        let mut row = 0;
        while row < requirements.len() {
            let requirement = &requirements[row];
            match (count(trials, requirement.id) > 0, requirement.unproven.is_some()) {
                (false, false) => panic!("{}", requirement.id),
                (true, true) => panic!("{}", requirement.id),
                _ => {}
            }
            row += 1;
        }
        let mut trial = 0;
        while trial < trials.len() {
            if !is_in(requirements, trials[trial].requirement) {
                panic!("{}", trials[trial].requirement);
            }
            trial += 1;
        }
        section += 1;
    }
}

const fn count(trials: &[Trial], id: &str) -> usize {
    let (mut number, mut trial) = (0, 0);
    while trial < trials.len() {
        if equal(trials[trial].requirement, id) {
            number += 1;
        }
        trial += 1;
    }
    number
}

const fn is_in(requirements: &[Requirement], id: &str) -> bool {
    let mut row = 0;
    while row < requirements.len() {
        if equal(requirements[row].id, id) {
            return true;
        }
        row += 1;
    }
    false
}

const fn equal(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut index = 0;
    while index < one.len() {
        if one[index] != other[index] {
            return false;
        }
        index += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_name_is_used_twice() {
        let mut ids = BTreeSet::new();
        for entry in entries() {
            assert!(ids.insert(entry.requirement.id.to_owned()), "{}", entry.requirement.id);
            for trial in entry.trials() {
                assert!(ids.insert(trial.id()), "{}", trial.id());
            }
        }
    }

    #[test]
    fn trials_are_named_in_words_with_hyphens() {
        for trial in entries().flat_map(Entry::trials) {
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            assert!(trial.name.chars().all(is_plain), "{}", trial.id());
        }
    }
}
