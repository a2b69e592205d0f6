//! The addresses in the table, and their owners.

use std::net::IpAddr;

use ferrule_kernel::ip::{IpFamily, from_octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Element, Error, find_elements};

use super::key;
use super::layout::{TABLE, others, pods};
use crate::plan::Plan;

/// What opens an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// This table.
    Nftables,
    /// The rules of iptables.
    Iptables,
    /// A source of this zone of firewalld.
    Firewalld(String),
}

/// The bits of the first byte of the owner metadata, in the sets of other backends. The name of the zone follows.
const IPTABLES: u8 = 1;
const FIREWALLD: u8 = 2;

impl By {
    /// The owner metadata. `present` is the metadata of the same owner: a chain may name the plugin twice, with different
    /// backends.
    fn metadata(&self, present: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut metadata = present.map_or(vec![0], <[u8]>::to_vec);
        let bits = metadata.first_mut()?;
        match self {
            By::Nftables => return None,
            By::Iptables => *bits |= IPTABLES,
            By::Firewalld(zone) => {
                *bits |= FIREWALLD;
                metadata.truncate(1);
                metadata.extend(zone.bytes());
            }
        }
        metadata.truncate(Element::METADATA_MAX);
        Some(metadata)
    }

    fn set(&self, family: IpFamily) -> &'static str {
        if *self == By::Nftables { pods(family) } else { others(family) }
    }
}

/// What the table knows about an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The address.
    pub address: IpAddr,
    /// The element of the set of this table's own addresses.
    pod: Option<Element>,
    /// The element of the set of other backends' addresses.
    other: Option<Element>,
}

impl Owned {
    /// What one element says.
    pub(super) fn of_element(set: &str, element: &Element) -> Option<Self> {
        let address = from_octets(&element.key)?;
        let is_pod = set == pods(IpFamily::of(address));
        let element = Some(element.clone());
        Some(match is_pod {
            true => Owned { address, pod: element, other: None },
            false => Owned { address, pod: None, other: element },
        })
    }

    /// The owner labels: none, or one; two if a container got the address while another one had it by another backend.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        [&self.pod, &self.other].into_iter().flatten().filter_map(|element| element.comment.as_deref())
    }

    /// Whether this owner has the address by the nftables backend.
    pub fn is_pod_of(&self, label: &str) -> bool {
        self.pod.as_ref().is_some_and(|element| element.comment.as_deref() == Some(label))
    }

    /// Whether this table opens the address.
    pub fn is_pod(&self) -> bool {
        self.pod.is_some()
    }

    /// Whether only other owners have the address.
    pub fn is_foreign(&self, label: &str) -> bool {
        self.labels().next().is_some() && self.labels().all(|owner| owner != label)
    }

    /// Whether iptables opens the address.
    pub fn is_by_iptables(&self) -> bool {
        self.metadata().first().is_some_and(|bits| bits & IPTABLES != 0)
    }

    /// The zone of firewalld that has the address as a source.
    pub fn zone(&self) -> Option<String> {
        let (bits, zone) = self.metadata().split_first()?;
        (bits & FIREWALLD != 0).then(|| String::from_utf8_lossy(zone).into_owned())
    }

    fn metadata(&self) -> &[u8] {
        self.other.as_ref().and_then(|element| element.metadata.as_deref()).unwrap_or_default()
    }

    /// Adds to the batch what deletes the elements whose owner is wanted.
    pub(super) fn delete_if(&self, batch: &mut Batch, is_wanted: impl Fn(&str) -> bool) {
        let family = IpFamily::of(self.address);
        for (set, element) in [(pods(family), &self.pod), (others(family), &self.other)] {
            if element
                .as_ref()
                .is_some_and(|element| is_wanted(element.comment.as_deref().unwrap_or_default()))
            {
                batch.delete_elements(TABLE, set, &[key(self.address)]);
            }
        }
    }
}

/// Looks up addresses with one round trip.
pub(super) fn look_up(socket: &mut Socket, addresses: &[IpAddr]) -> Result<Vec<Owned>, Error> {
    let keys: Vec<Vec<u8>> = addresses.iter().map(|address| key(*address)).collect();
    let both = |(address, key): (&IpAddr, &'_ Vec<u8>)| {
        let family = IpFamily::of(*address);
        [(pods(family), key.clone()), (others(family), key.clone())]
    };
    let wanted: Vec<_> = addresses.iter().zip(&keys).flat_map(both).collect();
    let wanted: Vec<(&str, &[u8])> = wanted.iter().map(|(set, key)| (*set, key.as_slice())).collect();
    let mut found = find_elements(socket, TABLE, &wanted)?.into_iter();
    let mut next = || found.next().flatten();
    Ok(addresses.iter().map(|address| Owned { address: *address, pod: next(), other: next() }).collect())
}

/// Adds to the batch what makes the plan's owner the only owner of its addresses.
pub(super) fn change(socket: &mut Socket, batch: &mut Batch, plan: &Plan, by: &By) -> Result<(), Error> {
    for owned in look_up(socket, &plan.addresses)? {
        let (address, family) = (owned.address, IpFamily::of(owned.address));
        for other in owned.labels().filter(|label| *label != plan.label) {
            eprintln!("{address} belonged to {}, whose DEL was lost", ferrule_kit::owner::describe(other));
        }
        let present = if *by == By::Nftables { &owned.pod } else { &owned.other };
        let present = present.as_ref().filter(|element| element.comment.as_deref() == Some(&plan.label));
        let metadata = by.metadata(present.and_then(|element| element.metadata.as_deref()));
        let is_done = present.is_some_and(|element| element.metadata == metadata);
        owned.delete_if(batch, |label| label != plan.label);
        if is_done {
            continue;
        }
        if present.is_some() {
            batch.delete_elements(TABLE, by.set(family), &[key(address)]);
        }
        let element = Element { comment: Some(plan.label.clone()), metadata, ..Element::new(key(address)) };
        batch.add_elements(TABLE, by.set(family), &[element]);
    }
    Ok(())
}
