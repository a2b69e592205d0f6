//! STATUS: whether the store could be written.

use std::io;
use std::path::Path;

use cni_common::spec::{CniError, Code};
use rustix::fs::{Access, access};

/// Looks at the store's folder or, where that is still to be made, at the one it would be made in. Makes nothing, takes no
/// lock and counts no addresses: a full network is no reason to take pods off the node.
///
/// # Errors
/// Code 50, naming the folder.
pub fn check_writable(store: &Path) -> Result<(), CniError> {
    let unusable = |path: &Path, error: &dyn std::fmt::Display| {
        CniError::new(Code::NotAvailable, format!("cannot keep reservations in {}: {error}", path.display()))
    };
    for path in store.ancestors() {
        // The last one of a relative path is empty.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match path.metadata() {
            Ok(meta) if meta.is_dir() => {
                return access(path, Access::WRITE_OK | Access::EXEC_OK)
                    .map_err(|error| unusable(path, &io::Error::from(error)));
            }
            Ok(_) => return Err(unusable(path, &"not a directory")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A component above is no folder: the loop comes to it.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(unusable(path, &error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn folders_that_are_there_or_can_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        fs::write(path.join("file"), "").unwrap();
        check_writable(path).unwrap();
        check_writable(&path.join("a/b/c")).unwrap();
        check_writable(Path::new("no/such/folder")).unwrap();
        assert!(!path.join("a").exists());
        for bad in ["file", "file/a/b"] {
            let error = check_writable(&path.join(bad)).unwrap_err();
            assert_eq!(error.code, Code::NotAvailable);
            assert!(error.msg.ends_with("/file: not a directory"), "{error}");
        }
    }
}
