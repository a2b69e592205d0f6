//! What the operator's tool reads of the daemon's leases, and how it releases one.

use std::fs;
use std::path::{Path, PathBuf};

use cni_common::plugin::Attachment;
use cni_common::spec::CniError;
use ferrule_kernel::file;
use serde::Deserialize as _;
use serde_json::Value;

use crate::client::{self, Error};
use crate::wire::{Family, Key, Operation, lease_dir, lease_file};

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its file.
    pub path: PathBuf,
    /// Its attachment.
    pub key: Key,
    /// The address; empty if unknown.
    pub address: String,
    /// The server's address, or its DUID with DHCPv6; empty if unknown.
    pub server: String,
    /// CNI_NETNS.
    pub netns: String,
}

/// Lists the leases of the daemon with this socket. A missing folder has none.
pub fn list(socket: &Path) -> Vec<Listed> {
    let read = |path: PathBuf| {
        let state: Value = serde_json::from_slice(&file::read(&path).ok()?).ok()?;
        let text = |group: &str, name: &str| state[group][name].as_str().unwrap_or_default().to_owned();
        Some(Listed {
            key: Key::deserialize(state.get("key")?).ok()?,
            address: text("lease", "address"),
            server: text("lease", "server"),
            netns: text("sandbox", "path"),
            path,
        })
    };
    let files = fs::read_dir(lease_dir(socket)).into_iter().flatten().flatten().map(|file| file.path());
    // The name of a pending file begins with a dot.
    let is_pending =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    files.filter(|path| !is_pending(path)).filter_map(read).collect()
}

/// Asks the daemon to release the attachment's leases, if there still is one and `is_dead` says so; without a daemon removes their files.
/// Returns whether it has.
///
/// # Errors
/// The daemon's error, or the file cannot be removed.
pub fn release(
    socket: &Path,
    attachment: Attachment<'_>,
    is_dead: &mut dyn FnMut() -> bool,
) -> Result<bool, CniError> {
    let request = crate::request(Operation::Release, attachment);
    if !Family::ALL.iter().any(|family| lease_file(socket, &request.key, *family).exists()) || !is_dead() {
        return Ok(false);
    }
    match client::ask(socket, &request) {
        Ok(_) => Ok(true),
        Err(Error::NoDaemon(_)) => client::forget(socket, &request).map(|()| true),
        Err(error) => Err(error.into()),
    }
}
