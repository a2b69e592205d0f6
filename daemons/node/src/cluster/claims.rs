//! Decides which node keeps a podCIDR that two nodes claim, and refuses invalid ones. All nodes of the cluster decide alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;

use super::node::{Peer, Peers};
use super::space::{Space, inside, single};

/// Networks that no pod can have, and why.
const RESERVED: [(&str, &str); 9] = [
    ("0.0.0.0/8", "this network"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/96", "loopback"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("fe80::/10", "link-local"),
    ("ff00::/8", "multicast"),
];

/// A podCIDR, or an address, that is not used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    pub node: String,
    /// The podCIDR or the address, as the Node object has it.
    pub what: String,
    pub why: String,
}

/// The accepted podCIDRs, and the refusals.
#[derive(Clone, Debug, Default)]
pub struct Claims<'a> {
    /// The podCIDRs of each node, in the order of its object.
    pub networks: BTreeMap<&'a str, Vec<IpNetwork>>,
    /// The same podCIDRs, with their nodes.
    pub space: Space<&'a str>,
    pub refusals: BTreeSet<Refusal>,
    /// The oldest node that has each address.
    owners: BTreeMap<IpNetwork, &'a str>,
}

/// Gives each podCIDR to the oldest node that claims it; of two nodes with the same age, to the first name.
pub fn settle<'a>(peers: &'a Peers, services: &[IpNetwork]) -> Claims<'a> {
    let fixed = fixed(services);
    let mut addresses: BTreeMap<IpNetwork, (&str, &Peer)> = BTreeMap::new();
    let mut order: Vec<(&str, &Peer)> = peers.iter().map(|(name, peer)| (name.as_str(), peer)).collect();
    order.sort_by_key(|(name, peer)| (age(peer), *name));
    for (name, peer) in &order {
        for address in peer.addresses.iter().flatten() {
            addresses.entry(single(*address)).or_insert((name, peer));
        }
    }
    let mut claims = Claims::default();
    for (name, peer) in order {
        let mut refuse = |what: &str, why: String| {
            claims.refusals.insert(Refusal { node: name.to_owned(), what: what.to_owned(), why });
        };
        peer.faults.iter().for_each(|(what, why)| refuse(what, why.clone()));
        let mut kept = Vec::new();
        for network in &peer.networks {
            let held = inside(&addresses, *network).find(|(_, (_, other))| age(other) <= age(peer));
            if let Some((_, why)) = fixed.iter().find(|(other, _)| touches(*other, *network)) {
                refuse(&network.to_string(), format!("it overlaps {why}"));
            } else if let Some((address, (other, _))) = held {
                refuse(
                    &network.to_string(),
                    format!("it holds the address {} of node {other}", address.ip()),
                );
            } else if let Some((other, owner)) = claims.space.overlap(*network) {
                refuse(
                    &network.to_string(),
                    format!("it overlaps {other} of node {owner}, which had it first"),
                );
            } else {
                claims.space.insert(*network, name);
                kept.push(*network);
            }
        }
        claims.networks.insert(name, kept);
    }
    claims.owners = addresses.into_iter().map(|(address, (name, _))| (address, name)).collect();
    claims
}

impl Claims<'_> {
    /// A node's address of a family.
    ///
    /// # Errors
    /// The node has no such address, an older node has it too, or the address lies in a podCIDR: [`settle`] has given that to an
    /// older node.
    pub fn address(&self, name: &str, peer: &Peer, family: IpFamily) -> Result<IpAddr, String> {
        let address = peer.address(family).ok_or_else(|| format!("the node has no {family} address"))?;
        if let Some((network, owner)) = self.space.overlap(single(address)) {
            return Err(format!(
                "the node's address {address} lies in the podCIDR {network} of node {owner}"
            ));
        }
        match self.owners.get(&single(address)).filter(|owner| **owner != name) {
            Some(owner) => {
                Err(format!("the node's address {address} is that of node {owner}, which had it first"))
            }
            None => Ok(address),
        }
    }
}

/// A node without a creation time counts as the youngest.
fn age(peer: &Peer) -> (bool, &str) {
    (peer.created.is_empty(), &peer.created)
}

fn fixed(services: &[IpNetwork]) -> Vec<(IpNetwork, String)> {
    let reserved = RESERVED
        .iter()
        .filter_map(|(network, what)| Some((network.parse().ok()?, format!("{network} ({what})"))));
    let services = services.iter().map(|network| (*network, format!("the Service network {network}")));
    reserved.chain(services).collect()
}

