//! The section `dra`: which devices the driver of Dynamic Resource Allocation has.

use serde::Deserialize;

use super::resource::{DeviceType, Health, Resource};
use super::selector::Selector;

/// The most bytes of a driver's name.
const MAX_NAME: usize = 63;
/// The most bytes of a device's attribute.
pub(crate) const MAX_TEXT: usize = 64;

/// The driver.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Keys")]
pub struct Dra {
    /// Which devices it has, as a resource with the name of the driver.
    pub devices: Resource,
    /// The attribute of each device from which Multus takes the name of the resource.
    pub resource_name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping with the key selectors")]
struct Keys {
    driver_name: Option<String>,
    resource_name: Option<String>,
    selectors: Vec<Selector>,
    #[serde(default)]
    device_type: DeviceType,
    #[serde(default)]
    health: Health,
    #[serde(default)]
    allow_addresses: bool,
}

impl From<Keys> for Dra {
    fn from(keys: Keys) -> Dra {
        let name = keys.driver_name.unwrap_or_else(|| ferrule_kubelet::claims::DRIVER.to_owned());
        let resource_name = keys.resource_name.unwrap_or_else(|| format!("{name}/nic"));
        let Keys { selectors, device_type, health, allow_addresses, .. } = keys;
        Dra {
            devices: Resource::of_driver(name, selectors, device_type, health, allow_addresses),
            resource_name,
        }
    }
}

impl Dra {
    /// The driver's name.
    pub fn driver(&self) -> &str {
        &self.devices.name
    }

    /// Checks the values of the file. The error names the wrong value.
    pub(super) fn check(&self) -> Result<(), String> {
        let name = self.driver();
        if name.len() > MAX_NAME || !name.split('.').all(is_label) {
            return Err(format!("driverName {name:?} is no DNS subdomain of at most {MAX_NAME} bytes"));
        }
        if self.resource_name.is_empty() || self.resource_name.len() > MAX_TEXT {
            return Err(format!("resourceName {:?} does not have 1 to {MAX_TEXT} bytes", self.resource_name));
        }
        if self.devices.selectors.is_empty() {
            return Err("it has no selectors".to_owned());
        }
        self.devices.selectors.iter().try_for_each(Selector::check)
    }
}

/// Whether the text is a DNS label.
pub(crate) fn is_label(text: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let (first, last) = (text.as_bytes().first(), text.as_bytes().last());
    first.is_some_and(is_plain)
        && last.is_some_and(is_plain)
        && text.bytes().all(|byte| is_plain(&byte) || byte == b'-')
}
