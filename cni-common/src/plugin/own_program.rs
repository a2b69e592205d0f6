//! Recognises a file as the program of this process: a link to it, or a copy, which `cp` and an image's `COPY`
//! make of a link.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::OnceLock;

/// This process's program, even if its file has been replaced or deleted since.
const OWN: &str = "/proc/self/exe";
/// How many bytes are compared at the start of a copy, where the ELF headers and the build ID are.
const HEAD: usize = 4096;
/// The head of the ELF note with a SHA-1 build ID: length of the owner's name, length of the ID, kind
/// `NT_GNU_BUILD_ID`, owner. The linker computes the ID from the content of the program.
const BUILD_ID: &[u8] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
const BUILD_ID_LEN: usize = 20;
/// The permission bits for execution.
const EXECUTABLE: u32 = 0o111;

/// Whether `path`, whose metadata is `found`, is this process's program. If this cannot be found out, it is
/// not.
pub(super) fn is_own_program(path: &Path, found: &Metadata) -> bool {
    // A chain asks for each member.
    static EXPECTED: OnceLock<Option<Metadata>> = OnceLock::new();
    let own = Path::new(OWN);
    let expected = EXPECTED.get_or_init(|| fs::metadata(own).ok());
    expected.as_ref().is_some_and(|expected| is_program(own, expected, path, found).unwrap_or(false))
}

fn is_program(own: &Path, expected: &Metadata, path: &Path, found: &Metadata) -> io::Result<bool> {
    if (found.dev(), found.ino()) == (expected.dev(), expected.ino()) {
        return Ok(true);
    }
    // A file without the permission cannot be started as a process either. An interrupted copy is shorter.
    if found.len() != expected.len() || found.mode() & EXECUTABLE == 0 {
        return Ok(false);
    }
    let head = head(own)?;
    Ok(has_build_id(&head) && head == self::head(path)?)
}

fn head(path: &Path) -> io::Result<[u8; HEAD]> {
    let mut bytes = [0; HEAD];
    File::open(path)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn has_build_id(head: &[u8; HEAD]) -> bool {
    head[..HEAD - BUILD_ID_LEN].windows(BUILD_ID.len()).any(|bytes| bytes == BUILD_ID)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const LEN: usize = 3 * HEAD;

    /// A file that looks like a program with this build ID.
    fn program(id: &[u8; BUILD_ID_LEN]) -> Vec<u8> {
        let mut bytes = vec![7; LEN];
        bytes[0x200..][..BUILD_ID.len()].copy_from_slice(BUILD_ID);
        bytes[0x200 + BUILD_ID.len()..][..id.len()].copy_from_slice(id);
        bytes
    }

    fn compare(own: &[u8], other: &[u8], mode: u32) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let [own_path, other_path] = ["own", "other"].map(|name| dir.path().join(name));
        fs::write(&own_path, own).unwrap();
        fs::write(&other_path, other).unwrap();
        fs::set_permissions(&other_path, fs::Permissions::from_mode(mode)).unwrap();
        let [expected, found] = [&own_path, &other_path].map(|path| fs::metadata(path).unwrap());
        is_program(&own_path, &expected, &other_path, &found).unwrap_or(false)
    }

    #[test]
    fn a_copy_has_the_same_build_id_and_size() {
        let own = program(&[1; BUILD_ID_LEN]);
        assert!(compare(&own, &own, 0o755));
        assert!(!compare(&own, &own, 0o644), "no execute permission");
        assert!(!compare(&own, &program(&[2; BUILD_ID_LEN]), 0o755), "another build");
        assert!(!compare(&own, &own[..LEN - 1], 0o755), "a shorter file");
        let unknown = vec![7; LEN];
        assert!(!compare(&unknown, &unknown, 0o755), "no build ID");
        let mut late = unknown;
        late[HEAD - BUILD_ID.len()..HEAD].copy_from_slice(BUILD_ID);
        assert!(!compare(&late, &late, 0o755), "a build ID beyond the first part");
    }

    #[test]
    fn a_link_needs_no_build_id() {
        let dir = tempfile::tempdir().unwrap();
        let [own, hard, soft] = ["own", "hard", "soft"].map(|name| dir.path().join(name));
        fs::write(&own, "").unwrap();
        fs::hard_link(&own, &hard).unwrap();
        std::os::unix::fs::symlink(&own, &soft).unwrap();
        for link in [hard, soft] {
            let [expected, found] = [&own, &link].map(|path| fs::metadata(path).unwrap());
            assert!(is_program(&own, &expected, &link, &found).unwrap());
        }
    }
}
