//! Joins links, buses, carriers and the configuration to the list of offers, and keeps it true.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use ferrule_kubelet::claims::Folder;

use crate::arguments::Options;
use crate::config::Config;
use crate::device::{Device, Place};
use crate::discovery::{Change, Inventory, Sysfs, Watch};
use crate::health::Millis;
use crate::plan::{self, Plan};
use crate::state_file;

/// How long a device that is gone stays in the list, as long as the kubelet remembers a plugin that is gone.
const FORGET: Millis = 300_000;
/// How long after a failure the state file is written again.
const RETRY: Millis = 5_000;

/// The devices, and what becomes of them.
#[derive(Debug)]
pub struct Tracker {
    /// The configuration in force.
    pub config: Config,
    sysfs: Sysfs,
    state: PathBuf,
    records: Folder,
    inventory: Inventory,
    saved: Vec<Device>,
    /// When to write the file again after a failure.
    retry: Option<Millis>,
}

impl Tracker {
    /// Looks at all devices. A former process has left its own in the state file.
    pub async fn start(config: Config, options: &Options, watch: &Watch) -> io::Result<Tracker> {
        let (sysfs, state, records) =
            (Sysfs(options.sysfs.clone()), options.state.clone(), options.records());
        let inventory = Inventory::new(state_file::read(&state)?);
        let mut tracker =
            Tracker { config, sysfs, state, records, inventory, saved: Vec::new(), retry: None };
        tracker.resync(watch).await?;
        Ok(tracker)
    }

    /// Takes in one change.
    pub fn apply(&mut self, mut change: Change) {
        if let (Change::Link(link), Some(_)) = (&mut change, &self.config.dra) {
            link.speed = self.sysfs.speed(&link.name);
        }
        self.inventory.apply(change, |name| self.sysfs.of_link(name));
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
        self.inventory.relist(&present);
        changes.into_iter().for_each(|change| self.apply(change));
        // A link that came back is in the list.
        for device in self.inventory.devices_mut().filter(|device| device.bus.is_none()) {
            if matches!(device.place, Place::Pod { .. }) && !watch.is_in_pod(device).await {
                device.place = Place::Gone;
            }
        }
        let hidden = self.sysfs.without_link();
        for device in self.inventory.devices_mut().filter(|device| device.place != Place::Host) {
            let is_on_bus = match &device.bus {
                Some(bus) if bus.auxiliary => self.sysfs.is_auxiliary(&device.id),
                Some(_) => hidden.iter().any(|(id, _)| *id == device.id),
                None => true,
            };
            if !is_on_bus {
                device.place = Place::Gone;
            }
        }
        for (id, bus) in hidden {
            self.inventory.hidden(id, bus);
        }
        // ADD may have moved a claimed link while no process looked.
        let claimed = self.claimed().unwrap_or_else(|error| {
            log!("cannot read the claims' records: {error}");
            BTreeSet::new()
        });
        let is_gone = |device: &&mut Device| device.bus.is_none() && device.place == Place::Gone;
        for device in self.inventory.devices_mut().filter(is_gone) {
            if device.link.as_ref().is_some_and(|link| claimed.contains(&link.name)) {
                device.place = Place::Pod { namespace: None, index: None };
            }
        }
        Ok(())
    }

    /// The links of the claims that are prepared.
    fn claimed(&self) -> io::Result<BTreeSet<String>> {
        let mut links = BTreeSet::new();
        if self.config.dra.is_some() {
            for pod in self.records.pods()? {
                let records = self.records.of_pod(&pod)?;
                links.extend(records.into_iter().flat_map(|record| record.devices).map(|one| one.link.name));
            }
        }
        Ok(links)
    }

    /// A link is gone if only its claim spoke for it, and the claim has ended.
    fn release(&mut self) {
        if !self.inventory.devices().any(Device::is_vouched_for) {
            return;
        }
        let Ok(claimed) = self.claimed() else { return };
        for device in self.inventory.devices_mut().filter(|device| device.is_vouched_for()) {
            if !device.link.as_ref().is_some_and(|link| claimed.contains(&link.name)) {
                device.place = Place::Gone;
            }
        }
    }

