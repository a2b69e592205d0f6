//! The table `inet ferrule_node`: pods get the node's address for what leaves the cluster.

mod layout;

use anyhow::Result;

use crate::plan::Masquerade;
use crate::table;

/// The table as wanted, and the kernel's messages about it.
pub struct Part(table::Part);

impl Part {
    /// Subscribes to the kernel's messages. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel has no nf_tables.
    pub fn open() -> Result<Self> {
        table::Part::open(layout::TABLE).map(Part)
    }

    /// Blocks for some milliseconds. Sends nothing if the table is as wanted. A change of one node is one batch of set elements.
    ///
    /// # Errors
    /// The kernel refuses the batch. The next call tries again.
    pub fn sync(&mut self, wanted: Option<&Masquerade>) -> Result<()> {
        self.0.sync(wanted.map(layout::of))
    }

    /// Ends when another program has changed the table; the next [`Part::sync`] then looks at it. Safe to cancel.
    pub async fn disturbed(&mut self) {
        self.0.disturbed().await;
    }
}

/// Removes the table. Returns its name for the report.
pub fn cleanup() -> Result<Vec<String>> {
    table::cleanup(layout::TABLE)
}
