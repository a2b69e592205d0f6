//! Keys, and the file with this node's private key: a line of base64, as `wg genkey` writes it.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use ferrule_kernel::file;

use crate::cluster::{key_text, parse_key};

/// A private or a public key.
pub(super) type Key = [u8; 32];

/// Reads the private key; makes the file if it does not exist. Never changes a file that exists.
///
/// # Errors
/// The file cannot be read or made, others may read it, or it has no key.
pub(super) fn read_or_make(path: &Path) -> Result<Key> {
    let shown = path.display();
    let key = match file::open_own(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make(path).with_context(|| format!("make the key file {shown}"))
        }
        file => read(file.with_context(|| format!("open the key file {shown}"))?)
            .with_context(|| format!("the key file {shown}")),
    };
    key.map(clamped)
}

/// The key as the kernel stores it: Curve25519 does not use some bits.
fn clamped(mut key: Key) -> Key {
    key[0] &= 0xf8;
    key[31] = key[31] & 0x7f | 0x40;
    key
}

fn read(file: File) -> Result<Key> {
    let mode = file.metadata()?.permissions().mode() & 0o777;
    ensure!(mode & 0o077 == 0, "its mode is {mode:04o}: others than its owner may use it. Wanted: 0600");
    let mut text = String::new();
    file.take(100).read_to_string(&mut text)?;
    match parse_key(text.trim_end()) {
        Some(key) => Ok(key),
        None => {
            bail!("it has no key, which is 32 bytes in base64. Remove it, and the next start makes a new key")
        }
    }
}

/// Writes the key to another file first. The rename fails if another process was faster; then its key counts.
fn make(path: &Path) -> Result<Key> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    let mut key = Key::default();
    getrandom::fill(&mut key)?;
    let pending = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
    match file::create_durably(path, &pending, 0o600, format!("{}\n", key_text(&key)).as_bytes()) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read(file::open_own(path)?),
        written => Ok(written.map(|()| key)?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn the_key_goes_to_no_planted_link_and_comes_from_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let [path, target] = ["key", "target"].map(|name| folder.path().join(name));
        symlink(&target, format!("{}.{}", path.display(), std::process::id())).unwrap();
        read_or_make(&path).unwrap();
        assert!(!target.exists());
        chown(&path, Some(1234), None).unwrap();
        let error = format!("{:#}", read_or_make(&path).unwrap_err());
        assert!(error.ends_with("it belongs to user 1234"), "{error}");
        symlink(&path, &target).unwrap();
        assert!(read_or_make(&target).is_err(), "a link is no key file");
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_file_is_made_once_and_only_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/wireguard.key");
        let key = read_or_make(&path).unwrap();
        assert_eq!((read_or_make(&path).unwrap(), mode(&path)), (key, 0o600));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert_eq!(clamped(make(&path).unwrap()), key, "the faster one's key counts");
    }

    #[test]
    fn a_file_without_a_key_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("wireguard.key");
        let zeros = key_text(&[0; 32]);
        for text in ["", "no key\n", &zeros, &"A".repeat(1000), "/w=="] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = format!("{:#}", read_or_make(&path).unwrap_err());
            assert!(error.contains("it has no key") && error.contains("wireguard.key"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, key_text(&[7; 32])).unwrap();
        assert_eq!(read_or_make(&path).unwrap(), clamped([7; 32]));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = format!("{:#}", read_or_make(&path).unwrap_err());
        assert!(error.contains("its mode is 0640"), "{error}");
        let error = format!("{:#}", read_or_make(&path.join("x")).unwrap_err());
        assert!(error.contains("open the key file"), "{error}");
    }
}
