//! The claimed device on the host: its name in the configuration of the plugin that makes the interface, and its state if the interface is
//! made on it.

use std::path::Path;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::link::{self, IFF_UP};
use ferrule_kernel::netlink::{LinkId, Socket};
use ferrule_kit::sysfs::{self, BusDevice, Key, SYS};
use ferrule_kit::{check, socket};
use ferrule_kubelet::claims::{Link, Step};

use crate::plan::Planned;

/// The buses whose devices `host-device` knows by their ID. A device of them may belong to a program and have no link.
const BY_ID: [&str; 2] = ["pci", "auxiliary"];

/// Sets the device: `deviceID` or `device` for host-device, `master` for a plugin that makes a link on it.
///
/// # Errors
/// The device has no link on the host, or another one has its name.
pub fn name(host: &mut Socket, planned: &mut Planned) -> Result<(), CniError> {
    let link = &planned.link;
    let Some(plugin) = planned.step.plugins.first_mut() else { return Ok(()) };
    let (key, value) = match &link.bus {
        Some(bus) if plugin["type"] == "host-device" && BY_ID.contains(&bus.subsystem.as_str()) => {
            ("deviceID", bus.address.clone())
        }
        _ if plugin["type"] == "host-device" => ("device", on_host(host, link)?),
        _ => ("master", on_host(host, link)?),
    };
    match key {
        "master" => {}
        "device" => keep_uplink(host, &value)?,
        // Without a link it carries nothing.
        _ => on_host(host, link).or(Ok(String::new())).and_then(|name| keep_uplink(host, &name))?,
    }
    if key == "master" {
        let found = find(host, &value)?;
        planned.step.raised = found.filter(|link| !link.is_up()).map(|_| value.clone());
    }
    plugin.insert(key.to_owned(), value.into());
    Ok(())
}

/// A link that has become the node's way out since the claim was prepared stays on the node.
fn keep_uplink(host: &mut Socket, name: &str) -> Result<(), CniError> {
    let default = host.default_route_link().context(|| "look up the default route")?;
    match find(host, name)? {
        Some(found) if default == Some(found.index) => {
            let msg = format!("the claimed device {name:?} carries the node's default route");
            Err(CniError::internal(msg)
                .with_remedy("give the claim another device, or the node another uplink"))
        }
        _ => Ok(()),
    }
}

/// Sets up the link that the step found down, or down again. One that is gone needs neither.
///
/// # Errors
/// The kernel refuses it.
pub fn set_up(step: &Step, is_up: bool) -> Result<(), CniError> {
    let Some(name) = &step.raised else { return Ok(()) };
    let mut host = socket::route()?;
    let Some(found) = find(&mut host, name)?.filter(|link| link.is_up() != is_up) else { return Ok(()) };
    let flags = if is_up { IFF_UP } else { 0 };
    let context = || format!("set the claimed device {name:?} {}", if is_up { "up" } else { "down" });
    host.request(link::set_flags(found.index, flags, IFF_UP)).map(drop).context(context)
}

/// Whether the link that ADD has set up is still up.
///
/// # Errors
/// It is not.
pub fn check(step: &Step) -> Result<(), CniError> {
    let Some(name) = &step.raised else { return Ok(()) };
    let is_up = find(&mut socket::route()?, name)?.is_some_and(|link| link.is_up());
    check::ensure(is_up, || format!("the claimed device {name:?} is down"))
}

fn find(host: &mut Socket, name: &str) -> Result<Option<link::Link>, CniError> {
    host.link(LinkId::Name(name)).context(|| format!("look up {name:?}"))
}

/// The name that the link has on the host now. A link that is not there is the next plugin's error.
fn on_host(host: &mut Socket, link: &Link) -> Result<String, CniError> {
    if let Some(bus) = &link.bus {
        if BY_ID.contains(&bus.subsystem.as_str()) {
            return BusDevice::find(Path::new(SYS), &bus.address, Key::DeviceId)?.link();
        }
        let device = Path::new(SYS).join("bus").join(&bus.subsystem).join("devices").join(&bus.address);
        return sysfs::link_below(&device).ok_or_else(|| {
            CniError::internal(format!("failed to find host device: no link below {}", device.display()))
        });
    }
    let found = find(host, &link.name)?;
    let is_other = |mac: String| !link.mac.is_empty() && !link.mac.eq_ignore_ascii_case(&mac);
    match found.filter(|found| is_other(found.mac.to_string()) && is_other(found.permanent_mac.to_string())) {
        None => Ok(link.name.clone()),
        Some(other) => Err(CniError::internal(format!(
            "link {:?} has the MAC address {}, and the claimed device {}",
            link.name, other.mac, link.mac
        ))),
    }
}
