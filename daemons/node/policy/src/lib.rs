//! NetworkPolicies (`networking.k8s.io/v1`) and ClusterNetworkPolicies (`policy.networking.k8s.io/v1alpha2`) of Kubernetes for the pods of one
//! node. Pure: no kernel, no files, no API client.
//!
//! [`Compiler`] takes the objects and makes a [`Ruleset`] of them; [`judge`] says whether they allow a packet, and which policy decides.

mod cluster;
mod compiler;
pub mod judge;
pub mod model;
mod name;
mod pool;
pub mod ruleset;

pub use cluster::{Cluster, KnownPod};
pub use compiler::{Applied, Compiler, Doubt, Fault, Named};
pub use name::{Name, NotOurs};
pub use ruleset::{Change, Ruleset};
