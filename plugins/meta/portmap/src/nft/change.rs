//! Adds to a batch what creates or deletes host ports and owners.

use std::collections::BTreeMap;

use ferrule_kernel::nftables::{Batch, Element};
use ferrule_kit::owner::key_of;

use crate::mark::Masquerade;
use crate::plan::HostPort;

use super::layout::{OWNERS, TABLE};
use super::{element, owner_metadata};

/// Adds an owner with its host ports. `netns` is the path of the container's network namespace.
pub(super) fn add(batch: &mut Batch, label: &str, netns: &str, host_ports: &[HostPort]) {
    let metadata = Some(owner_metadata::encode(host_ports.len(), netns));
    let owner = Element { key: key_of(label), comment: Some(label.to_owned()), value: None, metadata };
    batch.add_elements(TABLE, OWNERS, &[owner]);
    let mut maps: BTreeMap<String, Vec<Element>> = BTreeMap::new();
    for host_port in host_ports {
        maps.entry(host_port.key.map(true).name).or_default().push(element::dnat(host_port, label));
        if let Some(mark) = element::mark(host_port) {
            maps.entry(host_port.key.map(false).name).or_default().push(mark);
        }
    }
    for (map, elements) in maps {
        batch.add_elements(TABLE, &map, &elements);
    }
}

/// Deletes host ports. All of them must exist.
pub(super) fn delete(batch: &mut Batch, host_ports: &[HostPort]) {
    let mut maps: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for host_port in host_ports {
        maps.entry(host_port.key.map(true).name).or_default().push(host_port.key.encode());
        if host_port.masquerade != Masquerade::Nothing {
            maps.entry(host_port.key.map(false).name).or_default().push(host_port.key.encode());
        }
    }
    for (map, keys) in maps {
        batch.delete_elements(TABLE, &map, &keys);
    }
}

/// Deletes owners. All of them must exist.
pub(super) fn delete_owners(batch: &mut Batch, labels: &[String]) {
    if !labels.is_empty() {
        let keys: Vec<Vec<u8>> = labels.iter().map(|label| key_of(label)).collect();
        batch.delete_elements(TABLE, OWNERS, &keys);
    }
}
