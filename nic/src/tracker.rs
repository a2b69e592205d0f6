//! Joins links, buses, carriers and the configuration to the list of offers, and keeps it true.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;

use crate::config::Config;
use crate::device::{Bus, Device, Place};
use crate::discovery::{Change, Inventory, Sysfs, Watch};
use crate::health::{Carriers, Millis};
use crate::plan::{self, Plan};
use crate::record;

/// How long a device that is gone stays in the list, as long as the kubelet remembers a plugin that is gone.
const FORGET: Millis = 300_000;
/// How long after a failure the record is written again.
const RETRY: Millis = 5_000;

/// The devices, and what becomes of them.
#[derive(Debug)]
pub struct Tracker {
    config: Config,
    sysfs: Sysfs,
    record: PathBuf,
    inventory: Inventory,
    carriers: Carriers,
    /// Since when devices are gone.
    gone: HashMap<String, Millis>,
    recorded: Vec<Device>,
    /// When to write the record again after a failure.
    retry: Option<Millis>,
}

impl Tracker {
    /// Looks at all devices. `record` is the file in which a former process has left those that were in pods.
    pub async fn start(config: Config, sysfs: Sysfs, record: PathBuf, watch: &Watch) -> io::Result<Tracker> {
        let carriers = Carriers::new(config.unhealthy_after, config.healthy_after);
        let inventory = Inventory::new(record::read(&record)?);
        let (gone, recorded) = (HashMap::new(), Vec::new());
        let mut tracker = Tracker { config, sysfs, record, inventory, carriers, gone, recorded, retry: None };
        tracker.resync(watch).await?;
        Ok(tracker)
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The devices.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Goes on with another configuration.
    pub fn reconfigure(&mut self, config: Config) {
        self.carriers = Carriers::new(config.unhealthy_after, config.healthy_after);
        self.config = config;
    }

    /// Takes in one change.
    pub fn apply(&mut self, change: Change) {
        let left = match &change {
            Change::Left { index, .. } => self.inventory.by_index(*index).and_then(parent),
            _ => None,
        };
        let mut arrived = None;
        let Tracker { inventory, sysfs, .. } = self;
        inventory.apply(change, |name| {
            let (id, bus) = sysfs.of_link(name)?;
            arrived = bus.pf_address.clone().filter(|pf| *pf != id);
            Some((id, bus))
        });
        // The number of its virtual functions decides whether a physical function may be given away.
        for pf in left.into_iter().chain(arrived) {
            if let Some(bus) = self.sysfs.of_address(&pf) {
                self.inventory.refresh(&pf, bus);
            }
        }
    }

    /// Reads everything anew. After the kernel has lost messages it needs a new subscription: the former one still has messages
    /// that are older than the loss.
    pub async fn resync(&mut self, watch: &Watch) -> io::Result<()> {
        let changes = watch.list()?;
        let index = |change: &Change| match change {
            Change::Link(link) => Some(link.index),
            _ => None,
        };
        let present: BTreeSet<u32> = changes.iter().filter_map(index).collect();
        let left = self.inventory.relist(&present);
        left.into_iter().chain(changes).for_each(|change| self.apply(change));
        // A link that came back is in the list.
        let in_pods = |device: &&Device| device.bus.is_none() && matches!(device.place, Place::Pod { .. });
        let in_pods: Vec<Device> = self.inventory.devices().filter(in_pods).cloned().collect();
        for device in in_pods {
            if !watch.is_in_pod(&device).await {
                self.inventory.lost(&device.id);
            }
        }
        self.rescan();
        Ok(())
    }

    /// Reads the buses anew.
    pub fn rescan(&mut self) {
        let hidden = self.sysfs.without_link();
        self.unplugged(&hidden).into_iter().for_each(|change| self.apply(change));
        for (id, bus) in hidden {
            self.inventory.hidden(id, bus);
        }
    }

    /// The devices that have left their bus. `hidden` are those on the PCI bus without a link on the node.
    fn unplugged(&self, hidden: &[(String, Bus)]) -> Vec<Change> {
        let is_on_bus = |device: &&Device| match &device.bus {
            Some(bus) if bus.auxiliary => self.sysfs.is_auxiliary(&device.id),
            Some(_) => hidden.iter().any(|(id, _)| *id == device.id),
            None => true,
        };
        let gone = self.inventory.devices().filter(|device| !is_on_bus(device));
        gone.map(|device| Change::Unplugged(device.id.clone())).collect()
    }

    /// What to advertise now, for a process that only looks: the record stays as it is.
    pub fn look(&mut self) -> Plan {
        self.observe(0);
        plan::plan(&self.config, &self.inventory, &self.carriers)
    }

    fn observe(&mut self, now: Millis) {
        for device in self.inventory.devices().filter(|device| device.place == Place::Host) {
            self.carriers.observe(&device.id, device.has_lost_carrier(), now);
        }
    }

    /// What to advertise now.
    pub fn plan(&mut self, now: Millis) -> Plan {
        self.observe(now);
        let Tracker { config, inventory, carriers, gone, .. } = self;
        for device in inventory.devices().filter(|device| device.place == Place::Gone) {
            gone.entry(device.id.clone()).or_insert(now);
        }
        let places: HashMap<&str, Place> =
            inventory.devices().map(|device| (device.id.as_str(), device.place)).collect();
        carriers.retain(|id| places.get(id) == Some(&Place::Host));
        gone.retain(|id, _| places.get(id.as_str()) == Some(&Place::Gone));
        let plan = plan::plan(config, inventory, carriers);
        let offered: BTreeSet<&str> = plan.offers.iter().flatten().map(|offer| offer.id.as_str()).collect();
        let is_offered = |device: &Device| offered.contains(device.id.as_str());
        let is_recent = |device: &Device| gone.get(&device.id).is_some_and(|since| now - since < FORGET);
        // The link of each pod passes by here.
        inventory.forget(|device| match device.place {
            Place::Gone => is_offered(device) && is_recent(device),
            _ => is_offered(device) || device.bus.is_some(),
        });
        self.keep_record(now);
        plan
    }

    /// When the plan changes next, if the kernel says nothing.
    pub fn next(&self) -> Option<Millis> {
        let forget = self.gone.values().min().map(|since| since + FORGET);
        self.carriers.next().into_iter().chain(forget).chain(self.retry).min()
    }

    fn keep_record(&mut self, now: Millis) {
        let away: Vec<Device> =
            self.inventory.devices().filter(|device| device.place != Place::Host).cloned().collect();
        self.retry = None;
        if away == self.recorded {
            return;
        }
        match record::write(&self.record, &away) {
            Ok(()) => self.recorded = away,
            Err(error) => {
                log!("cannot write {}: {error}", self.record.display());
                self.retry = Some(now + RETRY);
            }
        }
    }
}

/// The physical function of a device.
fn parent(device: &Device) -> Option<String> {
    device.bus.as_ref()?.pf_address.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Link;

    fn tracker(folder: &tempfile::TempDir) -> Tracker {
        let config = "resourceList: [{resourceName: nic, selectors: {ifNames: ['eth*']}}]";
        Tracker {
            config: Config::parse(config).unwrap(),
            sysfs: Sysfs::new(folder.path()),
            record: folder.path().join("record"),
            inventory: Inventory::default(),
            carriers: Carriers::new(0, 0),
            gone: HashMap::new(),
            recorded: Vec::new(),
            retry: None,
        }
    }

    #[test]
    fn a_device_that_is_gone_is_remembered_for_five_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let mut tracker = tracker(&folder);
        for (index, name) in [(1, "eth1"), (2, "eth2"), (3, "lan"), (4, "veth4")] {
            tracker.apply(Change::Link(Link { index, name: name.to_owned(), ..Link::default() }));
        }
        let list = |tracker: &mut Tracker, now| {
            let plan = tracker.plan(now);
            let text = |offer: &plan::Offer| format!("{} {}", offer.id, offer.fault.is_none());
            (plan.offers[0].iter().map(text).collect::<Vec<_>>().join(", "), tracker.next())
        };
        assert_eq!(list(&mut tracker, 0), ("eth1 true, eth2 true".to_owned(), None));
        for (index, to) in [(2, None), (3, None), (4, Some((0, None)))] {
            tracker.apply(Change::Left { index, to });
        }
        assert_eq!(list(&mut tracker, 50), ("eth1 true, eth2 false".to_owned(), Some(50 + FORGET)));
        assert_eq!(tracker.inventory.devices().count(), 2, "no resource has the others");
        assert_eq!(list(&mut tracker, 49 + FORGET).0, "eth1 true, eth2 false");
        list(&mut tracker, 50 + FORGET);
        assert_eq!(list(&mut tracker, 51 + FORGET), ("eth1 true".to_owned(), None));
    }

    #[test]
    fn a_record_that_cannot_be_written_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut tracker = tracker(&folder);
        tracker.apply(Change::Link(Link { index: 1, name: "eth1".to_owned(), ..Link::default() }));
        tracker.apply(Change::Left { index: 1, to: Some((0, None)) });
        // A folder takes the file's place.
        std::fs::create_dir(&tracker.record).unwrap();
        tracker.plan(70);
        assert_eq!(tracker.next(), Some(70 + RETRY));
        std::fs::remove_dir(&tracker.record).unwrap();
        tracker.plan(70 + RETRY);
        assert_eq!((record::read(&tracker.record).unwrap().len(), tracker.next()), (1, None));
    }
}
