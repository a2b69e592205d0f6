//! Batches: what is added and deleted for entries.

use std::collections::BTreeMap;

use ferrule_kernel::nftables::{Batch, Element};

use crate::mark::Masquerade;
use crate::owner::key_of;
use crate::plan::Entry;

use super::layout::{OWNERS, TABLE};
use super::{element, note};

/// Adds an owner with its entries. Its namespace is at `netns`.
pub(super) fn add(batch: &mut Batch, label: &str, netns: &str, entries: &[Entry]) {
    let note = Some(note::write(entries.len(), netns));
    let owner = Element { key: key_of(label), comment: Some(label.to_owned()), value: None, metadata: note };
    batch.add_elements(TABLE, OWNERS, &[owner]);
    let mut maps: BTreeMap<String, Vec<Element>> = BTreeMap::new();
    for entry in entries {
        maps.entry(entry.key.map(true).name).or_default().push(element::dnat(entry, label));
        if let Some(mark) = element::mark(entry) {
            maps.entry(entry.key.map(false).name).or_default().push(mark);
        }
    }
    for (map, elements) in maps {
        batch.add_elements(TABLE, &map, &elements);
    }
}

/// Deletes entries that are there.
pub(super) fn delete(batch: &mut Batch, entries: &[Entry]) {
    let mut maps: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for entry in entries {
        maps.entry(entry.key.map(true).name).or_default().push(entry.key.encode());
        if entry.masquerade != Masquerade::Nothing {
            maps.entry(entry.key.map(false).name).or_default().push(entry.key.encode());
        }
    }
    for (map, keys) in maps {
        batch.delete_elements(TABLE, &map, &keys);
    }
}

/// Deletes owners that are there.
pub(super) fn delete_owners(batch: &mut Batch, labels: &[String]) {
    if !labels.is_empty() {
        let keys: Vec<Vec<u8>> = labels.iter().map(|label| key_of(label)).collect();
        batch.delete_elements(TABLE, OWNERS, &keys);
    }
}
