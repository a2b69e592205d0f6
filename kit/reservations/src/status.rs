//! STATUS: checks that the store is writable.

use std::io;
use std::path::Path;

use cni_common::spec::{CniError, Code};
use rustix::fs::{Access, access};

/// Checks the store's directory or, if it does not exist, its nearest existing ancestor. Creates nothing,
/// takes no lock and counts no addresses: a full range is no reason to make the node unready.
///
/// # Errors
/// Code 50 with the directory.
pub fn check_writable(store: &Path) -> Result<(), CniError> {
    let unusable = |path: &Path, error: &dyn std::fmt::Display| {
        CniError::new(Code::NotAvailable, format!("cannot write reservations in {}: {error}", path.display()))
            .with_remedy("make the folder writable for root, or set another one as \"dataDir\"")
    };
    for path in store.ancestors() {
        // The last ancestor of a relative path is empty.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match path.metadata() {
            Ok(meta) if meta.is_dir() => {
                return access(path, Access::WRITE_OK | Access::EXEC_OK)
                    .map_err(|error| unusable(path, &io::Error::from(error)));
            }
            Ok(_) => return Err(unusable(path, &"not a directory")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // An ancestor is not a directory; the loop reaches it.
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
    fn existing_and_missing_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        fs::write(path.join("file"), "").unwrap();
        check_writable(path).unwrap();
        check_writable(&path.join("a/b/c")).unwrap();
        check_writable(Path::new("no/such/directory")).unwrap();
        assert!(!path.join("a").exists());
        for bad in ["file", "file/a/b"] {
            let error = check_writable(&path.join(bad)).unwrap_err();
            assert_eq!(error.code, Code::NotAvailable);
            assert!(error.msg.ends_with("/file: not a directory"), "{error}");
            assert!(error.details.contains("\"dataDir\""), "{error}");
        }
    }
}
