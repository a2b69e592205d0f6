//! The `vrf` CNI plugin: puts an interface of a container into a VRF, which it makes for the first one. Interfaces in
//! different VRFs may have overlapping addresses. [`verbs`] holds the steps of the verbs, [`kept`] what an interface loses
//! when it changes its master.

#![deny(missing_docs)]

pub mod kept;
pub mod verbs;

use cni_common::plugin::{AddRequest, DelRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, SpecVersion};

/// The plugin.
pub struct Vrf;

/// All state is in the container's namespace and goes with it, so GC has nothing to remove.
impl Plugin for Vrf {
    fn name(&self) -> &'static str {
        "vrf"
    }

    /// The reference starts at 0.3.1.
    fn spec_versions(&self) -> &'static [SpecVersion] {
        SpecVersion::CHAINED
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        verbs::add(call)
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        verbs::check(call)
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        verbs::del(call)
    }

    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        verbs::status(call)
    }
}
