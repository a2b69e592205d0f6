//! Chains of nf_tables whose rules never change, in a plugin's own table.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Chain, Expr, Hook, Rule, Table, rules};

use crate::check::ensure;

/// A chain with fixed rules.
pub struct FixedChain {
    /// Its name.
    pub name: String,
    /// Its netfilter hook; `None` for a chain that only other chains lead to.
    pub hook: Option<Hook>,
    /// Its rules.
    pub rules: Vec<Vec<Expr>>,
    /// How many rules of the table lead to it.
    pub jumps: usize,
}

impl FixedChain {
    /// Whether the chain in the kernel has the right hook, and as many rules and jumps to it as it should have.
    pub fn seems_right(&self, found: Chain) -> bool {
        self.has_hook(found) && found.uses as usize == self.rules.len() + self.jumps
    }

    /// Checks the chain that the kernel has under this name, and its rules.
    ///
    /// # Errors
    /// Code 999 if it is missing or altered; `step` goes before an error of the kernel.
    pub fn check(
        &self,
        socket: &mut Socket,
        table: Table<'_>,
        found: Option<Chain>,
        step: &str,
    ) -> Result<(), CniError> {
        ensure(found.is_some_and(|found| self.has_hook(found)), || altered(table, &self.name))?;
        let rules = rules(socket, table, &self.name).context(|| step)?;
        let is_same = rules.iter().map(Rule::decode).eq(self.rules.iter().cloned().map(Some));
        ensure(is_same, || altered(table, &self.name))
    }

    fn has_hook(&self, found: Chain) -> bool {
        match &self.hook {
            Some(hook) => found.base.is_some_and(|base| base.is(hook)),
            None => found.base.is_none(),
        }
    }
}

/// The text of the error for a chain that is missing or altered.
pub fn altered(table: Table<'_>, chain: &str) -> String {
    format!("chain {chain:?} of table {table} is missing or altered")
}

/// Adds to the batch what completes the chains from any state. Each request is right if another process makes the same ones at the same
/// time: the flush in the same batch keeps rules from being added twice.
pub fn establish(batch: &mut Batch, table: Table<'_>, chains: &[FixedChain]) {
    for chain in chains {
        batch.add_chain(table, &chain.name, chain.hook, None).flush_chain(table, &chain.name);
    }
    for chain in chains {
        for rule in &chain.rules {
            batch.add_rule(table, &chain.name, rule, None);
        }
    }
}
