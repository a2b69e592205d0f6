//! The table `inet ferrule_guard`: pods send with their own addresses only, none of them speaks VXLAN with a node, and the VXLAN device
//! takes packets of Nodes only.

mod drops;
mod layout;

use anyhow::Result;

pub use drops::{Offender, metrics, offenders};

use crate::plan::Guard;
use crate::table;

/// The table as wanted, and the kernel's messages about it.
pub struct Part {
    table: table::Part,
    bridges: Vec<String>,
}

impl Part {
    /// Subscribes to the kernel's messages. `bridges`: those that may carry pods. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel has no nf_tables.
    pub fn open(bridges: Vec<String>) -> Result<Self> {
        Ok(Part { table: table::Part::open(layout::TABLE)?, bridges })
    }

    /// Blocks for some milliseconds. Sends nothing if the table is as wanted. A change of one node is some elements.
    ///
    /// # Errors
    /// The kernel refuses the batch, an old one always: `fib` and `iifkind` came with Linux 5.1, sets of pairs with 5.6. The next call
    /// tries again.
    pub fn sync(&mut self, wanted: Option<&Guard>) -> Result<()> {
        self.table.sync(wanted.map(|wanted| layout::of(wanted, &self.bridges)))
    }

    /// Ends when another program has changed the table; the next [`Part::sync`] then looks at it. Safe to cancel.
    pub async fn disturbed(&mut self) {
        self.table.disturbed().await;
    }
}

/// Removes the table. Returns its name for the report.
pub fn cleanup() -> Result<Vec<String>> {
    table::cleanup(layout::TABLE)
}
