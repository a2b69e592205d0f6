//! Writes files that others read.

use std::fs;
use std::io;
use std::path::Path;

/// Writes a file beside it, and renames that.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    // node_exporter ignores a name with this end.
    let pending = path.with_extension(format!("pending{}", std::process::id()));
    let written = fs::write(&pending, text);
    written.and_then(|()| fs::rename(&pending, path)).inspect_err(|_| {
        let _ = fs::remove_file(&pending);
    })
}
