//! The entries of the VXLAN device: for each peer one in the FDB, and a neighbour for each of its inner addresses. Pure.

use std::collections::BTreeMap;

use ferrule_kernel::netlink::neighbour::{Change, Key, Neighbour, Table};

use crate::plan::VxlanPeer;

/// The entries of a device.
pub(super) type Entries = BTreeMap<Key, Neighbour>;

/// The entries of these peers. If two want the same, the first one gets it.
pub(super) fn of(peers: &[VxlanPeer]) -> Entries {
    let mut entries = Entries::new();
    for VxlanPeer { mac, outer, inner, .. } in peers {
        let fdb = Neighbour { table: Table::Fdb, mac: *mac, ip: *outer, is_permanent: true };
        let neighbours = inner.iter().map(|ip| Neighbour { table: Table::Neighbours, ip: *ip, ..fdb });
        for entry in [fdb].into_iter().chain(neighbours) {
            entries.entry(entry.key()).or_insert(entry);
        }
    }
    entries
}

/// The entries to remove and those to set, so that a device with `present` has `wanted`.
pub(super) fn changes<'a>(
    present: &'a Entries,
    wanted: &'a Entries,
) -> (impl Iterator<Item = &'a Neighbour>, impl Iterator<Item = &'a Neighbour>) {
    let gone = present.iter().filter(|(key, _)| !wanted.contains_key(*key)).map(|(_, entry)| entry);
    let new = wanted.iter().filter(|(key, entry)| present.get(*key) != Some(*entry)).map(|(_, entry)| entry);
    (gone, new)
}

/// Whether the change makes the device with this index differ from `entries`.
pub(super) fn is_damage(link: u32, entries: &Entries, change: &Change) -> bool {
    match change {
        Change::Gone(of, key) => *of == link && entries.contains_key(key),
        Change::Set(of, entry) => {
            let wanted = entries.get(&entry.key());
            *of == link && wanted.map_or(entry.is_permanent, |wanted| wanted != entry)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrule_kernel::netlink::Mac;

    fn peer(number: u8) -> VxlanPeer {
        VxlanPeer {
            name: format!("node{number}"),
            mac: Mac([2, 0, 0, 0, 0, number]),
            outer: [192, 0, 2, number].into(),
            inner: vec![[10, 1, number, 0].into(), format!("fd00:0:0:{number}::").parse().unwrap()],
        }
    }

    #[test]
    fn a_new_node_is_three_entries() {
        let (two, three) = (of(&[peer(1), peer(2)]), of(&[peer(1), peer(2), peer(3)]));
        let count = |present, wanted| {
            let (gone, new) = changes(present, wanted);
            (gone.count(), new.count())
        };
        assert_eq!((count(&two, &two), count(&two, &three), count(&three, &two)), ((0, 0), (0, 3), (3, 0)));
        let moved = of(&[peer(1), VxlanPeer { outer: [192, 0, 2, 9].into(), ..peer(2) }]);
        assert_eq!(count(&two, &moved), (0, 1));
    }

    #[test]
    fn the_first_of_two_peers_keeps_what_both_want() {
        let thief = VxlanPeer { outer: [192, 0, 2, 66].into(), ..peer(1) };
        assert_eq!(of(&[peer(1), thief]), of(&[peer(1)]));
    }

    #[test]
    fn changes_of_others_are_damage() {
        let entries = of(&[peer(1)]);
        let fdb = entries[&Key::Mac(peer(1).mac)];
        let other = Neighbour { ip: [192, 0, 2, 9].into(), ..fdb };
        let strange = Neighbour { mac: Mac([2; 6]), ..fdb };
        for (change, expected) in [
            (Change::Set(3, fdb), false),
            (Change::Gone(3, fdb.key()), true),
            (Change::Gone(4, fdb.key()), false),
            (Change::Set(3, other), true),
            (Change::Set(3, strange), true),
            (Change::Gone(3, strange.key()), false),
            (Change::Set(3, Neighbour { is_permanent: false, ..strange }), false),
        ] {
            assert_eq!(is_damage(3, &entries, &change), expected, "{change:?}");
        }
    }
}
