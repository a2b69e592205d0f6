//! Makes the plan. Pure.

mod obstacles;
mod own;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use self::ways::Maker;
use super::{Desired, Way};
use crate::arguments::Options;
use crate::cluster::{Peers, Refusal, settle};
use crate::kernel::Local;
use crate::reason::Reason;

/// The smallest MTU of a link with IPv6.
const IPV6_MTU: u32 = 1280;

/// The plan, and its reasons for the log, the status and the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What the kernel and the conflist should have.
    pub desired: Desired,
    /// The other nodes, by name: each podCIDR that it has, and how it is reached.
    pub nodes: BTreeMap<String, Vec<(IpNetwork, State)>>,
    /// The refusals, also those of this node.
    pub refusals: BTreeSet<Refusal>,
    /// What keeps this node from being ready, apart from refusals of other nodes.
    pub reasons: BTreeSet<Reason>,
}

/// How the pods of a podCIDR are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// This way.
    Way(Way),
    /// Not yet, and why. The node may still be starting.
    Waits(String),
    /// Never, and why.
    Refused(String),
}

/// What a plan is made from.
pub struct Facts<'a> {
    pub options: &'a Options,
    /// This node's name.
    pub name: &'a str,
    /// All nodes, also this one.
    pub peers: &'a Peers,
    /// This node's links, addresses and routes.
    pub local: &'a Local,
    /// The podCIDRs that have a way already. Addresses and routes that appear on this node later do not take it away.
    pub held: &'a BTreeSet<IpNetwork>,
    /// The pods' MTU until now: it stays while the uplink is away.
    pub mtu: Option<u32>,
    /// The conflist's bridge.
    pub bridge: Option<&'a str>,
    /// The addresses of the API servers.
    pub servers: &'a BTreeSet<IpAddr>,
    /// The podCIDRs that this node had before, each with the addresses that its pods still have; `None` if that is not known.
    pub former: &'a Former,
}

/// See [`Facts::former`].
pub type Former = BTreeMap<IpNetwork, Option<BTreeSet<IpAddr>>>;

/// Makes the plan. `None` if the API server has no such node: it may be that of another cluster.
pub fn make(facts: &Facts<'_>) -> Option<Plan> {
    let no_ipv6 = facts.local.no_ipv6.as_deref();
    let plan = attempt(facts, no_ipv6)?;
    match too_small(&plan.desired).filter(|_| no_ipv6.is_none()) {
        Some(why) => attempt(facts, Some(&why)),
        None => Some(plan),
    }
}

/// As [`make`]. `no_ipv6`: why this node cannot have IPv6. IPv4 goes on without it.
fn attempt(facts: &Facts<'_>, no_ipv6: Option<&str>) -> Option<Plan> {
    let me = facts.peers.get(facts.name)?;
    let claims = settle(facts.peers, &facts.options.service_cidr);
    let mut maker = Maker::new(facts, &claims, me, no_ipv6);
    let mut plan = Plan { refusals: claims.refusals.clone(), ..Plan::default() };
    let own = maker.own(&mut plan);
    for (name, networks) in &claims.networks {
        if *name == facts.name {
            continue;
        }
        let Some(peer) = facts.peers.get(*name) else { continue };
        let states: Vec<_> =
            networks.iter().map(|network| (*network, maker.state(name, peer, *network, &mut plan))).collect();
        maker.add_peer(name, peer, &states);
        for (network, state) in &states {
            match state {
                State::Way(way) => {
                    plan.desired.routes.insert(*network, *way);
                }
                State::Waits(_) => {}
                State::Refused(why) => plan.refuse(name, *network, why.clone()),
            }
        }
        plan.nodes.insert((*name).to_owned(), states);
    }
    maker.finish(own, &mut plan);
    Some(plan)
}

/// Why the links of this plan are too small for IPv6.
fn too_small(desired: &Desired) -> Option<String> {
    let pods = desired.pods.as_ref();
    let overlays = [desired.vxlan.as_ref().map(|it| it.mtu), desired.wireguard.as_ref().map(|it| it.mtu)];
    let mtu = overlays.into_iter().flatten().chain(pods.map(|pods| pods.mtu)).min()?;
    let own = pods.into_iter().flat_map(|pods| &pods.networks);
    let has_ipv6 = own.chain(desired.routes.keys()).any(IpNetwork::is_ipv6);
    (has_ipv6 && mtu < IPV6_MTU).then(|| {
        format!("the uplink of this node leaves {mtu} bytes for the pods' packets, and IPv6 needs {IPV6_MTU}: raise its MTU by {}", IPV6_MTU - mtu)
    })
}

impl Plan {
    fn refuse(&mut self, node: &str, network: IpNetwork, why: String) {
        self.refusals.insert(Refusal { node: node.to_owned(), what: network.to_string(), why });
    }
}

#[cfg(test)]
mod tests;
