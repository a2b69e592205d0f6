//! What costs too much to look for at each change.

use std::collections::BTreeSet;

use ferrule_node_policy::{Compiler, Doubt};

use super::ipvs;

/// The most pairs of a policy and a pod in which it looks for doubts: some 20 ms.
const LOOKS: usize = 200_000;

/// What the last look has found.
#[derive(Debug, Default)]
pub(super) struct Inspected {
    is_done: bool,
    pub(super) has_ipvs: bool,
    pub(super) doubts: BTreeSet<Doubt>,
}

impl Inspected {
    pub(super) fn look(&mut self, compiler: &Compiler) {
        self.is_done = true;
        self.has_ipvs = ipvs::is_used(|address| compiler.cluster().has_pod(address));
        self.doubts = compiler.doubts(LOOKS);
    }

    /// The first look, as soon as all objects are listed.
    pub(super) fn begin(&mut self, compiler: &Compiler) {
        if !self.is_done {
            self.look(compiler);
        }
    }
}
