//! The addresses in the table, and their owners.

use std::net::IpAddr;

use cni_common::remark;
use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::{IpFamily, from_octets, octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Element, Error, change, elements, find_elements};
use ferrule_kit::check::ensure;
use ferrule_kit::dead;
use ferrule_kit::owner::describe;

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
    fn of_element(set: &str, element: Element) -> Option<Self> {
        let address = from_octets(&element.key)?;
        let is_pod = set == pods(IpFamily::of(address));
        let (pod, other) = if is_pod { (Some(element), None) } else { (None, Some(element)) };
        Some(Owned { address, pod, other })
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

    /// Whether another backend opens the address, and the table has lost which one: the text of `nft list ruleset` lacks the owner
    /// metadata.
    pub fn is_restored(&self) -> bool {
        self.other.is_some() && self.metadata().is_empty()
    }

    fn metadata(&self) -> &[u8] {
        self.other.as_ref().and_then(|element| element.metadata.as_deref()).unwrap_or_default()
    }

    /// Adds to the batch what deletes the elements whose owner is wanted.
    fn delete_if(&self, batch: &mut Batch, is_wanted: impl Fn(&str) -> bool) {
        for (set, _) in self.elements().filter(|(_, label)| is_wanted(label)) {
            batch.delete_elements(TABLE, set, &[octets(self.address)]);
        }
    }

    /// The set of each element, and its label: empty without a comment.
    fn elements(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let family = IpFamily::of(self.address);
        let both = [(pods(family), &self.pod), (others(family), &self.other)].into_iter();
        both.filter_map(|(set, element)| {
            Some((set, element.as_ref()?.comment.as_deref().unwrap_or_default()))
        })
    }
}

/// Reads what the table knows about these addresses, in their order, with one round trip.
fn read(socket: &mut Socket, addresses: &[IpAddr]) -> Result<Vec<Owned>, Error> {
    let keys: Vec<Vec<u8>> = addresses.iter().map(|address| octets(*address)).collect();
    let both = |(address, key): (&IpAddr, &'_ Vec<u8>)| {
        let family = IpFamily::of(*address);
        [pods(family), others(family)].map(|set| (set, key.clone()))
    };
    let wanted: Vec<_> = addresses.iter().zip(&keys).flat_map(both).collect();
    let wanted: Vec<(&str, &[u8])> = wanted.iter().map(|(set, key)| (*set, key.as_slice())).collect();
    let mut found = find_elements(socket, TABLE, &wanted)?.into_iter();
    let mut next = || found.next().flatten();
    Ok(addresses.iter().map(|address| Owned { address: *address, pod: next(), other: next() }).collect())
}

/// Reads what the table knows about these addresses, in their order.
///
/// # Errors
/// Code 999 if the kernel refuses to read an element.
pub fn owned(socket: &mut Socket, addresses: &[IpAddr]) -> Result<Vec<Owned>, CniError> {
    read(socket, addresses).context(|| format!("find addresses in table {TABLE}"))
}

