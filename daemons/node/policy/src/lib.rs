//! NetworkPolicies of Kubernetes (`networking.k8s.io/v1`) for the pods of one node. Pure: no kernel, no files, no API client.

pub mod model;
mod name;
pub mod ruleset;

pub use name::{Name, NotOurs};
pub use ruleset::{Change, Ruleset};
