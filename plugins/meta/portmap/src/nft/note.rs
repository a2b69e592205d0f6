//! What is noted beside an owner's name: how many entries it has, and where it lives.
//!
//! The number spares CHECK and DEL the maps: if as many entries as that are found at the host ports that the configuration
//! names, there are no others. It can only be too large, when somebody else has taken an entry over.
//!
//! Where it lives is the rule by which an entry that was left behind is taken over. An ADD notes the path of the
//! container's network namespace, and the namespace's device and inode number. An owner is gone if that path no longer
//! leads to that namespace: the runtime has taken the sandbox away, and only the DEL is missing. If the path was too long,
//! or led to no namespace, it is not noted, and nobody is ever taken for gone by this rule.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ferrule_kernel::nftables::Element;

/// Device and inode number in front of the path.
const NUMBERS: usize = 16;

/// The note of an owner with that many entries in the namespace at the path.
pub fn write(entries: usize, netns: &str) -> Vec<u8> {
    // More than that are not to be had: each is a port.
    let mut note = u32::try_from(entries).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    // A relative path means something else to another process.
    if netns.starts_with('/')
        && note.len() + NUMBERS + netns.len() <= Element::METADATA_MAX
        && let Ok(meta) = fs::metadata(netns)
    {
        note.extend(meta.dev().to_be_bytes());
        note.extend(meta.ino().to_be_bytes());
        note.extend(netns.as_bytes());
    }
    note
}

/// How many entries the owner had at most.
pub fn entries(note: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*note.first_chunk()?)).ok()
}

/// Whether the owner's namespace is gone. What cannot be found out counts as there.
pub fn is_gone(note: &[u8]) -> bool {
    let Some((numbers, path)) = note.get(4..).and_then(|home| home.split_at_checked(NUMBERS)) else {
        return false;
    };
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
        let written = write(2, path.to_str().unwrap());
        assert!(!is_gone(&written));
        // Another file under the same name, made while the first is still there: its number is another one.
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(is_gone(&written));
        fs::remove_file(&path).unwrap();
        assert!(is_gone(&written));
        assert_eq!(entries(&written), Some(2));
        assert!(!is_gone(b"short"));
        assert_eq!(entries(b"s"), None);
    }

    #[test]
    fn no_home_is_noted_that_cannot_be_found_again() {
        for netns in ["netns", "/nowhere/at/all", &format!("/{}", "x".repeat(110))] {
            assert_eq!(write(7, netns), [0, 0, 0, 7]);
            assert!(!is_gone(&write(7, netns)));
        }
    }
}
