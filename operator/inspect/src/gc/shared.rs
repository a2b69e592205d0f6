//! Removes leaks of one kind together: they share a look at the node, and a change of the kernel's objects.
//!
//! A plugin finds the objects first, then asks, and changes only what it has found: by a generation of the ruleset, under its lock, or
//! by what tells the object from a later one of the same name. So the evidence is never older than the object.

use std::mem::discriminant;

use cni_common::spec::CniError;
use ferrule_bandwidth::gc as ifbs;
use ferrule_bridge::mac_spoof;
use ferrule_container_link::vlan_device;
use ferrule_dhcp::list as dhcp;
use ferrule_firewall::{list as allowed, nft as firewall};
use ferrule_host_device::remove as devices;
use ferrule_kit::state_file::Seen;
use ferrule_masquerade::list as masquerade;
use ferrule_policy::list as undecided;
use ferrule_portmap::remove as host_ports;

use super::Outcome;
use crate::model::{Removal, Shared, Sockets, State};
use crate::node::Node;
use crate::read::remove_records;

/// Removes the leaks of these that are still leaks. `say` gets each with its outcome.
pub(super) fn remove(
    node: &mut Node,
    sockets: &mut Sockets,
    leaks: &[usize],
    say: &mut dyn FnMut(&Node, usize, Outcome),
) {
    let shared = |at: &usize| match &node.objects[*at].removal {
        Some(Removal::Shared(shared)) => Some((*at, shared.clone())),
        _ => None,
    };
    let all: Vec<(usize, Shared)> = leaks.iter().filter_map(shared).collect();
    for kind in all.chunk_by(|(_, one), (_, two)| discriminant(one) == discriminant(two)) {
        for share in kind.chunks(kind.first().map_or(1, |(_, first)| at_once(first))) {
            // What the kernel refuses of one must not keep the others.
            if !together(node, sockets, share, share.len() > 1, say) {
                for one in share.chunks(1) {
                    together(node, sockets, one, false, say);
                }
            }
        }
    }
}

/// How many share a look: few if ADD waits meanwhile, or if they must fit into one batch.
fn at_once(kind: &Shared) -> usize {
    match kind {
        Shared::HostPorts(_) | Shared::HostPortsOfReference(_) => 64,
        Shared::HostPortChains(_)
        | Shared::MasqueradeChain(_)
        | Shared::FirewallOfReference(_)
        | Shared::FirewallOpened(_) => 8,
        Shared::Masquerade(_) | Shared::Ifb(_) | Shared::VlanUser(_) | Shared::ClaimRecord(_) => 256,
        Shared::Undecided(_) => 64,
        Shared::Firewall(_) => firewall::AT_ONCE,
        Shared::MacSpoof(_) => mac_spoof::AT_ONCE,
        Shared::File(_) | Shared::Lease(_) | Shared::Device(_) => 1024,
    }
}

/// Removes some of one kind. Returns false, and says nothing, if that fails for all and `may_fail`.
fn together(
    node: &mut Node,
    sockets: &mut Sockets,
    share: &[(usize, Shared)],
    may_fail: bool,
    say: &mut dyn FnMut(&Node, usize, Outcome),
) -> bool {
    let (objects, shared): (Vec<usize>, Vec<&Shared>) =
        share.iter().map(|(at, shared)| (*at, shared)).unzip();
    let mut has_asked = false;
    let answer = of_kind(sockets, &shared, &mut || {
        has_asked = true;
        node.judge_again(&objects);
        let is_dead = |at: &usize| matches!(node.objects[*at].state, State::Dead(_));
        objects.iter().map(is_dead).collect()
    });
    if may_fail && answer.is_err() {
        return false;
    }
    for (place, at) in objects.iter().enumerate() {
        let outcome = match (&answer, &node.objects[*at].state) {
            (Err(error), _) => Outcome::Failed(error.to_string()),
            (Ok(done), State::Alive(why) | State::Unknown(why)) if has_asked => match done.get(place) {
                Some(Ok(true)) => Outcome::Removed,
                _ => Outcome::Kept(why.clone()),
            },
            (Ok(done), _) => done.get(place).map_or(Outcome::Gone, Outcome::from),
        };
        say(node, *at, outcome);
    }
    true
}

/// The answer of a plugin for each object.
type Done = Result<Vec<Result<bool, CniError>>, CniError>;

/// Removes objects, which are all of the kind of the first one, by their plugin's code.
fn of_kind(sockets: &mut Sockets, all: &[&Shared], are_dead: &mut dyn FnMut() -> Vec<bool>) -> Done {
    macro_rules! keys {
        ($kind:ident) => {
            &all.iter()
                .filter_map(|one| match one {
                    Shared::$kind(key) => Some(key.clone()),
                    _ => None,
                })
                .collect::<Vec<_>>()
        };
    }
    let Sockets { route, netfilter } = sockets;
    let removed = match all.first() {
        None => return Ok(Vec::new()),
        Some(Shared::HostPorts(_)) => host_ports::labelled(netfilter, keys!(HostPorts), are_dead),
        Some(Shared::HostPortsOfReference(_)) => {
            host_ports::of_reference(netfilter, keys!(HostPortsOfReference), are_dead)
        }
        Some(Shared::HostPortChains(_)) => host_ports::chains(netfilter, keys!(HostPortChains), are_dead),
        Some(Shared::Masquerade(_)) => masquerade::remove(netfilter, keys!(Masquerade), are_dead),
        Some(Shared::MasqueradeChain(_)) => {
            masquerade::remove_chains(netfilter, keys!(MasqueradeChain), are_dead)
        }
        Some(Shared::Firewall(_)) => allowed::remove(netfilter, keys!(Firewall), are_dead),
        Some(Shared::FirewallOfReference(_)) => {
            allowed::remove_reference(netfilter, keys!(FirewallOfReference), are_dead)
        }
        Some(Shared::FirewallOpened(_)) => allowed::remove_opened(netfilter, keys!(FirewallOpened), are_dead),
        Some(Shared::MacSpoof(_)) => mac_spoof::remove(netfilter, keys!(MacSpoof), are_dead),
        Some(Shared::Ifb(_)) => ifbs::remove(route, keys!(Ifb), are_dead),
        Some(Shared::VlanUser(_)) => vlan_device::release_dead(route, keys!(VlanUser), are_dead),
        Some(Shared::Undecided(_)) => undecided::remove(netfilter, keys!(Undecided), are_dead),
        // Of these each may fail alone.
        Some(Shared::Lease(_)) => return Ok(dhcp::release(keys!(Lease), are_dead)),
        Some(Shared::Device(_)) => return Ok(devices::give_back_dead(keys!(Device), are_dead)),
        Some(Shared::ClaimRecord(_)) => return remove_records(keys!(ClaimRecord), are_dead),
        Some(Shared::File(_)) => {
            let (files, dead): (&Vec<Seen>, _) = (keys!(File), are_dead());
            let remove = |(seen, is_dead): (&Seen, bool)| if is_dead { seen.remove() } else { Ok(false) };
            return Ok(files.iter().zip(dead).map(remove).collect());
        }
    };
    removed.map(|removed| removed.into_iter().map(Ok).collect())
}
