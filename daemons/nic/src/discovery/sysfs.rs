//! What sysfs says about devices on the PCI and auxiliary buses.

use std::fs;
use std::path::{Path, PathBuf};

use ferrule_kit::sysfs::{USERSPACE_DRIVERS, link_below};

use crate::device::Bus;

/// The tree at `/sys`, or a test's.
#[derive(Clone, Debug)]
pub struct Sysfs(pub PathBuf);

impl Sysfs {
    /// The ID and the bus of the device that this link belongs to; `None` for virtual links.
    pub fn of_link(&self, name: &str) -> Option<(String, Bus)> {
        let device = fs::canonicalize(self.0.join("class/net").join(name).join("device")).ok()?;
        self.of_device(&device)
    }

    /// The speed of a link on a bus in Mbit/s.
    pub fn speed(&self, name: &str) -> Option<u32> {
        let link = self.0.join("class/net").join(name);
        link.join("device").exists().then(|| text(&link, "speed")?.parse().ok())?
    }

    /// What the PCI bus says about the device with this address.
    pub fn of_address(&self, address: &str) -> Option<Bus> {
        let device = fs::canonicalize(self.0.join("bus/pci/devices").join(address)).ok()?;
        Some(pci(&device))
    }

    fn of_device(&self, device: &Path) -> Option<(String, Bus)> {
        let id = name(device)?;
        match link_name(device, "subsystem")?.as_str() {
            "pci" => Some((id, pci(device))),
            "auxiliary" => {
                let driver = link_name(device, "driver");
                Some((id, Bus { auxiliary: true, driver, functions: 0, ..pci(device.parent()?) }))
            }
            // A virtio device is known by the PCI device that it sits on.
            "virtio" => self.of_device(device.parent()?),
            _ => None,
        }
    }

    /// Network devices on the PCI bus that have a driver of the kernel's but no link here: their links are in pods.
    pub fn without_link(&self) -> Vec<(String, Bus)> {
        let Ok(entries) = fs::read_dir(self.0.join("bus/pci/devices")) else { return Vec::new() };
        let paths = entries.flatten().filter_map(|entry| fs::canonicalize(entry.path()).ok());
        let hidden = |path: &PathBuf| {
            let class = text(path, "class");
            let driver = link_name(path, "driver");
            class.is_some_and(|class| class.starts_with("0x02"))
                && driver.is_some_and(|driver| !USERSPACE_DRIVERS.contains(&driver.as_str()))
                && link_below(path).is_none()
        };
        paths.filter(hidden).filter_map(|path| self.of_device(&path)).collect()
    }

    /// Whether the device is on the auxiliary bus.
    pub fn is_auxiliary(&self, id: &str) -> bool {
        self.0.join("bus/auxiliary/devices").join(id).exists()
    }
}

fn pci(device: &Path) -> Bus {
    let address = name(device);
    let pf = fs::canonicalize(device.join("physfn")).ok();
    let parent = pf.as_deref().unwrap_or(device);
    let code = |file: &str| text(device, file).map(|text| text.trim_start_matches("0x").to_owned());
    Bus {
        auxiliary: false,
        vendor: code("vendor"),
        device: code("device"),
        driver: link_name(device, "driver"),
        acpi_index: text(device, "acpi_index").and_then(|text| text.parse().ok()),
        numa: text(device, "numa_node").and_then(|text| text.parse().ok()).filter(|node| *node >= 0),
        pf_address: name(parent),
        pf_name: link_below(parent),
        function: pf.as_deref().and_then(|pf| function(pf, address.as_deref()?)),
        functions: text(device, "sriov_numvfs").and_then(|text| text.parse().ok()).unwrap_or(0),
        pcie_root: device.components().find_map(|part| {
            let part = part.as_os_str().to_str()?;
            part.strip_prefix("pci")?.contains(':').then(|| part.to_owned())
        }),
        pci_address: address,
    }
}

/// Which virtual function of the physical function has this address.
fn function(pf: &Path, address: &str) -> Option<u32> {
    fs::read_dir(pf).ok()?.flatten().find_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("virtfn")?.parse().ok()?;
        (name(&fs::read_link(entry.path()).ok()?)? == address).then_some(number)
    })
}

