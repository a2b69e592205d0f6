//! The policies of bridges. The comment of an element is the name of the network that asked for the policy. An ADD changes
//! only what its own network asked for, so the strictest of several networks on one bridge wins.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::{Socket, link};
use ferrule_kernel::nftables::{
    Batch, Element, Error, change, cut_comment, elements, find_elements, link_key, link_of,
};
use ferrule_kit::check::ensure;

use super::layout::{GUARDED, NOICC, SELF, STRICT, TABLE, pair_key};
use crate::config::Policy;
use crate::plan::Plan;

/// The sets with bridges.
const SETS: [&str; 4] = [GUARDED, SELF, NOICC, STRICT];

/// The key of a bridge in a set.
fn key(set: &str, bridge: &str) -> Vec<u8> {
    if matches!(set, SELF | NOICC) { pair_key(bridge) } else { link_key(bridge) }
}

/// Whether a bridge with this policy is in the set.
fn is_in(set: &str, policy: Policy) -> bool {
    match set {
        NOICC => policy == Policy::Isolated,
        STRICT => policy == Policy::Strict,
        _ => policy != Policy::Open,
    }
}

/// Reads the elements of bridges, each in the order of [`SETS`].
fn read(socket: &mut Socket, bridges: &[&str]) -> Result<Vec<Option<Element>>, Error> {
    let of = |bridge: &&str| SETS.map(|set| (set, key(set, bridge)));
    let keys: Vec<(&str, Vec<u8>)> = bridges.iter().flat_map(of).collect();
    let wanted: Vec<(&str, &[u8])> = keys.iter().map(|(set, key)| (*set, key.as_slice())).collect();
    find_elements(socket, TABLE, &wanted)
}

/// Adds to the batch what gives the plan's bridge its policy.
pub(super) fn set_policy(socket: &mut Socket, batch: &mut Batch, plan: &Plan) -> Result<(), Error> {
    let (bridges, policy) = match plan.policy() {
        Some((bridge, policy)) => (vec![bridge], policy),
        // One of the links may be a bridge that had a policy.
        None => (plan.host_links.iter().map(String::as_str).collect(), Policy::Open),
    };
    let network = cut_comment(&plan.network);
    let sets = bridges.iter().flat_map(|bridge| SETS.map(|set| (set, key(set, bridge))));
    for (found, (set, key)) in read(socket, &bridges)?.into_iter().zip(sets) {
        match found {
            None if is_in(set, policy) => {
                let element = Element { comment: Some(network.to_owned()), ..Element::new(key) };
                batch.add_elements(TABLE, set, &[element]);
            }
            Some(found) if !is_in(set, policy) && found.comment.as_deref() == Some(network) => {
                batch.delete_elements(TABLE, set, &[key]);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Deletes the policies of bridges that no longer exist.
///
/// # Errors
/// Code 999 if the kernel refuses a request.
pub fn delete_unused(socket: &mut Socket) -> Result<(), CniError> {
    SETS.into_iter().try_for_each(|set| {
        // The ADD of a container on a bridge that has been made again is a change.
        let outcome = change(socket, |socket, batch| {
            let mut keys: Vec<Vec<u8>> = elements(socket, TABLE, set)?.into_iter().map(|e| e.key).collect();
            keys.retain(|key| matches!(link::exists(&link_of(key)), Ok(false)));
            batch.delete_elements(TABLE, set, &keys);
            Ok(())
        });
        outcome.context(|| format!("remove unused bridges from set {set:?} of table {TABLE}"))
    })
}

/// Checks that the plan's bridge has its policy.
///
/// # Errors
/// Code 999 with the first set in which the bridge is missing.
pub(super) fn check(socket: &mut Socket, plan: &Plan) -> Result<(), CniError> {
    let Some((bridge, policy)) = plan.policy() else { return Ok(()) };
    for (found, set) in read(socket, &[bridge]).context(|| "check the firewall")?.iter().zip(SETS) {
        ensure(found.is_some() || !is_in(set, policy), || {
            format!("bridge {bridge:?} is missing in set {set:?} of table {TABLE} (ingressPolicy {policy})")
        })?;
    }
    Ok(())
}
