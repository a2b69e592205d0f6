//! The attached file, and its place.

use std::path::Path;

use cni_common::remark;
use cni_common::spec::{CniError, Code, Context as _};
use ferrule_kit::state_file::{JSON, StateFile, stem};
use ferrule_kubelet::claims::Attached;

/// The file of an attachment, which need not exist.
pub fn of(folder: &Path, network: &str, container_id: &str, ifname: &str) -> StateFile {
    StateFile::new(folder, &stem(container_id, ifname), JSON, network)
}

/// What the file says. A torn one, as a loss of power leaves it, says nothing.
///
/// # Errors
/// Code 5 if it cannot be read, or another version has written it: only that version can undo its ADD.
pub fn find(file: &StateFile) -> Result<Option<Attached>, CniError> {
    let Some(bytes) = file.read()? else { return Ok(None) };
    let failed = |why| CniError::new(Code::Io, format!("read what ADD has made of the claims: {why}"));
    let attached = Attached::parse(&bytes).map_err(failed)?;
    if attached.is_none() {
        remark!("claims: ignores a torn file of claims");
    }
    Ok(attached)
}

/// Writes the file.
///
/// # Errors
/// Code 5 if it cannot be written.
pub fn write(file: &StateFile, attached: &Attached) -> Result<(), CniError> {
    let bytes = attached.to_bytes().context(|| "encode what the claims have made")?;
    file.write(&bytes)
}
