//! Runs code in the container's network namespace.

use std::fs::File;

use cni_common::netns::Netns;
use cni_common::spec::{CniError, Context};

/// Runs `work` with the calling thread in the container's network namespace, see
/// [`ferrule_kernel::netns::enter`].
pub fn enter<T>(netns: &Netns, work: impl FnOnce() -> Result<T, CniError>) -> Result<T, CniError> {
    ferrule_kernel::netns::enter(netns, work).context(|| "enter the container's network namespace")?
}

/// The plugin's own network namespace, which is the host's.
pub fn own() -> Result<File, CniError> {
    ferrule_kernel::netns::own().context(|| "open the host's network namespace")
}
