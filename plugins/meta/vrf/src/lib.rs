//! The `vrf` CNI plugin: puts an interface of a container into a VRF, which it makes for the first one. Interfaces in
//! different VRFs may have overlapping addresses. [`verbs`] holds the steps of the verbs, [`repair`] those of repair, [`kept`] what an interface loses
//! when it changes its master.

#![deny(missing_docs)]

pub mod kept;
pub mod repair;
pub mod verbs;

use cni_common::plugin::Plugin;
use cni_common::spec::SpecVersion;

/// The plugin. All state is in the container's namespace and goes with it, so GC has nothing to remove.
pub const PLUGIN: Plugin = Plugin {
    // The reference starts at 0.3.1.
    spec_versions: SpecVersion::CHAINED,
    check: verbs::check,
    repair: Some(repair::repair),
    status: verbs::status,
    ..Plugin::new("vrf", verbs::add, verbs::del)
};
