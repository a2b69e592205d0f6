//! Devices on a bus, and their links. `/sys` shows the links of the namespace for which it was mounted: a device that is in
//! a container has none.

use std::fs;
use std::path::{Path, PathBuf};

use cni_common::spec::CniError;

use crate::config::Key;

const PCI: &str = "/sys/bus/pci/devices";
const AUXILIARY: &str = "/sys/bus/auxiliary/devices";
/// Drivers that pass the device to a program. It then has no link.
const USERSPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// A device on a bus.
#[derive(Debug, PartialEq, Eq)]
pub enum BusDevice {
    /// A PCI device with a link.
    Pci(PathBuf),
    /// A PCI device that belongs to a program, as with DPDK.
    Userspace,
    /// A device on the auxiliary bus, such as a scalable function.
    Auxiliary(PathBuf),
}

/// Finds the device with this ID: on the PCI bus, else on the auxiliary bus.
///
/// # Errors
/// The reference's texts if there is none.
pub fn device(id: &str, key: Key) -> Result<BusDevice, CniError> {
    let [pci, auxiliary] = [PCI, AUXILIARY].map(|bus| Path::new(bus).join(id));
    if pci.exists() {
        let driver = fs::read_link(pci.join("driver")).unwrap_or_default();
        let is_userspace =
            USERSPACE_DRIVERS.iter().any(|name| driver.file_name().is_some_and(|it| it == *name));
        return Ok(if is_userspace { BusDevice::Userspace } else { BusDevice::Pci(pci) });
    }
    if auxiliary.exists() {
        return Ok(BusDevice::Auxiliary(auxiliary));
    }
    Err(CniError::internal(match key {
        Key::DeviceId => format!("runtime config DeviceID {id} not found or unsupported"),
        Key::PciBusId => {
            format!("error with host device: lstat {PCI}/{id}/driver: no such file or directory")
        }
    }))
}

/// The name of the device's link on the host. `None` if it has none there.
pub fn link_of(device: &BusDevice) -> Option<String> {
    match device {
        BusDevice::Userspace => None,
        BusDevice::Auxiliary(path) => first_in(&path.join("net")),
        // The link of a virtio device is below its part on the virtio bus.
        BusDevice::Pci(path) => first_in(&path.join("net")).or_else(|| {
            let parts = fs::read_dir(path).ok()?.filter_map(Result::ok);
            let mut virtio = parts.filter(|part| part.file_name().to_string_lossy().starts_with("virtio"));
            virtio.find_map(|part| first_in(&part.path().join("net")))
        }),
    }
}

/// The name of the link below a folder of `/sys/devices`.
///
/// # Errors
/// The reference's texts if there is none.
pub fn link_at(path: &str) -> Result<String, CniError> {
    let net = Path::new(path).join("net");
    if let Err(error) = fs::read_dir(&net) {
        let msg =
            format!("failed to find host device: failed to read directory {}: \"{error}\"", net.display());
        return Err(CniError::internal(msg));
    }
    first_in(&net).ok_or_else(|| {
        let msg =
            format!("failed to find host device: failed to find network device in path {}", net.display());
        CniError::internal(msg)
    })
}

/// The first name in a folder, in the order of names.
fn first_in(folder: &Path) -> Option<String> {
    fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).min()
}
