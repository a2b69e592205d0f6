//! Owner metadata, stored in the userdata of an owner's element: host port count, and where and what the
//! container's network namespace was at the time of ADD.
//!
//! The count saves CHECK and DEL from listing the maps: if CHECK or DEL finds that
//! many of the configured host ports, the owner has no others. The count is an upper bound: another attachment may have taken over some of
//! the host ports.
//!
//! The owner is gone if the path of its network namespace no longer leads to this namespace: the runtime has
//! removed the namespace, and DEL was lost. The next ADD may then take over its host ports. But a path says
//! nothing to a runtime with other mounts. So the metadata also records the view of ADD, for
//! [`ferrule_kit::presence`], which decides. The owners of versions that did not record it are unknown.
//!
//! A path that is too long, relative or missing is not stored, and the owner then never counts as gone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ferrule_kernel::nftables::Element;
use ferrule_kit::presence::{self, Identity, Presence, View};

/// The host port count of an owner whose repair has not ended yet. As a count it is wrong for every owner, so
/// that CHECK and DEL of every version list the maps.
pub const UNFINISHED: usize = u32::MAX as usize;
/// Length of an encoded [`Identity`].
const IDENTITY: usize = 16;

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
        && let Some(namespace) = presence::identity(netns)
        && let Some(View::Recorded { mounts, folder }) = View::record(Path::new(netns))
    {
        metadata.extend(bytes(namespace));
        metadata.extend(netns.as_bytes());
        metadata.push(0);
        metadata.extend(bytes(mounts));
        metadata.extend(bytes(folder));
    }
    metadata
}

/// The number of host ports that the owner had after its ADD.
pub fn host_port_count(metadata: &[u8]) -> Option<usize> {
    usize::try_from(u32::from_be_bytes(*metadata.first_chunk()?)).ok()
}

/// Whether the repair of the owner was killed before its end.
pub fn is_unfinished(owner: &Element) -> bool {
    owner.metadata.as_deref().and_then(host_port_count) == Some(UNFINISHED)
}

/// The state of the owner's network namespace.
pub fn presence(metadata: &[u8]) -> Presence {
    let Some((path, namespace, view)) = decode(metadata) else { return Presence::Unknown };
    presence::look(path, Some(namespace), view)
}

/// What [`encode`] has recorded about the namespace.
fn decode(metadata: &[u8]) -> Option<(&Path, Identity, View)> {
    let (namespace, rest) = metadata.get(4..)?.split_first_chunk()?;
    let (path, view) = rest.split_at_checked(rest.iter().position(|byte| *byte == 0)?)?;
    let (mounts, folder) = view.get(1..)?.split_first_chunk()?;
    let view = View::Recorded { mounts: read(*mounts), folder: read(folder.try_into().ok()?) };
    Some((Path::new(OsStr::from_bytes(path)), read(*namespace), view))
}

fn bytes((device, inode): Identity) -> [u8; IDENTITY] {
    (u128::from(device) << 64 | u128::from(inode)).to_be_bytes()
}

fn read(bytes: [u8; IDENTITY]) -> Identity {
    let both = u128::from_be_bytes(bytes);
    // The lower half is the inode number.
    ((both >> 64) as u64, both as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let states = || [&encoded, &elsewhere, &other_folder, &earlier].map(|metadata| presence(metadata));
        use Presence::{Gone, Unknown};
        let present = Presence::Present(presence::identity(&path).unwrap());
        assert_eq!(states(), [present, present, present, Unknown]);
        // The second file exists at the same time as the first, so its inode number differs.
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        fs::rename(&other, &path).unwrap();
        // Another process may see a mount over the file.
        assert_eq!(states(), [Gone { is_missing: false }, Unknown, Unknown, Unknown]);
        fs::remove_file(&path).unwrap();
        let gone = Gone { is_missing: true };
        assert_eq!(states(), [gone, gone, Unknown, Unknown]);
        assert_eq!(presence(b"short"), Unknown);
        assert_eq!(host_port_count(b"s"), None);
    }

    #[test]
    fn owner_is_gone_with_its_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let encoded = encode(1, &format!("/proc/{}/ns/net", child.id()));
        assert!(matches!(presence(&encoded), Presence::Present(_)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(presence(&encoded), Presence::Gone { .. }));
    }

    #[test]
    fn relative_missing_and_long_paths_are_not_stored() {
        for netns in ["netns", "/nowhere/at/all", &format!("/{}", "x".repeat(110))] {
            assert_eq!(encode(7, netns), [0, 0, 0, 7]);
            assert_eq!(presence(&encode(7, netns)), Presence::Unknown);
        }
    }
}
