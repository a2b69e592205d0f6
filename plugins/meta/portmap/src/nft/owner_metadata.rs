//! Owner metadata, stored in the userdata of an owner's element: host port count, netns path, device and
//! inode.
//!
//! The count saves CHECK and DEL from listing the maps: if the lookup of the configured host ports finds that
//! many, the owner has no others. The count is an upper bound: another attachment may have taken over some of
//! the host ports.
//!
//! Path, device and inode identify the container's network namespace at the time of ADD. The owner is gone if
//! the path no longer leads to this namespace: the runtime has removed the sandbox, and DEL was lost. The
//! next ADD may then take over its host ports. A path that is too long, relative or missing is not stored,
//! and the owner then never counts as gone.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ferrule_kernel::nftables::Element;

/// Length of device and inode number, which precede the path.
const NUMBERS: usize = 16;

/// Encodes the metadata of an owner: the count (4 bytes), device and inode (8 bytes each), path.
pub fn encode(host_ports: usize, netns: &str) -> Vec<u8> {
    // The conversion cannot fail in practice: the number of ports is limited.
    let mut metadata = u32::try_from(host_ports).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    // A relative path depends on the working directory.
    if netns.starts_with('/')
        && metadata.len() + NUMBERS + netns.len() <= Element::METADATA_MAX
        && let Ok(meta) = fs::metadata(netns)
    {
        metadata.extend(meta.dev().to_be_bytes());
        metadata.extend(meta.ino().to_be_bytes());
        metadata.extend(netns.as_bytes());
    }
    metadata
}

/// The number of host ports that the owner had after its ADD.
pub fn host_port_count(metadata: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*metadata.first_chunk()?)).ok()
}

/// Whether the owner's namespace is gone. False if that is unknown.
pub fn is_gone(metadata: &[u8]) -> bool {
    let Some((numbers, path)) = metadata.get(4..).and_then(|netns| netns.split_at_checked(NUMBERS)) else {
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
    fn owner_is_gone_if_the_path_has_another_inode_or_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("netns");
        fs::write(&path, "").unwrap();
        let encoded = encode(2, path.to_str().unwrap());
        assert!(!is_gone(&encoded));
        // The second file exists at the same time as the first, so its inode number differs.
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(is_gone(&encoded));
        fs::remove_file(&path).unwrap();
        assert!(is_gone(&encoded));
        assert_eq!(host_port_count(&encoded), Some(2));
        assert!(!is_gone(b"short"));
        assert_eq!(host_port_count(b"s"), None);
    }

    #[test]
    fn relative_missing_and_long_paths_are_not_stored() {
        for netns in ["netns", "/nowhere/at/all", &format!("/{}", "x".repeat(110))] {
            assert_eq!(encode(7, netns), [0, 0, 0, 7]);
            assert!(!is_gone(&encode(7, netns)));
        }
    }
}
