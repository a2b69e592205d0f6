//! What the daemon knows, for the proofs. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use ferrule_kernel::ip::IpFamily;
use ferrule_node_policy::ruleset::Entry;
use serde_json::Value;

use super::endpoint::Wanted;
use super::schedule::Target;
use crate::cluster::{Health, Peers};
use crate::plan::{Plan, Pods, State};

/// The input of [`super::run`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Input {
    /// `None` while no conflist is in place.
    pub wanted: Option<Wanted>,
    /// The MTU of the pods.
    pub mtu: u16,
    /// The endpoint's addresses in the maps of the policies; `None` with `--policy off`.
    pub probed: Option<BTreeSet<Entry>>,
    /// The endpoints of the other nodes, or why one is not asked.
    pub peers: BTreeMap<Arc<str>, BTreeMap<IpFamily, Result<Target, String>>>,
}

impl Input {
    /// What the plan and the Node objects say. `conflist`: that of these pods, and host-local's store.
    pub fn new(plan: &Plan, peers: &Peers, conflist: Option<(&Pods, Value, PathBuf)>) -> Input {
        let mtu = conflist.as_ref().map_or(0, |(pods, ..)| u16::try_from(pods.mtu).unwrap_or(u16::MAX));
        let wanted = conflist.map(|(pods, conflist, store)| Wanted {
            conflist,
            networks: pods.networks.iter().map(ToString::to_string).collect(),
            store,
        });
        let nodes = plan.nodes.iter().map(|(name, states)| {
            let health = peers.get(name).map_or(&Health::Absent, |peer| &peer.health);
            let of = |(network, state): &(ipnetwork::IpNetwork, State)| {
                let family = IpFamily::of(network.ip());
                let target = match state {
                    State::Way(_) => target(health, family, mtu),
                    State::Waits(why) | State::Refused(why) => Err(why.clone()),
                };
                (family, target)
            };
            (Arc::from(name.as_str()), states.iter().map(of).collect())
        });
        Input { wanted, mtu, probed: None, peers: nodes.collect() }
    }
}

/// The endpoint of a node. The smaller MTU counts: a pod learns that of a way.
fn target(health: &Health, family: IpFamily, mtu: u16) -> Result<Target, String> {
    match health {
        Health::Absent => Err("the node publishes no health endpoint".to_owned()),
        Health::Invalid(why) => Err((*why).to_owned()),
        Health::Published(published) if published.addresses.is_empty() => {
            Err("the node has no health endpoint now".to_owned())
        }
        Health::Published(published) => {
            let address = published.addresses.iter().find(|ip| IpFamily::of(**ip) == family);
            let address =
                *address.ok_or_else(|| format!("the node publishes no health endpoint for {family}"))?;
            Ok(Target { address, size: mtu.min(published.mtu) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Peer, Published};
    use crate::plan::Way;

    #[test]
    fn a_peer_is_asked_if_it_has_a_way_and_a_valid_endpoint() {
        let published = Published {
            uid: String::new(),
            boot: String::new(),
            version: String::new(),
            mtu: 1400,
            addresses: vec!["10.0.2.254".parse().unwrap()],
        };
        let way = || State::Way(Way::WireGuard);
        let (mut plan, mut peers) = (Plan::default(), Peers::new());
        for (name, health, state) in [
            ("absent", Health::Absent, way()),
            ("invalid", Health::Invalid("it is so"), way()),
            ("refused", Health::Published(published.clone()), State::Refused("it overlaps".into())),
            ("valid", Health::Published(published), way()),
        ] {
            let networks = [("10.0.2.0/24", state.clone()), ("fd00::/64", state)];
            plan.nodes
                .insert(name.into(), networks.map(|(cidr, state)| (cidr.parse().unwrap(), state)).into());
            peers.insert(name.into(), Peer { health, ..Peer::default() });
        }
        let pods = Pods { networks: vec!["10.0.1.0/24".parse().unwrap()], mtu: 1450 };
        let input = Input::new(&plan, &peers, Some((&pods, serde_json::json!({}), "/s".into())));
        let said = |name: &str, family| match &input.peers[name][&family] {
            Ok(target) => format!("{} {}", target.address, target.size),
            Err(why) => why.clone(),
        };
        for (name, v4, v6) in [
            ("absent", "the node publishes no health endpoint", "the node publishes no health endpoint"),
            ("invalid", "it is so", "it is so"),
            ("refused", "it overlaps", "it overlaps"),
            ("valid", "10.0.2.254 1400", "the node publishes no health endpoint for IPv6"),
        ] {
            assert_eq!((&*said(name, IpFamily::V4), &*said(name, IpFamily::V6)), (v4, v6), "{name}");
        }
        assert_eq!(input.wanted.unwrap().networks, ["10.0.1.0/24"]);
        assert_eq!(Input::new(&plan, &peers, None).wanted, None);
    }
}
