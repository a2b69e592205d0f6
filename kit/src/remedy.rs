//! What an operator can do about causes that several plugins meet, for [`CniError::with_remedy`].
//!
//! [`CniError::with_remedy`]: cni_common::spec::CniError::with_remedy

use cni_common::spec::{CniError, Code};
use ferrule_kernel::netlink;

/// Against a backend that starts programs which the node does not have.
pub const IPTABLES: &str = "install iptables";

/// The error of STATUS for a kernel without nf_tables, or without what these modules have: code 50.
pub fn no_nf_tables(error: &netlink::Error, names: &str) -> CniError {
    CniError::new(Code::NotAvailable, format!("the kernel does not support nf_tables for inet: {error}"))
        .with_remedy(modules(names))
}

/// Against a kernel that lacks what these modules have.
pub fn modules(names: &str) -> String {
    format!("modprobe -a {names}; if it has no such module, use a kernel that has it")
}
