//! Which destinations of other programs' routes can change a plan. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

use crate::cluster::{Peers, inside, single};

/// The podCIDRs and the addresses of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    networks: BTreeMap<IpNetwork, ()>,
    /// Their prefix lengths, by family.
    prefixes: [BTreeSet<u8>; 2],
}

impl Interest {
    pub fn of(peers: &Peers) -> Interest {
        let addresses = peers.values().flat_map(|peer| peer.addresses.iter().flatten().copied().map(single));
        let networks = peers.values().flat_map(|peer| peer.networks.iter().copied()).chain(addresses);
        let networks: BTreeMap<IpNetwork, ()> = networks.map(|network| (network, ())).collect();
        let mut prefixes = <[BTreeSet<u8>; 2]>::default();
        for network in networks.keys() {
            prefixes[IpFamily::of(network.ip()) as usize].insert(network.prefix());
        }
        Interest { networks, prefixes }
    }

    /// Whether one of them overlaps this destination: the route may lead to a node, or lie in a podCIDR.
    pub fn meets(&self, dst: IpNetwork) -> bool {
        let around = |prefix: &u8| {
            let around = IpNetwork::new(dst.ip(), *prefix).ok()?;
            IpNetwork::new(around.network(), *prefix).ok()
        };
        let wider = self.prefixes[IpFamily::of(dst.ip()) as usize].range(..=dst.prefix());
        inside(&self.networks, dst).next().is_some()
            || wider.filter_map(around).any(|network| self.networks.contains_key(&network))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Peer;

    #[test]
    fn routes_to_nodes_and_in_podcidrs_matter() {
        let peer = Peer {
            networks: vec!["10.244.2.0/24".parse().unwrap(), "fd00:2::/64".parse().unwrap()],
            addresses: ["192.0.2.2", "2001:db8::2"].map(|text| text.parse().ok()),
            ..Peer::default()
        };
        let interest = Interest::of(&Peers::from([("b".into(), peer)]));
        for (dst, expected) in [
            ("0.0.0.0/0", true),
            ("::/0", true),
            ("192.0.2.0/24", true),
            ("192.0.2.2/32", true),
            ("192.0.2.3/32", false),
            ("10.0.0.0/8", true),
            ("10.244.2.0/24", true),
            ("10.244.2.7/32", true),
            ("10.244.3.0/24", false),
            ("2001:db8::/32", true),
            ("fd00:2::1/128", true),
            ("fd00:3::/64", false),
        ] {
            assert_eq!(interest.meets(dst.parse().unwrap()), expected, "{dst}");
        }
    }
}
