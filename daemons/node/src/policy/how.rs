//! What the command line says about policies.

use std::path::PathBuf;

/// How to enforce.
#[derive(Clone, Debug, Default)]
pub struct How {
    /// The file of isolated namespaces.
    pub path: PathBuf,
    /// Deny nothing, and count it.
    pub is_dry: bool,
    /// Log denials.
    pub logs: bool,
}
