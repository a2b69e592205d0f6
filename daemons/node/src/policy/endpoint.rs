//! The health endpoint in the maps, in a pod's place: it sends and gets everything but marked echo requests. With these `proof` finds whether
//! the table judges the packets of pods. A pod that is isolated comes first: the table is made anew then.

use std::collections::BTreeSet;

use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::{Batch, Element, Value, Verdict};
use ferrule_node_policy::Ruleset;
use ferrule_node_policy::ruleset::Entry;

use super::layout::{TABLE, map, probe};

/// Its addresses: one that sends and one that receives, in each family.
#[derive(Debug, Default)]
pub(super) struct Endpoint {
    wanted: BTreeSet<Entry>,
    made: BTreeSet<Entry>,
}

impl Endpoint {
    pub(super) fn want(&mut self, entries: BTreeSet<Entry>) {
        self.wanted = entries;
    }

    /// What the maps have of it.
    pub(super) fn made(&self) -> &BTreeSet<Entry> {
        &self.made
    }

    /// Adds it to the batch that makes the table.
    pub(super) fn push(&mut self, ruleset: &Ruleset, batch: &mut Batch) {
        self.made = BTreeSet::new();
        self.follow(ruleset, batch);
    }

    /// Adds the missing addresses, and removes those that are not wanted any more.
    pub(super) fn follow(&mut self, ruleset: &Ruleset, batch: &mut Batch) {
        let mut wanted = self.wanted.clone();
        wanted.retain(|entry| !ruleset.maps.contains_key(entry));
        self.made.difference(&wanted).for_each(|entry| delete(batch, entry));
        for entry in wanted.difference(&self.made) {
            let value = Some(Value::Verdict(Verdict::Jump(probe(entry.direction).to_owned())));
            let element = Element { value, ..Element::new(octets(entry.pod)) };
            batch.add_elements(TABLE, set(entry), &[element]);
        }
        self.made = wanted;
    }
}

fn set(entry: &Entry) -> &'static str {
    map(entry.direction, IpFamily::of(entry.pod))
}

fn delete(batch: &mut Batch, entry: &Entry) {
    batch.delete_elements(TABLE, set(entry), &[octets(entry.pod)]);
}
