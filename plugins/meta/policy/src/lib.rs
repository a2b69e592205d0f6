//! The `policy` CNI plugin: a new pod that a network policy may select is isolated from its first packet on, until `ferrule-node` has decided.
//!
//! [`plan`] computes which elements announce a pod; it does not touch the kernel. [`elements`] adds, finds and deletes them in the table of
//! [`ferrule_policy_kit::table`]. [`path`] refuses a pod whose packets this table does not see, [`waiting`] drops those
//! that have passed it before. [`verbs`] holds the steps of each verb, and
//! [`list`] is for the operator's tool.

#![deny(missing_docs)]

pub mod elements;
pub mod list;
pub mod path;
pub mod plan;
pub mod verbs;
pub mod waiting;

use cni_common::plugin::Plugin;
use cni_common::spec::SpecVersion;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    // Versions before 0.3.0 have no chains.
    spec_versions: SpecVersion::CHAINED,
    check: verbs::check,
    repair: Some(verbs::repair),
    gc: verbs::gc,
    status: verbs::status,
    ..Plugin::new("policy", verbs::add, verbs::del)
};
