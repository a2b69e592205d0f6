//! The peers of the device. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipnetwork::IpNetwork;

use super::key::Key;
use crate::plan::WireGuardPeer;

/// A peer in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// `None` for a peer that the kernel knows no address of.
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) allowed: BTreeSet<IpNetwork>,
}

/// The peers by their public keys.
pub(super) type Peers = BTreeMap<Key, Peer>;

/// The peers as wanted, and a line for each one that is left out. The kernel knows a peer by its key alone, and it ignores this node's own
/// key. A node whose annotation has the key of another one would take its packets: the node that is among `present` keeps it.
pub(super) fn of(wanted: &[WireGuardPeer], own: &Key, present: &Peers) -> (Peers, Vec<String>) {
    let is_present = |peer: &&WireGuardPeer| {
        present.get(&peer.key).is_some_and(|present| present.allowed == sorted(&peer.allowed))
    };
    let (first, rest): (Vec<_>, Vec<_>) = wanted.iter().partition(is_present);
    let (mut peers, mut refused) = (Peers::new(), Vec::new());
    for WireGuardPeer { name, key, endpoint, allowed } in first.into_iter().chain(rest) {
        if key == own || peers.contains_key(key) {
            refused.push(format!("node {name} is not reached by WireGuard: another node has the same key"));
            continue;
        }
        peers.insert(*key, Peer { endpoint: Some(*endpoint), allowed: sorted(allowed) });
    }
    (peers, refused)
}

fn sorted(networks: &[IpNetwork]) -> BTreeSet<IpNetwork> {
    networks.iter().copied().collect()
}

/// The keys to remove, and the peers to set.
pub(super) fn changes(present: &Peers, wanted: &Peers) -> (Vec<Key>, Peers) {
    let gone = present.keys().filter(|key| !wanted.contains_key(*key)).copied().collect();
    let new = wanted.iter().filter(|(key, peer)| present.get(*key) != Some(*peer));
    (gone, new.map(|(key, peer)| (*key, peer.clone())).collect())
}

/// The peers that the kernel has, with the endpoints of `wanted`. The kernel changes an endpoint itself when a valid packet comes from
/// another address of the node, which is right.
pub(super) fn with_endpoints(mut present: Peers, wanted: &Peers) -> Peers {
    for (key, peer) in &mut present {
        if let (Some(wanted), Some(_)) = (wanted.get(key), peer.endpoint) {
            peer.endpoint = wanted.endpoint;
        }
    }
    present
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> WireGuardPeer {
        WireGuardPeer {
            name: format!("node{number}"),
            key: [number; 32],
            endpoint: ([192, 0, 2, number], 51871).into(),
            allowed: vec![format!("10.1.{number}.0/24").parse().unwrap()],
        }
    }

    #[test]
    fn a_copied_key_is_left_out() {
        let thief = WireGuardPeer { name: "thief".to_owned(), key: [1; 32], ..peer(3) };
        let mirror = WireGuardPeer { name: "mirror".to_owned(), key: [9; 32], ..peer(4) };
        let wanted = of(&[peer(1), peer(2)], &[9; 32], &Peers::new()).0;
        // A thief whose name comes first does not get what another node has.
        for (given, present) in [
            ([peer(1), thief.clone(), peer(2), mirror.clone()], Peers::new()),
            ([mirror, thief, peer(1), peer(2)], wanted.clone()),
        ] {
            let (peers, mut refused) = of(&given, &[9; 32], &present);
            refused.sort();
            assert_eq!(peers, wanted);
            let [first, second] = refused.try_into().unwrap();
            assert!(first.contains("mirror") && second.contains("thief"), "{first} {second}");
        }
    }

    #[test]
    fn only_what_differs_changes() {
        let of = |peers: &[WireGuardPeer]| of(peers, &[0; 32], &Peers::new()).0;
        let (two, three) = (of(&[peer(1), peer(2)]), of(&[peer(1), peer(2), peer(3)]));
        assert_eq!(changes(&two, &two), (Vec::new(), Peers::new()));
        assert_eq!(changes(&two, &three), (Vec::new(), of(&[peer(3)])));
        assert_eq!(changes(&three, &two), (vec![[3; 32]], Peers::new()));
        let moved = WireGuardPeer { endpoint: ([192, 0, 2, 9], 1).into(), ..peer(2) };
        let roamed = of(&[peer(1), moved.clone()]);
        assert_eq!(changes(&two, &roamed), (Vec::new(), of(&[moved])));
        assert_eq!(with_endpoints(roamed, &two), two);
    }
}
