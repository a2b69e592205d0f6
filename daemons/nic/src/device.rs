//! The model of a device, which may be on the node, in a pod, or gone. Pure.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::health::{Carrier, Millis};

/// A device that a resource may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The same for as long as the device exists: its PCI address, else the name on the auxiliary bus, else the link's
    /// first name.
    pub id: String,
    /// What the bus says; `None` for virtual devices.
    pub bus: Option<Bus>,
    /// The link as it was last seen on the node.
    pub link: Option<Link>,
    /// Where the device is.
    pub place: Place,
    /// The carrier of its link, as long as that is on the node.
    #[serde(skip)]
    pub carrier: Carrier,
    /// Since when this process knows that it is gone.
    #[serde(skip)]
    pub gone_since: Option<Millis>,
}

/// Where a device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Place {
    /// In the node's network namespace.
    #[default]
    Host,
    /// In another namespace, which the kernel knows by this number if it has told us.
    Pod {
        /// The number of the namespace (`RTM_GETNSID`).
        namespace: Option<i32>,
        /// The link's index there.
        index: Option<i32>,
    },
    /// Nowhere: it was removed, or its namespace was.
    Gone,
}

/// What the bus says about a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bus {
    /// Whether the device is on the auxiliary bus.
    pub auxiliary: bool,
    /// The PCI address of the device, or of its parent.
    pub pci_address: Option<String>,
    /// PCI vendor code, hexadecimal without `0x`.
    pub vendor: Option<String>,
    /// PCI device code, hexadecimal without `0x`.
    pub device: Option<String>,
    /// The kernel driver's name.
    pub driver: Option<String>,
    /// The ACPI index.
    pub acpi_index: Option<u32>,
    /// The NUMA node.
    pub numa: Option<i64>,
    /// The PCI address of the physical function, which may be the device itself.
    pub pf_address: Option<String>,
    /// The link of the physical function.
    pub pf_name: Option<String>,
    /// Which virtual function of the physical function it is.
    pub function: Option<u32>,
    /// How many virtual functions the device has.
    pub functions: u32,
    /// The PCIe root complex, such as `pci0000:00`.
    pub pcie_root: Option<String>,
}

/// A link on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Link {
    /// The index in the node's namespace.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The alternative names.
    pub alt_names: Vec<String>,
    /// The kind; `None` for physical devices.
    pub kind: Option<String>,
    /// The MAC address.
    pub mac: String,
    /// `ether`, `infiniband`, or empty.
    pub link_type: String,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The speed in Mbit/s, of links on a bus that have a carrier.
    pub speed: Option<u32>,
    /// Whether it is a loopback device.
    pub loopback: bool,
    /// Whether the administrator has set it up.
    pub up: bool,
    /// Whether it has a carrier. Means nothing if it is not up.
    pub carrier: bool,
    /// The index of the bridge, bond or VRF that it belongs to.
    pub master: Option<u32>,
    /// The index of the link that it is made on, such as a VLAN's device.
    pub below: Option<u32>,
    /// Global addresses.
    pub addresses: Vec<IpAddr>,
    /// A route of the node that it carries, other than those that each link has.
    pub route: Option<Box<str>>,
}

impl Link {
    /// How the node uses the link, if it does.
    fn use_by_node(&self, allow_addresses: bool, name_of: impl Fn(u32) -> Option<String>) -> Option<String> {
        if let Some(master) = self.master {
            let name = name_of(master).unwrap_or_else(|| format!("the link with index {master}"));
            return Some(format!("is a port of {name}"));
        }
        if allow_addresses {
            return None;
        }
        let address = self.addresses.first().map(|address| format!("has the address {address}"));
        address.or_else(|| self.route.as_ref().map(|route| format!("carries {route}")))
    }
}

impl Device {
    /// Why no resource may have the device. Selectors do not matter. `above` are the links that are made on it, `name_of` names
    /// the link with an index.
    pub fn excluded<'d>(
        &self,
        allow_addresses: bool,
        above: impl IntoIterator<Item = &'d Device>,
        name_of: impl Fn(u32) -> Option<String>,
    ) -> Option<String> {
        let functions = self.bus.as_ref().map_or(0, |bus| bus.functions);
        if functions > 0 {
            return Some(format!("it is a physical function with {functions} virtual functions"));
        }
        if self.link.as_ref().is_some_and(|link| link.loopback) {
            return Some("it is the loopback device".to_owned());
        }
        let used = |device: &Device, what: &str| {
            let why = device.link.as_ref()?.use_by_node(allow_addresses, &name_of)?;
            Some(format!("the node uses it: {what} {why}"))
        };
        let used_above = |one: &Device| used(one, &format!("{}, which is made on it,", one.id));
        used(self, "it").or_else(|| above.into_iter().find_map(used_above))
    }

    /// A virtual link that is in a pod according to its claim alone.
    pub fn is_vouched_for(&self) -> bool {
        self.bus.is_none() && self.place == Place::Pod { namespace: None, index: None }
    }

    /// The link has lost its carrier. A link that is not up has none to lose.
    pub fn has_lost_carrier(&self) -> bool {
        self.place == Place::Host && self.link.as_ref().is_some_and(|link| link.up && !link.carrier)
    }
}
