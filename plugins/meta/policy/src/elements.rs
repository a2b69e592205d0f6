//! The elements in the kernel: adds, finds and deletes them.

use cni_common::remark;
use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::from_octets;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{
    ATTEMPTS, Batch, Element, Error, change, elements, find_elements, link_of, sets,
};
use ferrule_kernel::retry::retry;
use ferrule_kit::check::ensure;
use ferrule_kit::dead;
use ferrule_kit::owner::describe;
use ferrule_policy_kit::table::{self, SETS, TABLE};

use crate::plan::{Key, Owner, Plan, label_of};

/// An element in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The set.
    pub set: &'static str,
    /// The element.
    pub element: Element,
}

/// What a key means: an address, or the name of a link.
pub fn shown(set: &str, key: &[u8]) -> String {
    match from_octets(key).filter(|_| set != table::LINKS) {
        Some(address) => address.to_string(),
        None => format!("link {:?}", link_of(key)),
    }
}

/// Whose an element is, for texts.
fn whose(element: &Element) -> String {
    label_of(element).map_or_else(|| element.comment.clone().unwrap_or_default(), describe)
}

/// Finds the elements with these keys, in their order, with one round trip.
fn find(socket: &mut Socket, keys: &[Key]) -> Result<Vec<Option<Element>>, Error> {
    let wanted: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.set, key.key.as_slice())).collect();
    find_elements(socket, TABLE, &wanted)
}

/// Adds the plan's elements, and the table if it is not complete. Another attachment that had one of them loses it: its DEL was lost,
/// because IPAM gives an address to one container at a time.
///
/// # Errors
/// Code 999 if the kernel refuses the batch, or after 200 concurrent changes.
pub fn add(socket: &mut Socket, plan: &Plan) -> Result<(), CniError> {
    let mut is_complete = table::seems_complete(socket)?;
    let mut is_taken = false;
    let outcome = retry(ATTEMPTS, Error::is_conflict, || {
        let mut batch = Batch::new();
        if !is_complete {
            table::establish(&mut batch);
        }
        let present = if is_taken { find(socket, &plan.keys)? } else { Vec::new() };
        for (key, element) in plan.keys.iter().zip(&present) {
            let Some(element) = element else { continue };
            if !plan.owner.owns(element) {
                remark!("{} belonged to {}, whose DEL was lost", shown(key.set, &key.key), whose(element));
            }
            batch.delete_elements(TABLE, key.set, std::slice::from_ref(&key.key));
        }
        push(&mut batch, &plan.owner, &plan.keys);
        batch.commit(socket).inspect_err(|error| {
            is_taken |= error.is_taken();
            // It may be gone since.
            is_complete &= !error.is_not_found();
        })
    });
    outcome.context(|| format!("announce the pod in table {TABLE}"))
}

fn push<'a>(batch: &mut Batch, owner: &Owner, keys: impl IntoIterator<Item = &'a Key>) {
    for key in keys {
        batch.add_elements(TABLE, key.set, &[owner.element(key)]);
    }
}

/// Checks the table, and that none of the plan's elements is another attachment's or lost. Without a table nothing is announced, and a
/// pod without elements is released.
///
/// # Errors
/// Code 999 with the first difference.
pub fn check(socket: &mut Socket, plan: &Plan) -> Result<(), CniError> {
    let step = || format!("check table {TABLE}");
    let names = sets(socket, TABLE).context(step)?;
    if names.is_empty() {
        return Ok(());
    }
    let missing = SETS.iter().find(|(name, _)| !names.iter().any(|found| found == name));
    ensure(missing.is_none(), || {
        format!("set {:?} of table {TABLE} is missing", missing.map_or("", |(name, _)| *name))
    })?;
    table::check(socket)?;
    let found = find(socket, &plan.keys).context(step)?;
    ensure_own(plan, &found)?;
    let lost = plan.lost(&found);
    ensure(lost.is_empty(), || {
        let names: Vec<String> =
            lost.iter().map(|key| format!("{} in {}", shown(key.set, &key.key), key.set)).collect();
        format!("table {TABLE} has lost {}", names.join(", "))
    })
}

fn ensure_own(plan: &Plan, found: &[Option<Element>]) -> Result<(), CniError> {
    plan.keys.iter().zip(found).try_for_each(|(key, element)| match element {
        Some(element) if !plan.owner.owns(element) => {
            let what = shown(key.set, &key.key);
            Err(CniError::internal(format!("{what} in {} belongs to {}", key.set, whose(element))))
        }
        _ => Ok(()),
    })
}

/// Makes again what [`check`] refuses, at the generation of the lookup.
///
/// # Errors
/// Code 999 with the attachment that has one of the elements now; otherwise as [`add`].
pub fn repair(socket: &mut Socket, plan: &Plan) -> Result<(), CniError> {
    let outcome = change(socket, |socket, batch| {
        let found = find(socket, &plan.keys)?;
        if let Err(error) = ensure_own(plan, &found) {
            return Ok(Err(error));
        }
        if sets(socket, TABLE)?.len() < SETS.len() || table::check(socket).is_err() {
            table::establish(batch);
        }
        push(batch, &plan.owner, plan.lost(&found));
        Ok(Ok(()))
    });
    outcome.context(|| format!("repair table {TABLE}"))?
}

/// Lists all elements.
///
/// # Errors
/// Code 999 if the kernel refuses to list a set.
pub fn list(socket: &mut Socket) -> Result<Vec<Found>, CniError> {
    let mut all = Vec::new();
    for (set, _) in SETS {
        let found = elements(socket, TABLE, set).context(|| format!("list set {set:?} of table {TABLE}"))?;
        all.extend(found.into_iter().map(|element| Found { set, element }));
    }
    Ok(all)
}

/// Deletes those of the elements that `is_wanted` still accepts, by the element's place in `found` and what it is now, and for which
/// `are_dead` says so, by one answer for each of `found`: it is asked at a generation of the ruleset, and the kernel refuses the batch
/// after any change of it, such as an ADD. Returns whether each is deleted.
///
/// # Errors
/// Code 999 if the kernel refuses a batch, or after 200 concurrent changes.
pub fn delete(
    socket: &mut Socket,
    found: &[Found],
    is_wanted: &dyn Fn(usize, &Element) -> bool,
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let wanted: Vec<(&str, &[u8])> = found.iter().map(|one| (one.set, one.element.key.as_slice())).collect();
    let outcome = change(socket, |socket, batch| {
        let now = find_elements(socket, TABLE, &wanted)?.into_iter().enumerate();
        let is_there = now.map(|(at, now)| now.is_some_and(|element| is_wanted(at, &element))).collect();
        let dead = dead::confirmed(is_there, are_dead);
        for (set, _) in SETS {
            let own = wanted.iter().zip(&dead).filter(|((of, _), is_dead)| *of == set && **is_dead);
            let keys: Vec<Vec<u8>> = own.map(|((_, key), _)| key.to_vec()).collect();
            batch.delete_elements(TABLE, set, &keys);
        }
        Ok(dead)
    });
    outcome.context(|| format!("remove the pod from table {TABLE}"))
}
