//! The list of devices, and what each message of the kernel changes in it. Pure: bus data comes as a function.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::device::{Bus, Device, Link, Place};

/// One message of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A link is new or has changed.
    Link(Link),
    /// A link has left the namespace: to another one, or because it was removed.
    Left {
        /// Its index.
        index: u32,
        /// The namespace that it went to and its index there; `None` if it was removed.
        to: Option<(i32, Option<i32>)>,
    },
    /// A namespace that had links of ours is gone, with the virtual links in it.
    NamespaceGone(i32),
    /// The device with this ID has left its bus or its driver.
    Unplugged(String),
    /// These links, by their indexes, carry routes of the node, and no others do.
    Routes(BTreeMap<u32, String>),
    /// A link has got a global address, or has lost it.
    Address {
        /// The link's index.
        index: u32,
        /// The address.
        address: IpAddr,
        /// Whether the link has it now.
        is_there: bool,
    },
}

/// All known devices.
#[derive(Debug, Default)]
pub struct Inventory {
    devices: BTreeMap<String, Device>,
    /// Link index to device ID, of the links that are on the node.
    ids: HashMap<u32, String>,
    addresses: HashMap<u32, BTreeSet<IpAddr>>,
    routes: BTreeMap<u32, String>,
}

impl Inventory {
    /// Starts with the devices of a former process. One that was on the node is gone unless a list of links has it.
    pub fn new(former: impl IntoIterator<Item = Device>) -> Inventory {
        let away = former.into_iter().map(|device| match device.place {
            Place::Host => Device { place: Place::Gone, ..device },
            _ => device,
        });
        Inventory {
            devices: away.map(|device| (device.id.clone(), device)).collect(),
            ..Inventory::default()
        }
    }

    /// The devices by ID.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.values()
    }

    /// The devices by ID, to observe them.
    pub fn devices_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.devices.values_mut()
    }

    /// The device whose link has this index on the node.
    pub fn by_index(&self, index: u32) -> Option<&Device> {
        self.devices.get(self.ids.get(&index)?)
    }

    /// Adds a device whose link is in a pod since before this process started.
    pub fn hidden(&mut self, id: String, bus: Bus) {
        let place = Place::Pod { namespace: None, index: None };
        let known = self.devices.entry(id.clone()).or_insert(Device { id, place, ..Device::default() });
        known.bus = Some(bus);
        if known.place == Place::Gone {
            known.place = place;
        }
    }

    /// Takes a message in. `bus_of` tells the ID and the bus of a link that was not on the node before.
    pub fn apply(&mut self, change: Change, bus_of: impl FnOnce(&str) -> Option<(String, Bus)>) {
        match change {
            Change::Link(link) => self.link(link, bus_of),
            Change::Left { index, to } => {
                self.addresses.remove(&index);
                self.routes.remove(&index);
                let Some(device) = self.ids.remove(&index).and_then(|id| self.devices.get_mut(&id)) else {
                    return;
                };
                device.place = match to {
                    Some((namespace, index)) => Place::Pod { namespace: Some(namespace), index },
                    None => Place::Gone,
                };
            }
            Change::NamespaceGone(gone) => {
                // Physical links come back by themselves, and the kernel tells so.
                let lost = |device: &&mut Device| {
                    device.bus.is_none()
                        && matches!(device.place, Place::Pod { namespace, .. } if namespace == Some(gone))
                };
                self.devices.values_mut().filter(lost).for_each(|device| device.place = Place::Gone);
            }
            Change::Unplugged(id) => {
                // The kernel tells of links on the node.
                let device = self.devices.get_mut(&id).filter(|device| device.place != Place::Host);
                device.into_iter().for_each(|device| device.place = Place::Gone);
            }
            Change::Routes(routes) => {
                for (index, id) in &self.ids {
                    let device = self.devices.get_mut(id);
                    if let Some(link) = device.and_then(|device| device.link.as_mut()) {
                        link.route = routes.get(index).map(|route| route.as_str().into());
                    }
                }
                self.routes = routes;
            }
            Change::Address { index, address, is_there } => {
                let addresses = self.addresses.entry(index).or_default();
                let _ = if is_there { addresses.insert(address) } else { addresses.remove(&address) };
                let device = self.ids.get(&index).and_then(|id| self.devices.get_mut(id));
                if let Some(link) = device.and_then(|device| device.link.as_mut()) {
                    link.addresses = addresses.iter().copied().collect();
                }
            }
        }
    }

    /// Forgets devices that are not on the node, except those that it shall keep.
    pub fn forget(&mut self, keep: impl Fn(&Device) -> bool) {
        self.devices.retain(|_, device| device.place == Place::Host || keep(device));
    }

    /// Prepares for a new list of all links and addresses, which takes the place of the known ones: links that are not `present`
    /// have left, and this process has not seen it.
    pub fn relist(&mut self, present: &BTreeSet<u32>) {
        self.addresses.clear();
        for (_, id) in self.ids.extract_if(|index, _| !present.contains(index)) {
            self.devices.entry(id).and_modify(|device| device.place = Place::Gone);
        }
    }

    fn link(&mut self, mut link: Link, bus_of: impl FnOnce(&str) -> Option<(String, Bus)>) {
        link.route = self.routes.get(&link.index).map(|route| route.as_str().into());
        link.addresses = self.addresses.get(&link.index).into_iter().flatten().copied().collect();
        if let Some(device) = self.ids.get(&link.index).and_then(|id| self.devices.get_mut(id)) {
            // A link that is down has no speed, as on its way into a pod.
            link.speed = link.speed.or(device.link.as_ref().and_then(|link| link.speed));
            device.link = Some(link);
            return;
        }
        let (id, bus) = match bus_of(&link.name) {
            Some((id, bus)) => (id, Some(bus)),
            None => (self.id_of(&link), None),
        };
        let taken = self.devices.get(&id).is_some_and(|device| device.place == Place::Host);
        if taken {
            // A second port of one PCI device, or a link with the first name of a renamed one.
            return;
        }
        self.ids.insert(link.index, id.clone());
        self.devices.insert(id.clone(), Device { id, bus, link: Some(link), ..Device::default() });
    }

    /// The ID of a virtual link: that of the device which left under this name or this alternative name, or which is in a
    /// pod, has the same MAC address, and may have got another name there.
    fn id_of(&self, link: &Link) -> String {
        let away =
            || self.devices.values().filter(|device| device.place != Place::Host && device.bus.is_none());
        let has_name = |device: &&Device| device.id == link.name || link.alt_names.contains(&device.id);
        let is_same = |device: &&Device| {
            let same = |one: &Link| !link.mac.is_empty() && (&one.mac, &one.kind) == (&link.mac, &link.kind);
            matches!(device.place, Place::Pod { .. }) && device.link.as_ref().is_some_and(same)
        };
        let returned = away().find(has_name).or_else(|| away().find(is_same));
        returned.map_or(&link.name, |device| &device.id).clone()
    }
}

#[cfg(test)]
mod tests;
