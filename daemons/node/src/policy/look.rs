//! What the enforcer reads from time to time, because no message tells it.

use anyhow::Result;

use super::enforcer::{Enforcer, Made};

impl Enforcer {
    /// Reads what has been denied, and logs it.
    pub(super) fn count(&mut self, logs: bool) {
        let Enforcer { denied, owner, compiler, .. } = self;
        denied.read(owner.socket(), compiler.cluster(), logs);
    }

    /// Once a minute: what no message tells.
    pub(super) fn look(&mut self) -> Result<()> {
        self.inspected.look(&self.compiler);
        self.record.look();
        self.is_told = true;
        if self.made == Made::All && self.owner.prove().is_err() {
            self.made = Made::Nothing;
        }
        if self.made == Made::All && !self.cut.is_empty() {
            let elements = self.owner.cut()?;
            self.cut.refresh(&elements);
        }
        Ok(())
    }
}
