//! The file that tells the next process which devices are in pods: their links are invisible from the node.

use std::fs;
use std::io;
use std::path::Path;

use crate::device::Device;

/// The devices of the file. A missing file has none; a broken one is reported and has none either.
pub(crate) fn read(path: &Path) -> Vec<Device> {
    let Ok(text) = fs::read_to_string(path) else { return Vec::new() };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        eprintln!("ignores {}: {error}", path.display());
        Vec::new()
    })
}

/// Replaces the file.
pub(crate) fn write(path: &Path, devices: &[Device]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let draft = path.with_extension("new");
    fs::write(&draft, serde_json::to_vec(devices)?)?;
    fs::rename(draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Bus, Link, Place};

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/devices.json");
        assert!(read(&path).is_empty());
        let device =
            |place| Device { id: "x".into(), bus: Some(Bus::default()), link: Some(Link::default()), place };
        let devices = [device(Place::Gone), device(Place::Pod { namespace: Some(1), index: None })];
        write(&path, &devices).unwrap();
        assert_eq!(read(&path), devices);
        fs::write(&path, "[{").unwrap();
        assert!(read(&path).is_empty());
    }
}
