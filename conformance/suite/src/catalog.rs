//! Requirements together with their test cases. A requirement without a test case fails to compile, and so
//! does a test case without a requirement.

use super::cases::CASES;
use super::requirement::Requirement;
use super::requirements::{SECTIONS, Section};
use super::test_case::TestCase;

const _: () = assert_complete();

/// A requirement and its section.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The section of the table.
    pub section: &'static Section,
    /// The row.
    pub requirement: &'static Requirement,
}

impl Entry {
    /// The test cases of the requirement.
    pub fn test_cases(self) -> impl Iterator<Item = &'static TestCase> {
        CASES
            .iter()
            .flat_map(|cases| cases.iter())
            .filter(move |case| case.requirement == self.requirement.id)
    }
}

/// Every requirement, in the order of the document.
pub fn entries() -> impl Iterator<Item = Entry> {
    SECTIONS.iter().flat_map(|section| {
        section.requirements.iter().map(move |requirement| Entry { section, requirement })
    })
}

/// Fails to compile unless each section's requirements and test cases match.
#[allow(
    long_running_const_eval,
    reason = "every test case is compared with every requirement of its section"
)]
const fn assert_complete() {
    assert!(SECTIONS.len() == CASES.len(), "each section has its file of test cases");
    let mut section = 0;
    while section < SECTIONS.len() {
        let (requirements, cases) = (SECTIONS[section].requirements, CASES[section]);
        let mut row = 0;
        while row < requirements.len() {
            let requirement = &requirements[row];
            match (count(cases, requirement.id) > 0, requirement.unproven.is_some()) {
                (false, false) => panic!("{}", requirement.id),
                (true, true) => panic!("{}", requirement.id),
                _ => {}
            }
            row += 1;
        }
        let mut case = 0;
        while case < cases.len() {
            if !is_in(requirements, cases[case].requirement) {
                panic!("{}", cases[case].requirement);
            }
            case += 1;
        }
        section += 1;
    }
}

const fn count(cases: &[TestCase], id: &str) -> usize {
    let (mut number, mut case) = (0, 0);
    while case < cases.len() {
        if equal(cases[case].requirement, id) {
            number += 1;
        }
        case += 1;
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
    fn ids_are_unique() {
        let mut ids = BTreeSet::new();
        for entry in entries() {
            assert!(ids.insert(entry.requirement.id.to_owned()), "{}", entry.requirement.id);
            for case in entry.test_cases() {
                assert!(ids.insert(case.id()), "{}", case.id());
            }
        }
    }

    #[test]
    fn test_case_names_are_lower_case_with_hyphens() {
        for case in entries().flat_map(Entry::test_cases) {
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
            assert!(case.name.chars().all(is_plain), "{}", case.id());
        }
    }
}
