//! Lock files, with the errors of CNI.

use std::io::{self, ErrorKind};
use std::path::Path;

use cni_common::spec::{CniError, Code};
use ferrule_kernel::lock::Lock;

/// The lock for changes by the iptables programs. It is not the lock of `iptables`, which `iptables-legacy` takes
/// itself.
const IPTABLES: &str = "/run/ferrule-iptables.lock";

/// The lock for changes by the iptables programs. The caller holds it from its look at the ruleset until its
/// change is made. `iptables-nft` has no lock: if the ruleset changes after it has read it, it still flushes a
/// chain that another process has created since, and adds each rule a second time.
///
/// # Errors
/// As [`take`].
pub fn iptables() -> Result<Lock, CniError> {
    take(Path::new(IPTABLES), 0o600)
}

/// Locks the file at `path`, see [`Lock::take`].
///
/// # Errors
/// Code 11 if another process still holds the lock after 10 s; code 5 if opening or locking the file fails.
pub fn take(path: &Path, mode: u32) -> Result<Lock, CniError> {
    Lock::take(path, mode).map_err(error)
}

pub(crate) fn error(error: io::Error) -> CniError {
    let code = if error.kind() == ErrorKind::TimedOut { Code::TryAgainLater } else { Code::Io };
    CniError::new(code, error.to_string())
}
