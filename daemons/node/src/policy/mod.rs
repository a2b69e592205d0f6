//! NetworkPolicies.

pub mod objects;
