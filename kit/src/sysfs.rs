//! Devices on a bus, and their links. `/sys` shows the links of the namespace for which it was mounted: a device that is in
//! a container has none.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use cni_common::spec::CniError;

/// Where the kernel shows its devices.
pub const SYS: &str = "/sys";

/// The key of an ID on a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// `runtimeConfig.deviceID`, `deviceID` as Multus writes it, or an ID from the kubelet.
    DeviceId,
    /// `pciBusID`.
    PciBusId,
}

/// Whether the ID can be the name of a file.
pub fn is_id(id: &str) -> bool {
    !id.is_empty() && !id.contains('/') && id != ".." && id != "."
}

/// Drivers that pass the device to a program. It then has no link.
pub const USERSPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// A device on a bus.
#[derive(Debug)]
pub struct BusDevice {
    /// `pci` or `auxiliary`.
    pub bus: &'static str,
    folder: PathBuf,
}

impl BusDevice {
    /// Finds the device with this ID below `sys`: on the PCI bus, else on the auxiliary bus.
    ///
    /// # Errors
    /// The reference's texts if there is none.
    pub fn find(sys: &Path, id: &str, key: Key) -> Result<BusDevice, CniError> {
        let devices = ["pci", "auxiliary"]
            .map(|bus| BusDevice { bus, folder: sys.join("bus").join(bus).join("devices").join(id) });
        let found = devices.into_iter().find(|device| device.folder.exists());
        found.ok_or_else(|| {
            let driver = format!("{SYS}/bus/pci/devices/{id}/driver");
            CniError::internal(match key {
                Key::DeviceId => format!("runtime config DeviceID {id} not found or unsupported"),
                Key::PciBusId => {
                    format!("error with host device: lstat {driver}: no such file or directory")
                }
            })
        })
    }

    /// Whether it is a PCI device that belongs to a program, as with DPDK.
    pub fn is_userspace(&self) -> bool {
        let driver = fs::read_link(self.folder.join("driver")).unwrap_or_default();
        let name = driver.file_name().unwrap_or_default();
        self.bus == "pci" && USERSPACE_DRIVERS.iter().any(|driver| name == *driver)
    }

    /// The name of its link on the host.
    ///
    /// # Errors
    /// The reference's text if it has none there.
    pub fn link(&self) -> Result<String, CniError> {
        link_below(&self.folder).ok_or_else(|| {
            let (bus, id) = (self.bus, self.folder.file_name().unwrap_or_default().display());
            CniError::internal(format!(
                "failed to find host device: no net directory under {bus} device {id}"
            ))
        })
    }
}

/// The name of the link that a device plugin's ID means: that of the device on a bus, else the ID itself.
///
/// # Errors
/// Code 7 if the ID would lead to another folder; the device has no link on the host.
pub fn link_of(id: &str) -> Result<String, CniError> {
    if !is_id(id) {
        return Err(CniError::invalid_config(format!("invalid device ID {id:?}")));
    }
    BusDevice::find(Path::new(SYS), id, Key::DeviceId)
        .map_or_else(|_| Ok(id.to_owned()), |device| device.link())
}

/// The name of the link below a folder of `/sys/devices`.
///
/// # Errors
/// The reference's texts if there is none.
pub fn link_at(path: &str) -> Result<String, CniError> {
    let net = Path::new(path).join("net");
    let failed = |why| CniError::internal(format!("failed to find host device: failed to {why}"));
    if let Err(error) = fs::read_dir(&net) {
        return Err(failed(format!("read directory {}: \"{error}\"", net.display())));
    }
    first_in(&net).ok_or_else(|| failed(format!("find network device in path {}", net.display())))
}

/// The name of the link of the device with this folder: the first in the order of names. `None` if it has none in this namespace.
pub fn link_below(device: &Path) -> Option<String> {
    // The link of a virtio device is below its part on the virtio bus.
    let virtio = || {
        let parts = fs::read_dir(device).ok()?.filter_map(Result::ok);
        let mut virtio = parts.filter(|part| part.file_name().to_string_lossy().starts_with("virtio"));
        virtio.find_map(|part| first_in(&part.path().join("net")))
    };
    first_in(&device.join("net")).or_else(virtio)
}

/// The place of a virtual function (SR-IOV).
#[derive(Debug, PartialEq, Eq)]
pub struct VirtualFunction {
    /// Its number among those of the physical function.
    pub number: u32,
    /// The links of the physical function on the host, in the order of names. Some drivers also show links that represent virtual
    /// functions there.
    pub physical: Vec<String>,
}

/// The place of the PCI device with this ID. `None` if it is no virtual function.
pub fn virtual_function(sys: &Path, id: &str) -> Option<VirtualFunction> {
    let physical = sys.join("bus/pci/devices").join(id).join("physfn");
    let is_own = |path: &Path| fs::read_link(path).is_ok_and(|to| to.file_name() == Some(OsStr::new(id)));
    let parts = fs::read_dir(&physical).ok()?.filter_map(Result::ok);
    let mut numbers = parts.filter_map(|part| {
        let name = part.file_name().into_string().ok()?;
        let number = name.strip_prefix("virtfn")?.parse().ok()?;
        is_own(&part.path()).then_some(number)
    });
    Some(VirtualFunction { number: numbers.next()?, physical: names_in(&physical.join("net")) })
}

