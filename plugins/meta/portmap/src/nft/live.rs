//! Everything that the table holds, for somebody who takes it over.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Expr, Generation, generation, rules};

use crate::plan::Entry;

use super::layout::{NETWORKS, TABLE};
use super::{change, list};

const STEP: &str = "read the table of host ports";

/// What an owner has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// The owner's label.
    pub label: String,
    /// The entries.
    pub entries: Vec<Entry>,
    /// For each entry its conditions: alternatives of steps. One without conditions has one alternative without steps.
    pub conditions: Vec<Vec<Vec<Expr>>>,
}

/// All owners with their entries, sorted, and the generation that they were read at.
///
/// # Errors
/// Code 999 if the table cannot be read.
pub fn live(socket: &mut Socket) -> Result<(Generation, Vec<Live>), CniError> {
    let generation = generation(socket).context(|| STEP)?;
    let mut found = list::entries(socket, |_| true).context(|| STEP)?;
    found.sort_by(|a, b| (&a.label, &a.key).cmp(&(&b.label, &b.key)));
    let labels: Vec<String> = found.iter().map(|entry| entry.label.clone()).collect();
    let entries = list::with_marks(socket, found).context(|| STEP)?;
    let networks = rules(socket, TABLE, NETWORKS).context(|| STEP)?;
    let mut all: Vec<Live> = Vec::new();
    for (label, entry) in labels.into_iter().zip(entries) {
        let conditions = match entry.key.realm.chain() {
            None => vec![Vec::new()],
            Some(chain) => networks
                .iter()
                .filter(|rule| rule.jump_target().as_deref() == Some(chain.as_str()))
                // Without the packet's family, two steps in front, and the jump behind.
                .filter_map(|rule| Some(rule.decode()?.get(2..)?.split_last()?.1.to_vec()))
                .collect(),
        };
        match all.last_mut().filter(|live| live.label == label) {
            Some(live) => {
                live.entries.push(entry);
                live.conditions.push(conditions);
            }
            None => all.push(Live { label, entries: vec![entry], conditions: vec![conditions] }),
        }
    }
    Ok((generation, all))
}

/// Adds to the batch that these owners have nothing in the table any more; `all` if they are all that there are, and the
/// table goes with them.
pub fn abandon(batch: &mut Batch, owners: &[&Live], all: bool) {
    if all {
        batch.delete_table(TABLE);
        return;
    }
    for live in owners {
        change::delete(batch, &live.entries);
    }
    let labels: Vec<String> = owners.iter().map(|live| live.label.clone()).collect();
    change::delete_owners(batch, &labels);
}
