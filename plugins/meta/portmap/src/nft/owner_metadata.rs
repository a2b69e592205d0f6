//! Owner metadata, stored in the userdata of an owner's element: host port count, and where and what the
//! container's network namespace was at the time of ADD.
//!
//! The count saves CHECK and DEL from listing the maps: if the lookup of the configured host ports finds that
//! many, the owner has no others. The count is an upper bound: another attachment may have taken over some of
//! the host ports.
//!
//! The owner is gone if the path of its network namespace no longer leads to this namespace: the runtime has
//! removed the sandbox, and DEL was lost. The next ADD may then take over its host ports. But a path says
//! nothing to a runtime with other mounts, whose `/run` may be another folder. So the metadata also records
//! the mount namespace of ADD and the folder of the path. The number of a mount namespace alone does not
//! suffice, because the kernel reuses it. In another mount namespace the owner is gone only if its name is
//! missing from this very folder: the kernel detaches a mount everywhere if its name is removed. Everything
//! else is unknown, and so are the owners of versions that did not record the mounts.
//!
//! A path in `/proc` has no folder any more if its process is gone.
//!
//! A path that is too long, relative or missing is not stored, and the owner then never counts as gone.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ferrule_kernel::nftables::Element;

/// Length of an [`identity`].
const IDENTITY: usize = 16;
/// The mount namespace of this process.
const MOUNTS: &str = "/proc/self/ns/mnt";

/// What the metadata and the file system say about an owner's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// It exists.
    Present,
    /// It does not exist.
    Gone,
    /// A process with other mounts may see it.
    Unknown,
}

/// Encodes the metadata of an owner: the count (4 bytes), the network namespace, its path, a zero byte, the
/// mount namespace and the folder of the path.
///
/// Earlier versions end with the path. The zero byte is part of the path for them, and they take an owner with
/// an invalid path for present.
pub fn encode(host_ports: usize, netns: &str) -> Vec<u8> {
    // The conversion cannot fail in practice: the number of ports is limited.
    let mut metadata = u32::try_from(host_ports).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    // A relative path depends on the working directory.
    if netns.starts_with('/')
        && metadata.len() + 3 * IDENTITY + netns.len() < Element::METADATA_MAX
        && let Some(namespace) = identity(fs::metadata(netns))
        && let Some(mounts) = identity(fs::metadata(MOUNTS))
        && let Some(folder) = folder(Path::new(netns))
    {
        metadata.extend(namespace);
        metadata.extend(netns.as_bytes());
        metadata.push(0);
        metadata.extend(mounts);
        metadata.extend(folder);
    }
    metadata
}

/// The number of host ports that the owner had after its ADD.
pub fn host_port_count(metadata: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*metadata.first_chunk()?)).ok()
}

/// The state of the owner's network namespace.
pub fn sandbox(metadata: &[u8]) -> Sandbox {
    let Some(recorded) = Recorded::decode(metadata) else { return Sandbox::Unknown };
    let found = fs::metadata(recorded.path);
    let is_absent = matches!(&found, Err(error) if error.kind() == io::ErrorKind::NotFound);
    if found.is_err() && !is_absent {
        return Sandbox::Unknown;
    }
    if identity(found).as_ref().is_some_and(|found| found == recorded.namespace) {
        return Sandbox::Present;
    }
    let is = |seen: Option<[u8; IDENTITY]>, recorded: &[u8]| seen.is_some_and(|seen| seen == recorded);
    let in_same_mounts = is(identity(fs::metadata(MOUNTS)), recorded.mounts);
    let in_same_folder = is(folder(recorded.path), recorded.folder);
    let is_of_process = recorded.path.starts_with("/proc");
    if in_same_folder && (in_same_mounts || is_absent) || in_same_mounts && is_of_process {
        Sandbox::Gone
    } else {
        Sandbox::Unknown
    }
}

/// What [`encode`] has recorded about the namespace.
struct Recorded<'a> {
    namespace: &'a [u8],
    path: &'a Path,
    mounts: &'a [u8],
    folder: &'a [u8],
}

impl<'a> Recorded<'a> {
    fn decode(metadata: &'a [u8]) -> Option<Self> {
        let (namespace, rest) = metadata.get(4..)?.split_at_checked(IDENTITY)?;
        let (path, mounts_and_folder) = rest.split_at_checked(rest.iter().position(|byte| *byte == 0)?)?;
        let (mounts, folder) = mounts_and_folder.get(1..)?.split_at_checked(IDENTITY)?;
        Some(Recorded { namespace, path: Path::new(OsStr::from_bytes(path)), mounts, folder })
    }
}

/// Device and inode number.
fn identity(file: io::Result<Metadata>) -> Option<[u8; IDENTITY]> {
    let file = file.ok()?;
    let both = u128::from(file.dev()) << 64 | u128::from(file.ino());
    Some(both.to_be_bytes())
}

fn folder(path: &Path) -> Option<[u8; IDENTITY]> {
    identity(fs::metadata(path.parent()?))
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
        assert_eq!(host_port_count(&encoded), Some(2));
        // As it is, as ADD in another mount namespace had encoded it, and as versions before the mounts did.
        let mounts_at = encoded.len() - 2 * IDENTITY;
        let mut elsewhere = encoded.clone();
        elsewhere[mounts_at] ^= 1;
        let mut other_folder = encoded.clone();
        other_folder[mounts_at + IDENTITY] ^= 1;
        let earlier = encoded[..mounts_at - 1].to_vec();
        let states = || [&encoded, &elsewhere, &other_folder, &earlier].map(|metadata| sandbox(metadata));
        use Sandbox::{Gone, Present, Unknown};
        assert_eq!(states(), [Present, Present, Present, Unknown]);
        // The second file exists at the same time as the first, so its inode number differs.
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &path).unwrap();
        // Another process may see a mount over the file.
        assert_eq!(states(), [Gone, Unknown, Unknown, Unknown]);
        fs::remove_file(&path).unwrap();
        assert_eq!(states(), [Gone, Gone, Unknown, Unknown]);
        assert_eq!(sandbox(b"short"), Unknown);
        assert_eq!(host_port_count(b"s"), None);
    }

    #[test]
    fn owner_is_gone_with_its_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let encoded = encode(1, &format!("/proc/{}/ns/net", child.id()));
        assert_eq!(sandbox(&encoded), Sandbox::Present);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(sandbox(&encoded), Sandbox::Gone);
    }

    #[test]
    fn relative_missing_and_long_paths_are_not_stored() {
        for netns in ["netns", "/nowhere/at/all", &format!("/{}", "x".repeat(110))] {
            assert_eq!(encode(7, netns), [0, 0, 0, 7]);
            assert_eq!(sandbox(&encode(7, netns)), Sandbox::Unknown);
        }
    }
}