    /// What to advertise now, for a process that only shows it: the state file stays as it is.
    pub fn preview(&mut self) -> Plan {
        self.observe(0);
        plan::plan(&self.config, &self.inventory)
    }

    fn observe(&mut self, now: Millis) {
        self.release();
        let pf = |device: &Device| device.bus.as_ref()?.pf_address.clone();
        let pfs: BTreeSet<String> = self.inventory.devices().filter_map(pf).collect();
        for device in self.inventory.devices_mut() {
            // The number of its virtual functions decides whether a physical function may be given away.
            if device.place == Place::Host && pfs.contains(&device.id) {
                device.bus = self.sysfs.of_address(&device.id).or(device.bus.take());
            }
            match device.place {
                Place::Host => device.carrier.observe(device.has_lost_carrier(), now, self.config.delays()),
                Place::Pod { .. } => device.gone_since = None,
                Place::Gone => drop(device.gone_since.get_or_insert(now)),
            }
        }
    }

    /// What to advertise now.
    pub fn plan(&mut self, now: Millis) -> Plan {
        self.observe(now);
        let plan = plan::plan(&self.config, &self.inventory);
        let offered: BTreeSet<&str> = plan.offers.iter().flatten().map(|offer| offer.id.as_str()).collect();
        // The link of each pod passes by here.
        self.inventory.forget(|device| {
            let is_offered = offered.contains(device.id.as_str());
            match device.gone_since {
                Some(since) => is_offered && now - since < FORGET,
                None => is_offered || device.bus.is_some(),
            }
        });
        self.save(now, &offered);
        plan
    }

    /// When the plan changes next, if the kernel says nothing.
    pub fn next(&self) -> Option<Millis> {
        let next = |device: &Device| match device.place {
            Place::Host => device.carrier.next(self.config.delays()),
            _ => device.gone_since.map(|since| since + FORGET),
        };
        self.inventory.devices().filter_map(next).chain(self.retry).min()
    }

    /// Writes the devices of the resources, and all others that are not on the node.
    fn save(&mut self, now: Millis, offered: &BTreeSet<&str>) {
        let is_known = |device: &&Device| device.place != Place::Host || offered.contains(device.id.as_str());
        let known: Vec<Device> = self.inventory.devices().filter(is_known).map(state_file::lasting).collect();
        self.retry = None;
        if known == self.saved {
            return;
        }
        match state_file::write(&self.state, &known) {
            Ok(()) => self.saved = known,
            Err(error) => {
                log!("cannot write {}: {error}", self.state.display());
                self.retry = Some(now + RETRY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Link;

    fn tracker(folder: &tempfile::TempDir) -> Tracker {
        let config = "resourceList: [{resourceName: nic, selectors: {ifNames: ['eth*']}}]";
        Tracker {
            config: Config::parse(config).unwrap(),
            sysfs: Sysfs(folder.path().into()),
            state: folder.path().join("state"),
            records: Folder::new(folder.path().join("dra")),
            inventory: Inventory::default(),
            saved: Vec::new(),
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
            let text = |offer: &plan::Offer| format!("{} {}", offer.id, offer.problem.is_none());
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
    fn a_state_file_that_cannot_be_written_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut tracker = tracker(&folder);
        tracker.apply(Change::Link(Link { index: 1, name: "eth1".to_owned(), ..Link::default() }));
        tracker.apply(Change::Left { index: 1, to: Some((0, None)) });
        // A folder takes the file's place.
        std::fs::create_dir(&tracker.state).unwrap();
        tracker.plan(70);
        assert_eq!(tracker.next(), Some(70 + RETRY));
        std::fs::remove_dir(&tracker.state).unwrap();
        tracker.plan(70 + RETRY);
        assert_eq!((state_file::read(&tracker.state).unwrap().len(), tracker.next()), (1, None));
    }
}
