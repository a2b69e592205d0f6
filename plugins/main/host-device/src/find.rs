//! Finds the device on the host.

use cni_common::spec::{CniError, Code, Context as _, NetConf};
use ferrule_kernel::netlink::{Link, LinkId, Socket};
use ferrule_kit::socket;

use crate::config::{Conf, Selector};
use crate::record::Record;
use crate::sysfs::{self, BusDevice};
use crate::transfer;

/// What the configuration names.
#[derive(Debug)]
pub enum Device {
    /// A link on the host.
    Link {
        /// The link.
        link: Box<Link>,
        /// Its PCI address; empty if it has none.
        pci_id: String,
    },
    /// A PCI device that belongs to a program and has no link.
    Userspace {
        /// Its PCI address.
        pci_id: String,
    },
}

/// Finds the device. If it came back under another name because its container's namespace is gone, gives it back first.
///
/// # Errors
/// The reference's texts. The details name the container that has the device, if one has.
pub fn device(host: &mut Socket, selector: &Selector) -> Result<Device, CniError> {
    let mut pci_id = String::new();
    let name = match selector {
        Selector::Name(name) => Some(name.clone()),
        Selector::KernelPath(path) => Some(sysfs::link_at(path)?),
        Selector::Bus { id, key } => {
            let device = sysfs::device(id, *key)?;
            if device == BusDevice::Userspace {
                return Ok(Device::Userspace { pci_id: id.clone() });
            }
            if let BusDevice::Pci(_) = device {
                pci_id.clone_from(id);
            }
            let missing = || {
                let bus = if pci_id.is_empty() { "auxiliary" } else { "pci" };
                CniError::internal(format!(
                    "failed to find host device: no net directory under {bus} device {id}"
                ))
            };
            Some(sysfs::link_of(&device).ok_or_else(missing)?)
        }
        Selector::Mac(_) => None,
    };
    let mut link = look_up(host, selector, name.as_deref())?;
    if link.is_none() && recover(host, selector)? {
        link = look_up(host, selector, name.as_deref())?;
    }
    let link = link.ok_or_else(|| missing(selector))?;
    if link.parent_bus == "pci" {
        pci_id.clone_from(&link.parent);
    }
    Ok(Device::Link { link: Box::new(link), pci_id })
}

/// The link of this name, or with the selector's hardware address.
fn look_up(host: &mut Socket, selector: &Selector, name: Option<&str>) -> Result<Option<Link>, CniError> {
    let found = match (selector, name) {
        (Selector::Mac(mac), None) => host.links(None).map(|mut links| {
            // Virtual links on top of the device may have its address too.
            links.sort_by_key(|link| !link.kind.is_empty());
            links.into_iter().find(|link| link.mac == *mac)
        }),
        (_, name) => host.link(LinkId::Name(name.unwrap_or_default())),
    };
    found.context(|| "failed to find host device")
}

/// Whether the record is of the selected device. A device on a bus or at a path is found by its link.
fn is_of(record: &Record, selector: &Selector) -> bool {
    match selector {
        Selector::Name(name) => record.name == *name,
        Selector::Mac(mac) => record.has_mac(*mac),
        Selector::KernelPath(_) | Selector::Bus { .. } => false,
    }
}

/// Gives back a device whose container's namespace is gone. Returns whether there is one.
fn recover(host: &mut Socket, selector: &Selector) -> Result<bool, CniError> {
    let lost = |record: &Record| is_of(record, selector) && record.open_netns().is_none();
    let Some(record) = Record::all().find(lost) else { return Ok(false) };
    transfer::give_back(host, None, &record)?;
    record.file().remove()?;
    Ok(true)
}

fn missing(selector: &Selector) -> CniError {
    let error = match selector {
        Selector::Mac(_) => {
            CniError::internal("failed to find host device: failed to find physical interface")
        }
        _ => CniError::internal("failed to find host device: Link not found"),
    };
    match Record::all().find(|record| is_of(record, selector)) {
        Some(Record { name, container_id, network, ifname, .. }) => error.with_details(format!(
            "{name:?} is in container {container_id} (interface {ifname} on network {network})"
        )),
        None => error.with_details(format!("no such device on the host: {selector:?}")),
    }
}

/// Checks that the configuration is valid, and that the device, if it names one, exists or is in a container.
///
/// # Errors
/// Code 50 if the device does not exist.
pub fn status(config: &NetConf) -> Result<(), CniError> {
    let conf = Conf::read_without_device(config)?;
    let Some(selector) = conf.selector else { return Ok(()) };
    let found = match &selector {
        // The link may be in a container, but the device stays on its bus.
        Selector::Bus { id, key } => sysfs::device(id, *key).map(drop),
        Selector::KernelPath(path) if std::path::Path::new(path).exists() => Ok(()),
        Selector::KernelPath(path) => sysfs::link_at(path).map(drop),
        Selector::Name(name) => exists(&selector, Some(name)),
        Selector::Mac(_) => exists(&selector, None),
    };
    found.map_err(|error| CniError { code: Code::NotAvailable, ..error })
}

fn exists(selector: &Selector, name: Option<&str>) -> Result<(), CniError> {
    let is_here = look_up(&mut socket::route()?, selector, name)?.is_some();
    if is_here || Record::all().any(|record| is_of(&record, selector)) {
        Ok(())
    } else {
        Err(missing(selector))
    }
}
