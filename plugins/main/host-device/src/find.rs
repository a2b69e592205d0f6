//! Finds the device on the host.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::netns::ContainerNetns;
use cni_common::spec::{CniError, Code, Context as _, NetConf};
use ferrule_kernel::netlink::{Link, LinkId, Socket};
use ferrule_kit::socket;
use ferrule_kit::sysfs::{self, BusDevice, Key, SYS};

use crate::config::{Conf, Selector};
use crate::state::State;
use crate::transfer;

/// How long ADD waits for the DEL of another container.
const RETURN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// What the configuration names.
#[derive(Debug)]
pub struct Device {
    /// Its link on the host. `None` for a PCI device that belongs to a program.
    pub link: Option<Box<Link>>,
    /// Its PCI address; empty if it has none.
    pub pci_id: String,
}

/// Finds the device. Waits while DEL of another container restores it, and completes what a killed DEL has left. With
/// `is_given` it also waits while that container has the device: the kubelet gives the device of a pod that was deleted by force
/// to the next pod before the runtime calls DEL.
///
/// # Errors
/// The reference's texts. The details name the container that has the device, if one has.
pub fn device(
    host: &mut Socket,
    selector: &Selector,
    container_id: &str,
    is_given: bool,
) -> Result<Device, CniError> {
    let end = Instant::now() + RETURN;
    loop {
        // Asked first: DEL removes the state file after it has given the device back.
        let is_elsewhere = is_given && State::list().any(|state| is_of(&state, selector));
        let found = find_now(host, selector);
        let is_over = Instant::now() >= end;
        match &found {
            // DEL resets the alias last, and then removes the state file.
            Ok(Device { link: Some(link), .. }) if link.alias == link.name => {
                let is_it = |state: &State| state.name == link.name && state.container_id != container_id;
                let Some(state) = State::list().find(is_it) else { return find_now(host, selector) };
                if is_over || matches!(state.open_netns(), ContainerNetns::Gone) {
                    give_back(host, &state)?;
                    return find_now(host, selector);
                }
            }
            Err(_) if is_elsewhere && !is_over => {}
            _ => return found,
        }
        thread::sleep(PAUSE);
    }
}

/// The device as it is now. If it came back under another name because its container's namespace is gone, gives it back first.
fn find_now(host: &mut Socket, selector: &Selector) -> Result<Device, CniError> {
    let mut pci_id = String::new();
    let named = match selector {
        Selector::Name(_) | Selector::Mac(_) => selector.clone(),
        Selector::KernelPath(path) => Selector::Name(sysfs::link_at(path)?),
        Selector::Bus { id, key } => {
            let device = match BusDevice::find(Path::new(SYS), id, *key) {
                // A device plugin may have a link's name as ID.
                Err(error) if *key == Key::DeviceId => return named_device(host, id, error),
                found => found?,
            };
            if device.bus == "pci" {
                pci_id.clone_from(id);
            }
            if device.is_userspace() {
                recover(host, selector, None)?;
                return Ok(Device { link: None, pci_id });
            }
            Selector::Name(device.link()?)
        }
        // ADD replaces it by the device's ID.
        Selector::Resource(_) => return Err(missing(selector)),
    };
    let link = find_link(host, &named)?;
    if recover(host, selector, link.as_ref())? {
        return find_now(host, selector);
    }
    let link = link.ok_or_else(|| missing(selector))?;
    if link.parent_bus == "pci" {
        pci_id.clone_from(&link.parent);
    }
    Ok(Device { link: Some(Box::new(link)), pci_id })
}

/// The link whose name is the ID. The error is `unknown` if neither the host nor a container has such a link.
fn named_device(host: &mut Socket, id: &str, unknown: CniError) -> Result<Device, CniError> {
    let named = Selector::Name(id.to_owned());
    if find_link(host, &named)?.is_none() && !State::list().any(|state| is_of(&state, &named)) {
        return Err(unknown);
    }
    find_now(host, &named)
}

/// The link with this name or hardware address.
fn find_link(host: &mut Socket, selector: &Selector) -> Result<Option<Link>, CniError> {
    let found = match selector {
        Selector::Name(name) => host.link(LinkId::Name(name)),
        Selector::Mac(mac) => host.links(None).map(|mut links| {
            // Virtual links on top of the device may have its address too.
            links.sort_by_key(|link| !link.kind.is_empty());
            links.into_iter().find(|link| link.mac == *mac)
        }),
        Selector::KernelPath(_) | Selector::Bus { .. } | Selector::Resource(_) => Ok(None),
    };
    found.context(|| "failed to find host device")
}

/// Whether the state file is of the selected device. A device at a path is found by its link.
fn is_of(state: &State, selector: &Selector) -> bool {
    match selector {
        Selector::Name(name) => state.has_name(name),
        Selector::Mac(mac) => state.has_mac(*mac),
        Selector::Bus { id, .. } => state.device_id == *id || state.has_name(id),
        Selector::KernelPath(_) | Selector::Resource(_) => false,
    }
}

/// Gives back the device of `selector`, or of `link` if there is one, if its container's namespace is gone. Returns whether
/// it did.
fn recover(host: &mut Socket, selector: &Selector, link: Option<&Link>) -> Result<bool, CniError> {
    if link.is_some_and(|link| link.alias.is_empty() || link.alias == link.name) {
        return Ok(false);
    }
    let is_it = |state: &State| link.map_or(is_of(state, selector), |link| link.alias == state.name);
    let lost = |state: &State| is_it(state) && matches!(state.open_netns(), ContainerNetns::Gone);
    let Some(state) = State::list().find(lost) else { return Ok(false) };
    give_back(host, &state)
}

/// Completes a DEL. Returns whether the device is back.
fn give_back(host: &mut Socket, state: &State) -> Result<bool, CniError> {
    let is_back = transfer::give_back(host, None, state)? || state.is_virtual();
    if is_back {
        state.file().remove()?;
    }
    Ok(is_back)
}

fn missing(selector: &Selector) -> CniError {
    let error = match selector {
        Selector::Mac(_) => {
            CniError::internal("failed to find host device: failed to find physical interface")
        }
        _ => CniError::internal("failed to find host device: Link not found"),
    };
    match State::list().find(|state| is_of(state, selector)) {
        Some(State { name, container_id, network, ifname, .. }) => error.with_details(format!(
            "{name:?} is in container {container_id} (interface {ifname} on network {network})"
        )),
        None => error
            .with_details(format!("no such device on the host: {selector:?}"))
            .with_remedy("make the device visible on the host, or name another one"),
    }
}

/// Checks that the configuration is valid, and that the device, if it names one, exists or is in a container.
///
/// # Errors
/// Code 50 if the device does not exist.
pub fn status(config: &NetConf) -> Result<(), CniError> {
    let Some(selector) = Conf::read(config)?.selector else { return Ok(()) };
    let found = match &selector {
        // The link may be in a container, but the device stays on its bus.
        Selector::Bus { id, key } => BusDevice::find(Path::new(SYS), id, *key).map(drop),
        Selector::KernelPath(path) if Path::new(path).exists() => Ok(()),
        Selector::KernelPath(path) => sysfs::link_at(path).map(drop),
        // Each pod has its own.
        Selector::Resource(_) => Ok(()),
        Selector::Name(_) | Selector::Mac(_) => {
            let is_here = find_link(&mut socket::route()?, &selector)?.is_some();
            let exists = is_here || State::list().any(|state| is_of(&state, &selector));
            if exists { Ok(()) } else { Err(missing(&selector)) }
        }
    };
    found.map_err(|error| CniError { code: Code::NotAvailable, ..error })
}
