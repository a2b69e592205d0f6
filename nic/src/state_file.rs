//! The state file tells the next process which devices are in pods: their links are invisible from the node.

use std::fs;
use std::io;
use std::path::Path;

use crate::device::Device;

/// Reads the devices of the file. A missing file has none; a broken one is reported and has none either. So has one that the
/// user of `ferrule-nic devices` may not read.
///
/// # Errors
/// The file cannot be read: the next one would not have its devices.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Device>> {
    use io::ErrorKind::{NotFound, PermissionDenied};
    let bytes = match fs::read(path) {
        Err(error) if [NotFound, PermissionDenied].contains(&error.kind()) => return Ok(Vec::new()),
        Err(error) => {
            return Err(io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display())));
        }
        Ok(bytes) => bytes,
    };
    Ok(serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        log!("ignores {}: {error}", path.display());
        Vec::new()
    }))
}

/// Replaces the file.
pub(crate) fn write(path: &Path, devices: &[Device]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let pending = path.with_extension("new");
    fs::write(&pending, serde_json::to_vec(devices)?)?;
    fs::rename(pending, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Bus, Link, Place};

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/devices.json");
        assert!(read(&path).unwrap().is_empty());
        let device = |place| Device {
            id: "x".into(),
            bus: Some(Bus::default()),
            link: Some(Link::default()),
            place,
            ..Device::default()
        };
        let devices = [device(Place::Gone), device(Place::Pod { namespace: Some(1), index: None })];
        write(&path, &devices).unwrap();
        assert_eq!(read(&path).unwrap(), devices);
        fs::write(&path, "[{").unwrap();
        assert!(read(&path).unwrap().is_empty());
        assert!(read(folder.path()).is_err(), "a folder cannot be read");
    }
}
