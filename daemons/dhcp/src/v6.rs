//! DHCPv6: stateful addresses (IA_NA), one for each interface. Pure.
//!
//! # References
//! RFC 8415.

pub(crate) mod duid;
pub(crate) mod lease;
pub(crate) mod machine;
pub(crate) mod message;
mod packet;
pub(crate) mod settings;
