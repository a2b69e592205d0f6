//! The state file tells the next process which devices there are: those in pods are invisible from the node, and those on the node may
//! go into pods while no process runs.

use std::fs;
use std::io;
use std::path::Path;

use ferrule_kernel::file;
use ferrule_kubelet::claims::folder::lock;

use crate::device::Device;
use crate::health::Carrier;

/// Reads the devices of the file. A missing file has none. Nor has a broken file or another object, which is reported, or a
/// file that the user of `ferrule-nic devices` may not read.
///
/// # Errors
/// The file cannot be read: the next one would not have its devices.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Device>> {
    use io::ErrorKind::{NotFound, Other, PermissionDenied};
    let is_foreign = || fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file());
    let bytes = match file::read(path) {
        Err(error) if [NotFound, PermissionDenied].contains(&error.kind()) => return Ok(Vec::new()),
        Err(error) if error.kind() == Other || is_foreign() => {
            log!("ignores {}: {error}", path.display());
            return Ok(Vec::new());
        }
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

/// The device without what comes and goes while its link is on the node.
pub(crate) fn lasting(device: &Device) -> Device {
    let mut lasting = Device { carrier: Carrier::default(), gone_since: None, ..device.clone() };
    if let Some(link) = lasting.link.as_mut() {
        (link.up, link.carrier, link.addresses, link.route) = (false, false, Vec::new(), None);
    }
    lasting
}

/// Replaces the file.
pub(crate) fn write(path: &Path, devices: &[Device]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Two instances may write at once while one replaces the other, each as process 1 of its container.
    let _lock = lock(folder)?;
    let pending = path.with_extension("new");
    file::replace(path, &pending, 0o644, &serde_json::to_vec(devices)?)
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
        assert!(read(folder.path()).unwrap().is_empty(), "a folder is no state");
        assert!(read(&path.join("x")).is_err(), "a file is no folder");
    }
}