fn touches(one: IpNetwork, other: IpNetwork) -> bool {
    one.contains(other.ip()) || other.contains(one.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(created: &str, networks: &str, address: &str) -> Peer {
        let mut peer = Peer { created: created.into(), ..Peer::default() };
        peer.networks = networks.split_whitespace().map(|text| text.parse().unwrap()).collect();
        for ip in address.split_whitespace().map(|text| text.parse::<IpAddr>().unwrap()) {
            peer.addresses[IpFamily::of(ip) as usize] = Some(ip);
        }
        peer
    }

    fn cluster(evil: Peer) -> Peers {
        Peers::from([
            ("a".into(), peer("2026-01-01T00:00:00Z", "10.244.1.0/24 fd00:1::/64", "192.0.2.1 2001:db8::1")),
            ("b".into(), peer("2026-01-01T00:00:00Z", "10.244.2.0/24 fd00:2::/64", "192.0.2.2 2001:db8::2")),
            ("evil".into(), evil),
        ])
    }

    /// Checks that a and b keep their podCIDRs and addresses. Returns the refusals.
    fn refused(evil: Peer) -> Vec<String> {
        let peers = cluster(evil);
        let claims = settle(&peers, &["10.96.0.0/12".parse().unwrap()]);
        for name in ["a", "b"] {
            assert_eq!(claims.networks[name], peers[name].networks, "{name}");
            assert!(IpFamily::ALL.iter().all(|family| claims.address(name, &peers[name], *family).is_ok()));
        }
        assert!(claims.refusals.iter().all(|refusal| refusal.node == "evil"));
        claims.refusals.iter().map(|refusal| format!("{} {}", refusal.what, refusal.why)).collect()
    }

    #[test]
    fn invalid_podcidrs_are_refused_and_other_nodes_keep_theirs() {
        let younger = "2026-01-02T00:00:00Z";
        for (network, why) in [
            ("10.244.2.0/25", "it overlaps 10.244.2.0/24 of node b, which had it first"),
            ("10.240.0.0/13", "it overlaps 10.244.2.0/24 of node b, which had it first"),
            ("fd00:1::/64", "it overlaps fd00:1::/64 of node a, which had it first"),
            ("192.0.2.0/24", "it holds the address 192.0.2.1 of node a"),
            ("2001:db8::2/128", "it holds the address 2001:db8::2 of node b"),
            ("203.0.113.0/24", "it holds the address 203.0.113.7 of node evil"),
            ("10.97.0.0/16", "it overlaps the Service network 10.96.0.0/12"),
            ("10.0.0.0/8", "it overlaps the Service network 10.96.0.0/12"),
            ("127.1.0.0/16", "it overlaps 127.0.0.0/8 (loopback)"),
            ("0.0.0.0/0", "it overlaps 0.0.0.0/8 (this network)"),
            ("128.0.0.0/1", "it overlaps 169.254.0.0/16 (link-local)"),
            ("::/0", "it overlaps ::/96 (loopback)"),
            ("fe80::/64", "it overlaps fe80::/10 (link-local)"),
        ] {
            assert_eq!(refused(peer(younger, network, "203.0.113.7")), [format!("{network} {why}")]);
        }
        assert!(refused(peer(younger, "10.244.3.0/24", "203.0.113.7")).is_empty());
    }

    #[test]
    fn the_oldest_node_wins_then_the_first_name() {
        let peers = Peers::from([
            ("x".into(), peer("2026-01-02T00:00:00Z", "10.1.0.0/24", "")),
            ("y".into(), peer("2026-01-01T00:00:00Z", "10.1.0.0/24", "")),
            ("z".into(), peer("", "10.1.0.0/24 fd00::/64", "")),
            ("w".into(), peer("", "fd00::/64", "")),
        ]);
        let claims = settle(&peers, &[]);
        assert_eq!(claims.networks["x"], []);
        assert_eq!(claims.networks["y"], peers["y"].networks);
        assert_eq!((claims.networks["z"].len(), claims.networks["w"].len()), (0, 1));
    }

    #[test]
    fn the_oldest_node_keeps_its_address() {
        let peers = cluster(peer("2026-01-02T00:00:00Z", "10.244.3.0/24", "192.0.2.2 2001:db8::9"));
        let claims = settle(&peers, &[]);
        let address = |name: &str, family| claims.address(name, &peers[name], family);
        assert!(address("b", IpFamily::V4).is_ok() && address("evil", IpFamily::V6).is_ok());
        let error = address("evil", IpFamily::V4).unwrap_err();
        assert_eq!(error, "the node's address 192.0.2.2 is that of node b, which had it first");
    }

    /// A kubelet writes the addresses of its own Node object.
    #[test]
    fn a_younger_node_cannot_take_a_podcidr_by_an_address_in_it() {
        let peers = cluster(peer("2026-01-02T00:00:00Z", "10.244.3.0/24", "10.244.1.7"));
        let claims = settle(&peers, &[]);
        assert_eq!(claims.networks["a"], peers["a"].networks);
        let error = claims.address("evil", &peers["evil"], IpFamily::V4).unwrap_err();
        assert_eq!(error, "the node's address 10.244.1.7 lies in the podCIDR 10.244.1.0/24 of node a");
    }
}
