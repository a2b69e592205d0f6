//! A set or map as a value.

use std::collections::BTreeMap;

use ferrule_kernel::nftables::{Element, Value};

use super::packet::Bytes;

/// A set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    /// Each key with its value, if it is a map.
    Keys(BTreeMap<Vec<u8>, Option<Value>>),
    /// The first keys of intervals, and those behind their ends, with whether an interval begins there.
    Intervals(BTreeMap<Vec<u8>, bool>),
    /// Its elements are of a kind that is not understood.
    Unknown,
}

/// Whether a key is in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is not.
    No,
    /// It is, with the value of a map.
    Yes(Option<Value>),
    /// It may be.
    Maybe,
}

impl Default for Set {
    fn default() -> Self {
        Set::Keys(BTreeMap::new())
    }
}

impl Set {
    /// The set with these elements.
    pub fn of(elements: &[Element], has_intervals: bool) -> Set {
        if elements.iter().any(|element| element.last.is_some()) {
            return Set::Unknown;
        }
        if !has_intervals {
            return Set::Keys(elements.iter().map(|one| (one.key.clone(), one.value.clone())).collect());
        }
        let mut all = BTreeMap::new();
        for element in elements {
            // Where one interval ends, another one may begin.
            *all.entry(element.key.clone()).or_insert(false) |= !element.is_end;
        }
        Set::Intervals(all)
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        match self {
            Set::Keys(all) => all.len(),
            Set::Intervals(all) => all.values().filter(|begins| **begins).count(),
            Set::Unknown => 0,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        *self != Set::Unknown && self.len() == 0
    }

    pub(super) fn find(&self, from: impl Fn(usize) -> Bytes) -> Found {
        match self {
            Set::Unknown => Found::Maybe,
            Set::Keys(all) => {
                let Some((first, _)) = all.first_key_value() else { return Found::No };
                let wanted = from(first.len());
                if let Some(key) = whole(&wanted) {
                    return all.get(&key).cloned().map_or(Found::No, Found::Yes);
                }
                let may_be = |key: &Vec<u8>| {
                    key.iter().zip(&wanted).all(|(is, wanted)| wanted.is_none_or(|wanted| wanted == *is))
                };
                if all.keys().any(may_be) { Found::Maybe } else { Found::No }
            }
            Set::Intervals(all) => {
                let Some((first, _)) = all.first_key_value() else { return Found::No };
                let Some(key) = whole(&from(first.len())) else { return Found::Maybe };
                match all.range(..=key).next_back() {
                    Some((_, true)) => Found::Yes(None),
                    _ => Found::No,
                }
            }
        }
    }
}

fn whole(bytes: &[Option<u8>]) -> Option<Vec<u8>> {
    bytes.iter().copied().collect()
}