/// The names in a folder, in their order.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The first name in a folder, in the order of names.
fn first_in(folder: &Path) -> Option<String> {
    names_in(folder).into_iter().next()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A `/sys` with these folders; a device on a bus is a link into `devices`, as the kernel shows it.
    fn sys(folders: &[&str]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        for folder in folders {
            let real = sys.path().join("devices").join(folder);
            fs::create_dir_all(&real).unwrap();
            let (bus, rest) = folder.split_once('/').unwrap();
            let id = rest.split('/').next().unwrap();
            let devices = sys.path().join("bus").join(bus).join("devices");
            fs::create_dir_all(&devices).unwrap();
            let _ = symlink(Path::new("../../../devices").join(bus).join(id), devices.join(id));
        }
        sys
    }

    #[test]
    fn the_link_of_a_device() {
        let sys = sys(&[
            "pci/0000:00:1f.6/net/ens2",
            "pci/0000:00:1f.6/net/ens1",
            "pci/0000:00:03.0/virtio1/net/eth7",
            "pci/0000:00:04.0/net",
            "auxiliary/mlx5_core.sf.4/net/sf0",
            "auxiliary/mlx5_core.sf.5",
        ]);
        let link = |id, key| -> Result<String, String> {
            let link = BusDevice::find(sys.path(), id, key).and_then(|device| device.link());
            link.map_err(|error| error.msg)
        };
        let none = |device| Err(format!("failed to find host device: no net directory under {device}"));
        // The first one in the order of names.
        assert_eq!(link("0000:00:1f.6", Key::PciBusId), Ok("ens1".to_owned()));
        assert_eq!(link("0000:00:03.0", Key::DeviceId), Ok("eth7".to_owned()));
        assert_eq!(link("mlx5_core.sf.4", Key::DeviceId), Ok("sf0".to_owned()));
        // Multus writes both keys.
        assert_eq!(link("mlx5_core.sf.4", Key::PciBusId), Ok("sf0".to_owned()));
        assert_eq!(link("0000:00:04.0", Key::PciBusId), none("pci device 0000:00:04.0"));
        assert_eq!(link("mlx5_core.sf.5", Key::DeviceId), none("auxiliary device mlx5_core.sf.5"));
        let driver = "/sys/bus/pci/devices/0000:00:09.0/driver";
        assert_eq!(
            link("0000:00:09.0", Key::PciBusId),
            Err(format!("error with host device: lstat {driver}: no such file or directory"))
        );
        assert_eq!(
            link("0000:00:09.0", Key::DeviceId),
            Err("runtime config DeviceID 0000:00:09.0 not found or unsupported".to_owned())
        );
        let path = |folder: &str| sys.path().join("devices").join(folder).display().to_string();
        assert_eq!(link_at(&path("pci/0000:00:1f.6")), Ok("ens1".to_owned()));
        let error = std::io::Error::from_raw_os_error(2);
        let (empty, missing) = (path("pci/0000:00:04.0"), path("pci/0000:00:09.0"));
        assert_eq!(
            link_at(&empty).unwrap_err().msg,
            format!("failed to find host device: failed to find network device in path {empty}/net")
        );
        assert_eq!(
            link_at(&missing).unwrap_err().msg,
            format!("failed to find host device: failed to read directory {missing}/net: \"{error}\"")
        );
    }

    #[test]
    fn the_place_of_a_virtual_function() {
        let sys = sys(&[
            "pci/0000:01:00.0/net/pf1",
            "pci/0000:01:00.0/net/pf0",
            "pci/0000:01:10.2",
            "pci/0000:01:10.4",
        ]);
        let devices = sys.path().join("devices/pci");
        let physical = devices.join("0000:01:00.0");
        symlink("../0000:01:10.0", physical.join("virtfn0")).unwrap();
        symlink("../0000:01:10.2", physical.join("virtfn1")).unwrap();
        for id in ["0000:01:10.2", "0000:01:10.4"] {
            symlink("../0000:01:00.0", devices.join(id).join("physfn")).unwrap();
        }
        let found = VirtualFunction { number: 1, physical: vec!["pf0".to_owned(), "pf1".to_owned()] };
        assert_eq!(virtual_function(sys.path(), "0000:01:10.2"), Some(found));
        for id in ["0000:01:10.4", "0000:01:00.0", "0000:09:00.0"] {
            assert_eq!(virtual_function(sys.path(), id), None, "{id}");
        }
    }

    #[test]
    fn drivers_of_programs() {
        let sys = sys(&["pci/0000:00:04.0", "auxiliary/mlx5_core.sf.4"]);
        let is_userspace = |id, driver: &str| {
            let device = BusDevice::find(sys.path(), id, Key::DeviceId).unwrap();
            let link = device.folder.join("driver");
            symlink(Path::new("../../../bus/pci/drivers").join(driver), &link).unwrap();
            let answer = device.is_userspace();
            fs::remove_file(link).unwrap();
            answer
        };
        for driver in ["vfio-pci", "uio_pci_generic", "igb_uio"] {
            assert!(is_userspace("0000:00:04.0", driver), "{driver}");
            assert!(!is_userspace("mlx5_core.sf.4", driver), "{driver}");
        }
        assert!(!is_userspace("0000:00:04.0", "virtio-pci") && !is_userspace("0000:00:04.0", "vfio-pci-x"));
    }
}
