//! The attached file, and its place.

use std::path::Path;

use cni_common::spec::{CniError, Context as _};
use ferrule_kit::state_file::{JSON, StateFile};
use ferrule_kubelet::claims::Attached;

use crate::state::stem;

/// The file of an attachment, which need not exist.
pub fn of(folder: &Path, network: &str, container_id: &str, ifname: &str) -> StateFile {
    StateFile::new(folder, &stem(container_id, ifname), JSON, network)
}

/// What the file says. A broken one, as a loss of power leaves it, says nothing.
///
/// # Errors
/// Code 5 if it cannot be read.
pub fn find(file: &StateFile) -> Result<Option<Attached>, CniError> {
    Ok(file.read()?.and_then(|bytes| {
        let ignore = |why| eprintln!("host-device: ignores a broken file of a claim: {why}");
        Attached::parse(&bytes).map_err(ignore).ok()
    }))
}

/// Writes the file.
///
/// # Errors
/// Code 5 if it cannot be written.
pub fn write(file: &StateFile, attached: &Attached) -> Result<(), CniError> {
    let bytes = attached.to_bytes().context(|| "encode what the claims have made")?;
    file.write(&bytes)
}
