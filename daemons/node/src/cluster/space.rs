//! Sets of networks that find overlaps in logarithmic time.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

/// The /32 or /128 of an address.
pub fn single(ip: IpAddr) -> IpNetwork {
    IpNetwork::new(ip, IpFamily::of(ip).bits()).unwrap_or_else(|_| IpNetwork::from(ip))
}

/// The gateway that host-local chooses for a network: its first address after that of the network itself.
pub fn gateway(network: IpNetwork) -> IpAddr {
    match network.network() {
        IpAddr::V4(ip) => u32::from(ip).wrapping_add(1).to_be_bytes().into(),
        IpAddr::V6(ip) => u128::from(ip).wrapping_add(1).to_be_bytes().into(),
    }
}

/// The networks of a map that lie in `network`. The map's networks may overlap.
pub fn inside<V>(map: &BTreeMap<IpNetwork, V>, network: IpNetwork) -> impl Iterator<Item = (&IpNetwork, &V)> {
    // A network that begins in `network` lies inside it, or begins at the same address and is wider.
    let begin_there = map.range(network..=single(network.broadcast()));
    begin_there.filter(move |(found, _)| found.prefix() >= network.prefix())
}

/// Disjoint networks, each with a value.
#[derive(Clone, Debug)]
pub struct Space<V>(BTreeMap<IpNetwork, V>);

impl<V> Default for Space<V> {
    fn default() -> Self {
        Space(BTreeMap::new())
    }
}

impl<V> Space<V> {
    /// A network of the set that overlaps this one, with its value.
    pub fn overlap(&self, network: IpNetwork) -> Option<(IpNetwork, &V)> {
        // Disjoint networks are sorted by their ends, too: only the last one that begins before our end can overlap.
        let (found, value) = self.0.range(..=single(network.broadcast())).next_back()?;
        let touches = found.contains(network.ip()) || network.contains(found.ip());
        touches.then_some((*found, value))
    }

    /// Adds a network, which must not overlap another one.
    pub fn insert(&mut self, network: IpNetwork, value: V) {
        self.0.insert(network, value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network((last, prefix): (u8, u8)) -> IpNetwork {
        let whole = IpNetwork::new([10, 0, 0, last].into(), prefix).unwrap();
        IpNetwork::new(whole.network(), prefix).unwrap()
    }

    proptest! {
        #[test]
        fn agree_with_a_linear_search(
            list in prop::collection::vec((any::<u8>(), 24..=32_u8), 0..20),
            wanted in (any::<u8>(), 24..=32_u8),
        ) {
            let (mut space, mut kept, mut map) = (Space::default(), Vec::<IpNetwork>::new(), BTreeMap::new());
            let touches = |a: IpNetwork, b: IpNetwork| a.contains(b.ip()) || b.contains(a.ip());
            for one in list.into_iter().map(network) {
                map.insert(one, ());
                prop_assert_eq!(space.overlap(one).is_some(), kept.iter().any(|former| touches(*former, one)));
                if space.overlap(one).is_none() {
                    space.insert(one, ());
                    kept.push(one);
                }
            }
            let wanted = network(wanted);
            let lies_inside = |one: &IpNetwork| wanted.contains(one.ip()) && one.prefix() >= wanted.prefix();
            prop_assert!(inside(&map, wanted).map(|(one, ())| one).eq(map.keys().filter(|one| lies_inside(one))));
            prop_assert!(space.overlap("::/0".parse().unwrap()).is_none());
            prop_assert!(inside(&map, "::/0".parse().unwrap()).next().is_none());
        }
    }
}
