//! What an operator can do about causes that several plugins meet, for [`CniError::with_remedy`].
//!
//! [`CniError::with_remedy`]: cni_common::spec::CniError::with_remedy

/// Against a backend that starts programs which the node does not have.
pub const IPTABLES: &str = "install iptables";

/// Against a kernel that lacks what these modules have.
pub fn modules(names: &str) -> String {
    format!("modprobe -a {names}; if it has no such module, use a kernel that has it")
}
