//! Where an owner lives, and whether it still does: the rule by which a mapping that was left behind is taken over.
//!
//! An ADD notes the path of the container's network namespace, and the namespace's device and inode number, beside the
//! owner's comment. An owner is gone if that path no longer leads to that namespace: the runtime has taken the sandbox
//! away, and only the DEL is missing. Without a note (the path was too long, or led to no namespace) nobody is ever
//! taken for gone by this rule.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cni_common::nftables::Element;

/// Device and inode number in front of the path.
const NUMBERS: usize = 16;

/// The note for the namespace at the path.
pub fn note(netns: &str) -> Option<Vec<u8>> {
    // A relative path means something else to another process.
    if !netns.starts_with('/') || NUMBERS + netns.len() > Element::NOTE_MAX {
        return None;
    }
    let meta = fs::metadata(netns).ok()?;
    Some([&meta.dev().to_be_bytes(), &meta.ino().to_be_bytes(), netns.as_bytes()].concat())
}

/// Whether a note's namespace is gone. What cannot be found out counts as there.
pub fn is_gone(note: &[u8]) -> bool {
    let Some((numbers, path)) = note.split_at_checked(NUMBERS) else { return false };
    match fs::metadata(Path::new(std::ffi::OsStr::from_bytes(path))) {
        Ok(meta) => numbers != [meta.dev().to_be_bytes(), meta.ino().to_be_bytes()].concat(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gone_is_what_the_path_no_longer_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("netns");
        fs::write(&path, "").unwrap();
        let written = note(path.to_str().unwrap()).unwrap();
        assert!(!is_gone(&written));
        // Another file under the same name, made while the first is still there: its number is another one.
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(is_gone(&written));
        fs::remove_file(&path).unwrap();
        assert!(is_gone(&written));
        assert!(!is_gone(b"short"));
    }

    #[test]
    fn no_note_of_what_cannot_be_found_again() {
        assert_eq!(note("netns"), None);
        assert_eq!(note("/nowhere/at/all"), None);
        assert_eq!(note(&format!("/{}", "x".repeat(110))), None);
    }
}
