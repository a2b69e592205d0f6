//! What the kubelet knows of resources and devices, and what a node's status would show.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use ferrule_nic_proto::v1beta1::{Device, HEALTHY};

/// How long a plugin may be away until its devices are no longer counted.
const GRACE: Duration = Duration::from_secs(300);

/// The books. They outlive a kubelet.
#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<Content>);

#[derive(Debug, Default)]
struct Content {
    resources: BTreeMap<String, Entry>,
    clock: Duration,
}

#[derive(Debug, Default)]
struct Entry {
    endpoint: Option<PathBuf>,
    devices: Vec<Device>,
    registrations: usize,
    lists: usize,
    /// The registration that is in force, by its number.
    newest: usize,
    connected: bool,
    lost: Duration,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap()
    }

    pub(crate) fn count_registration(&self, resource: &str) {
        self.lock().resources.entry(resource.to_owned()).or_default().registrations += 1;
    }

    /// A registration is in force. Returns its number.
    pub(crate) fn connect(&self, resource: &str, endpoint: PathBuf) -> usize {
        let mut content = self.lock();
        let entry = content.resources.entry(resource.to_owned()).or_default();
        entry.endpoint = Some(endpoint);
        entry.newest += 1;
        entry.connected = true;
        entry.newest
    }

    /// Whether the newest registration was dropped without a fault of its own.
    pub(crate) fn is_dropped(&self, resource: &str, number: usize) -> bool {
        self.lock().resources.get(resource).is_some_and(|entry| entry.newest == number && !entry.connected)
    }

    pub(crate) fn list(&self, resource: &str, number: usize, mut devices: Vec<Device>) {
        let mut content = self.lock();
        let entry = content.resources.entry(resource.to_owned()).or_default();
        if entry.newest == number {
            devices.sort_by(|one, other| one.id.cmp(&other.id));
            entry.devices = devices;
            entry.lists += 1;
        }
    }

    /// The stream of a registration has ended. With the race, that of an older one ends the newest too.
    pub(crate) fn disconnect(&self, resource: &str, number: usize, race: bool) {
        let mut content = self.lock();
        let clock = content.clock;
        let entry = content.resources.entry(resource.to_owned()).or_default();
        if entry.newest == number || race {
            entry.connected = false;
            entry.lost = clock;
        }
    }

    pub(crate) fn disconnect_all(&self) {
        let mut content = self.lock();
        let clock = content.clock;
        for entry in content.resources.values_mut().filter(|entry| entry.connected) {
            entry.connected = false;
            entry.lost = clock;
        }
    }

    fn read<T: Default>(&self, resource: &str, read: impl FnOnce(&Entry, Duration) -> T) -> T {
        let content = self.lock();
        content.resources.get(resource).map_or_else(T::default, |entry| read(entry, content.clock))
    }

    pub(crate) fn endpoint(&self, resource: &str) -> Option<PathBuf> {
        self.read(resource, |entry, _| entry.endpoint.clone())
    }

    pub(crate) fn capacity(&self, resource: &str) -> usize {
        let remembered = |entry: &Entry, clock| entry.connected || clock < entry.lost + GRACE;
        self.read(resource, |entry, clock| if remembered(entry, clock) { entry.devices.len() } else { 0 })
    }

    pub(crate) fn allocatable(&self, resource: &str) -> usize {
        let healthy = |entry: &Entry| entry.devices.iter().filter(|device| device.health == HEALTHY).count();
        self.read(resource, |entry, _| if entry.connected { healthy(entry) } else { 0 })
    }

    pub(crate) fn devices(&self, resource: &str) -> Vec<Device> {
        self.read(resource, |entry, _| entry.devices.clone())
    }

    pub(crate) fn registrations(&self, resource: &str) -> usize {
        self.read(resource, |entry, _| entry.registrations)
    }

    pub(crate) fn lists(&self, resource: &str) -> usize {
        self.read(resource, |entry, _| entry.lists)
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.lock().clock += time;
    }
}