/// Lists the addresses whose owner label `is_wanted` accepts.
///
/// # Errors
/// Code 999 if the kernel refuses to list a set.
pub fn list(socket: &mut Socket, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Owned>, CniError> {
    let mut found = Vec::new();
    for family in IpFamily::ALL {
        for set in [pods(family), others(family)] {
            let all =
                elements(socket, TABLE, set).context(|| format!("list set {set:?} of table {TABLE}"))?;
            let wanted = all.into_iter().filter(|element| element.comment.as_deref().is_some_and(&is_wanted));
            found.extend(wanted.filter_map(|element| Owned::of_element(set, element)));
        }
    }
    Ok(found)
}

/// Adds to the batch what makes the plan's owner the only owner of its addresses.
pub(super) fn add(socket: &mut Socket, batch: &mut Batch, plan: &Plan, by: &By) -> Result<(), Error> {
    for owned in read(socket, &plan.addresses)? {
        let (address, family) = (owned.address, IpFamily::of(owned.address));
        for other in owned.labels().filter(|label| *label != plan.label) {
            remark!("{address} belonged to {}, whose DEL was lost", describe(other));
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
            batch.delete_elements(TABLE, by.set(family), &[octets(address)]);
        }
        let element =
            Element { comment: Some(plan.label.clone()), metadata, ..Element::new(octets(address)) };
        batch.add_elements(TABLE, by.set(family), &[element]);
    }
    Ok(())
}

/// Deletes addresses from the table: those of this owner, or without one those of the owner that was found. What another
/// container has got in the meantime stays.
///
/// # Errors
/// Code 999 if the kernel refuses the batch, or after 200 concurrent changes.
pub fn delete(socket: &mut Socket, owned: &[Owned], owner: Option<&str>) -> Result<(), CniError> {
    let is_wanted = |then: &Owned, label: &str| match owner {
        Some(owner) => label == owner,
        None => then.labels().any(|then| then == label),
    };
    let outcome = owned.chunks(AT_ONCE).try_for_each(|part| {
        let addresses: Vec<IpAddr> = part.iter().map(|owned| owned.address).collect();
        let is_wanted = |at: usize, label: &str| part.get(at).is_some_and(|then| is_wanted(then, label));
        delete_where(socket, &addresses, &is_wanted, &mut || vec![true; part.len()]).map(drop)
    });
    outcome.context(|| format!("remove the container from table {TABLE}"))
}

/// Deletes those of at most [`AT_ONCE`] addresses that their owner, the label beside each, still has, and whom `are_dead` names by one
/// answer for each. Returns whether each is deleted.
///
/// # Errors
/// Code 999 if the kernel refuses the batch, or after 200 concurrent changes.
pub fn delete_dead(
    socket: &mut Socket,
    owned: &[(IpAddr, String)],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let addresses: Vec<IpAddr> = owned.iter().map(|(address, _)| *address).collect();
    let is_wanted = |at: usize, label: &str| owned.get(at).is_some_and(|(_, owner)| owner == label);
    let deleted = delete_where(socket, &addresses, &is_wanted, are_dead);
    deleted.context(|| format!("remove addresses from table {TABLE}"))
}

/// How many addresses are deleted at once.
pub const AT_ONCE: usize = Batch::ROOM / 2;

/// Deletes those of at most [`AT_ONCE`] addresses whose owner now is wanted, by the place of the address and the label, and is dead by
/// the answer in this place. `are_dead` is asked at a generation of the ruleset, and the kernel refuses the batch after any change of
/// it, such as an ADD.
fn delete_where(
    socket: &mut Socket,
    addresses: &[IpAddr],
    is_wanted: &dyn Fn(usize, &str) -> bool,
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, Error> {
    change(socket, |socket, batch| {
        let found = read(socket, addresses)?;
        let owned: Vec<bool> = found
            .iter()
            .enumerate()
            .map(|(at, now)| now.elements().any(|(_, label)| is_wanted(at, label)))
            .collect();
        if !owned.contains(&true) {
            return Ok(owned);
        }
        let deleted = dead::confirmed(owned, are_dead);
        for (at, now) in found.iter().enumerate().filter(|(at, _)| deleted.get(*at) == Some(&true)) {
            now.delete_if(batch, |label| is_wanted(at, label));
        }
        Ok(deleted)
    })
}

/// Checks that no other owner has one of the plan's addresses. The inner error names it.
pub(super) fn ensure_own(socket: &mut Socket, plan: &Plan) -> Result<Result<(), CniError>, Error> {
    Ok(read(socket, &plan.addresses)?.iter().try_for_each(|owned| {
        let other = owned.labels().find(|label| *label != plan.label);
        let address = owned.address;
        ensure(other.is_none(), || {
            format!("address {address} belongs to {}", describe(other.unwrap_or_default()))
        })
    }))
}

/// Checks that the plan's owner has these addresses, by the nftables backend or by any.
pub(super) fn check(plan: &Plan, owned: &[Owned], by: &By) -> Result<(), CniError> {
    owned.iter().try_for_each(|owned| {
        let is_there = match by {
            By::Nftables => owned.is_pod_of(&plan.label),
            By::Iptables | By::Firewalld(_) => owned.labels().any(|label| label == plan.label),
        };
        let address = owned.address;
        ensure(is_there && !owned.is_foreign(&plan.label), || match owned.labels().next() {
            Some(other) => format!("address {address} belongs to {}", describe(other)),
            None => format!("address {address} is missing in the sets of table {TABLE}"),
        })
    })
}