fn link_name(device: &Path, link: &str) -> Option<String> {
    name(&fs::read_link(device.join(link)).ok()?)
}

fn name(path: &Path) -> Option<String> {
    path.file_name()?.to_str().map(str::to_owned)
}

fn text(device: &Path, file: &str) -> Option<String> {
    fs::read_to_string(device.join(file)).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A physical function `p0` with two virtual functions; the second one's link is in a pod.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let link = |target: &str, path: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            symlink(at(target), at(path)).unwrap();
        };
        for (address, number, net) in [
            ("0000:03:00.0", None, Some("p0")),
            ("0000:03:00.1", Some(0), Some("v0")),
            ("0000:03:00.2", Some(1), None),
        ] {
            let device = format!("devices/pci0000:00/{address}");
            fs::create_dir_all(at(&device)).unwrap();
            for (file, content) in [
                ("class", "0x020000\n"),
                ("vendor", "0x8086\n"),
                ("device", "0x154c\n"),
                ("numa_node", "1\n"),
            ] {
                fs::write(at(&device).join(file), content).unwrap();
            }
            link("bus/pci", &format!("{device}/subsystem"));
            link("bus/pci/drivers/iavf", &format!("{device}/driver"));
            link(&device, &format!("bus/pci/devices/{address}"));
            match number {
                None => fs::write(at(&device).join("sriov_numvfs"), "2\n").unwrap(),
                Some(number) => {
                    link("devices/pci0000:00/0000:03:00.0", &format!("{device}/physfn"));
                    link(&device, &format!("devices/pci0000:00/0000:03:00.0/virtfn{number}"));
                }
            }
            if let Some(net) = net {
                fs::create_dir_all(at(&device).join("net").join(net)).unwrap();
                link(&device, &format!("devices/pci0000:00/{address}/net/{net}/device"));
                link(&format!("{device}/net/{net}"), &format!("class/net/{net}"));
            }
        }
        root
    }

    #[test]
    fn virtual_functions() {
        let root = tree();
        let sysfs = Sysfs(root.path().into());
        let (id, bus) = sysfs.of_link("v0").unwrap();
        assert_eq!(id, "0000:03:00.1");
        assert_eq!(
            (bus.vendor.as_deref(), bus.driver.as_deref(), bus.numa),
            (Some("8086"), Some("iavf"), Some(1))
        );
        assert_eq!((bus.pf_name.as_deref(), bus.pf_address.as_deref()), (Some("p0"), Some("0000:03:00.0")));
        assert_eq!((bus.function, bus.functions, bus.pcie_root.as_deref()), (Some(0), 0, Some("pci0000:00")));
        assert_eq!(sysfs.speed("v0"), None);
        fs::write(root.path().join("class/net/v0/speed"), "25000\n").unwrap();
        assert_eq!(sysfs.speed("v0"), Some(25_000));
        assert_eq!(sysfs.of_link("p0").unwrap().1.functions, 2);
        assert_eq!(sysfs.of_link("lo"), None);
        let hidden: Vec<_> = sysfs.without_link().into_iter().map(|(id, bus)| (id, bus.function)).collect();
        assert_eq!(hidden, [("0000:03:00.2".to_owned(), Some(1))]);
    }

    #[test]
    fn virtio_is_known_by_its_pci_device() {
        let root = tree();
        let at = |path: &str| root.path().join(path);
        let virtio = "devices/pci0000:00/0000:03:00.2/virtio0";
        fs::create_dir_all(at(virtio).join("net/ens5")).unwrap();
        symlink(at("bus/virtio"), at(virtio).join("subsystem")).unwrap();
        symlink(at(virtio), at(virtio).join("net/ens5/device")).unwrap();
        symlink(at(virtio).join("net/ens5"), at("class/net/ens5")).unwrap();
        let sysfs = Sysfs(root.path().into());
        assert_eq!(sysfs.of_link("ens5").unwrap().0, "0000:03:00.2");
        assert!(sysfs.without_link().is_empty());
    }
}
