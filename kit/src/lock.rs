//! Lock files, with the errors of CNI.

use std::path::Path;

use cni_common::spec::{CniError, Code};
use ferrule_kernel::lock::{Error, Lock};

/// Locks the file at `path`, see [`Lock::take`].
///
/// # Errors
/// Code 11 if another process still holds the lock after 10 s; code 5 if opening or locking the file fails.
pub fn take(path: &Path, mode: u32) -> Result<Lock, CniError> {
    Lock::take(path, mode).map_err(|error| {
        let code = match error {
            Error::TimedOut { .. } => Code::TryAgainLater,
            Error::Io { .. } => Code::Io,
        };
        CniError::new(code, error.to_string())
    })
}
