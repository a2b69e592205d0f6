//! Names the claimed device in the configuration of the plugin that makes the interface.

use std::path::Path;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::{LinkId, Socket};
use ferrule_kit::sysfs::{self, BusDevice, Key, SYS};
use ferrule_kubelet::claims::Link;

use super::plan::Planned;

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
    plugin.insert(key.to_owned(), value.into());
    Ok(())
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
    let found = host.link(LinkId::Name(&link.name)).context(|| format!("look up {:?}", link.name))?;
    let is_other = |mac: String| !link.mac.is_empty() && !link.mac.eq_ignore_ascii_case(&mac);
    match found.filter(|found| is_other(found.mac.to_string()) && is_other(found.permanent_mac.to_string())) {
        None => Ok(link.name.clone()),
        Some(other) => Err(CniError::internal(format!(
            "link {:?} has the MAC address {}, and the claimed device {}",
            link.name, other.mac, link.mac
        ))),
    }
}
