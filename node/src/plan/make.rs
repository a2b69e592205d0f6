//! Makes the plan. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Mac;
use ipnetwork::IpNetwork;
use sha2::{Digest as _, Sha256};

use super::guard::{Scene, guard};
use super::{Desired, Masquerade, Pods, Vxlan, VxlanPeer, Way, WireGuard, WireGuardPeer};
use crate::arguments::{Mode, Options};
use crate::cluster::{Claims, Peer, Peers, Refusal, inside, settle, single};
use crate::kernel::{Link, Local, Lookup, Reach};
use crate::{vxlan, wireguard};

/// The MTU of a node whose uplink is not known.
const USUAL_MTU: u32 = 1500;

/// The plan, and its reasons for the log, the status and the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What the kernel and the conflist should have.
    pub desired: Desired,
    /// The other nodes, by name: each podCIDR that it has, and how it is reached.
    pub nodes: BTreeMap<String, Vec<(IpNetwork, State)>>,
    /// The refusals, also those of this node.
    pub refusals: BTreeSet<Refusal>,
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
}

/// Makes the plan. `None` if the API server has no such node: it may be that of another cluster.
pub fn make(facts: &Facts<'_>) -> Option<Plan> {
    let me = facts.peers.get(facts.name)?;
    let claims = settle(facts.peers, &facts.options.service_cidr);
    let own = claims.networks.get(facts.name).cloned().unwrap_or_default();
    let mut maker = Maker::new(facts, &claims, me);
    let mut plan = Plan { refusals: claims.refusals.clone(), ..Plan::default() };
    for (name, networks) in &claims.networks {
        if *name == facts.name {
            continue;
        }
        let Some(peer) = facts.peers.get(*name) else { continue };
        let states: Vec<_> =
            networks.iter().map(|network| (*network, maker.state(name, peer, *network))).collect();
        maker.add_peer(name, peer, &states);
        for (network, state) in &states {
            match state {
                State::Way(way) => {
                    plan.desired.routes.insert(*network, *way);
                }
                State::Waits(_) => {}
                State::Refused(why) => {
                    let (node, what) = ((*name).to_owned(), network.to_string());
                    plan.refusals.insert(Refusal { node, what, why: why.clone() });
                }
            }
        }
        plan.nodes.insert((*name).to_owned(), states);
    }
    maker.finish(own, &mut plan.desired);
    Some(plan)
}

/// The data that the decisions about all nodes share.
struct Maker<'a> {
    facts: &'a Facts<'a>,
    claims: &'a Claims<'a>,
    me: &'a Peer,
    lookup: Lookup<'a>,
    /// This node's addresses, except those of our devices.
    addresses: BTreeMap<IpNetwork, u32>,
    /// The family of the packets that carry VXLAN and WireGuard. Both ends must choose the same one.
    outer: IpFamily,
    /// The MTU of the uplink, less what the overlay takes.
    overlay_mtu: u32,
    uplink_mtu: u32,
    /// Whether the uplink is known and up.
    has_uplink: bool,
    vxlan: Vec<VxlanPeer>,
    wireguard: Vec<WireGuardPeer>,
    /// The oldest node of each key and each MAC address: a copy is refused.
    keys: BTreeMap<[u8; 32], &'a str>,
    macs: BTreeMap<[u8; 6], &'a str>,
}

impl<'a> Maker<'a> {
    fn new(facts: &'a Facts<'a>, claims: &'a Claims<'a>, me: &'a Peer) -> Self {
        let local = facts.local;
        let lookup = Lookup::new(local);
        let is_ours = |link: &u32| {
            local
                .links
                .get(link)
                .is_some_and(|link| [vxlan::LINK, wireguard::LINK].contains(&link.name.as_str()))
        };
        let foreign = local.addresses.iter().filter(|(link, _)| !is_ours(link));
        let addresses = foreign.map(|(link, address)| (single(*address), *link)).collect();
        let outer = if me.address(IpFamily::V4).is_some() { IpFamily::V4 } else { IpFamily::V6 };
        let uplink = uplink(local, &lookup, me);
        let uplink_mtu = uplink.map_or(USUAL_MTU, |link| link.mtu);
        let taken = match (facts.options.mode, outer) {
            (Mode::Wireguard, IpFamily::V4) => 60,
            (Mode::Wireguard, IpFamily::V6) => 80,
            (_, IpFamily::V4) => 50,
            (_, IpFamily::V6) => 70,
        };
        let (mut keys, mut macs) = (BTreeMap::new(), BTreeMap::new());
        let mut order: Vec<_> = facts.peers.iter().collect();
        order.sort_by_key(|(name, peer)| (peer.created.is_empty(), &peer.created, *name));
        for (name, peer) in order {
            macs.entry(mac(name).0).or_insert(name.as_str());
            if let Some(key) = peer.key {
                keys.entry(key).or_insert(name.as_str());
            }
        }
        Maker {
            facts,
            claims,
            me,
            lookup,
            addresses,
            outer,
            overlay_mtu: uplink_mtu.saturating_sub(taken),
            uplink_mtu,
            has_uplink: uplink.is_some_and(|link| link.is_up),
            vxlan: Vec::new(),
            wireguard: Vec::new(),
            keys,
            macs,
        }
    }

    /// How the pods of a node's podCIDR are reached.
    fn state(&self, name: &str, peer: &Peer, network: IpNetwork) -> State {
        if let Some(why) = self.obstacle(network) {
            return State::Refused(why);
        }
        if peer.addresses == [None, None] {
            return State::Waits("the node has no address yet".into());
        }
        let family = IpFamily::of(network.ip());
        match self.facts.options.mode {
            Mode::Routes => match self.direct(peer, family) {
                Ok(Some(way)) => State::Way(way),
                Ok(None) => State::Refused("the node is behind a gateway".into()),
                Err(state) => state,
            },
            Mode::Auto => match self.direct(peer, family) {
                Ok(Some(way)) => State::Way(way),
                Ok(None) => self.vxlan(name, peer, network),
                // VXLAN may carry it by the other family.
                Err(State::Refused(_)) if peer.address(family).is_none() => self.vxlan(name, peer, network),
                Err(state) => state,
            },
            Mode::Vxlan => self.vxlan(name, peer, network),
            Mode::Wireguard => self.wireguard(name, peer),
        }
    }

    /// Why this node cannot route the podCIDR: it has an address or a route of another program in it.
    fn obstacle(&self, network: IpNetwork) -> Option<String> {
        if self.facts.held.contains(&network) || self.facts.local.ours(network).next().is_some() {
            return None;
        }
        if let Some((address, link)) = inside(&self.addresses, network).next() {
            let name = self.facts.local.links.get(link).map_or("?", |link| link.name.as_str());
            return Some(format!("it holds the address {} of {name} on this node", address.ip()));
        }
        let (dst, route) = inside(self.lookup.routes(), network).next()?;
        Some(format!("it holds {dst}, which this node has a route to (protocol {})", route.protocol))
    }

    /// The way to a node on the same link; `None` if it is behind a gateway.
    fn direct(&self, peer: &Peer, family: IpFamily) -> Result<Option<Way>, State> {
        let via = self.address(peer, family)?;
        match self.lookup.reach(via) {
            Reach::OnLink(link) => Ok(Some(Way::Direct { via, link })),
            Reach::Routed => Ok(None),
            Reach::Nowhere => Err(State::Waits(format!("this node has no route to {via}"))),
        }
    }

    fn vxlan(&self, name: &str, peer: &Peer, network: IpNetwork) -> State {
        if let Err(state) = self.outer_address(peer) {
            return state;
        }
        match self.macs.get(&mac(name).0) {
            Some(owner) if *owner != name => {
                State::Refused(format!("its MAC address is that of node {owner}"))
            }
            _ => State::Way(Way::Vxlan(network.network())),
        }
    }

    fn wireguard(&self, name: &str, peer: &Peer) -> State {
        if let Err(state) = self.outer_address(peer) {
            return state;
        }
        let Some(key) = peer.key else {
            return State::Waits("the node has announced no WireGuard key yet".into());
        };
        match self.keys.get(&key) {
            Some(owner) if *owner != name => {
                State::Refused(format!("its WireGuard key is that of node {owner}"))
            }
            _ => State::Way(Way::WireGuard),
        }
    }

    /// The address that the packets of an overlay go to.
    fn outer_address(&self, peer: &Peer) -> Result<IpAddr, State> {
        if self.me.address(self.outer).is_none() {
            return Err(State::Waits("this node has no address yet".into()));
        }
        self.address(peer, self.outer)
    }

    fn address(&self, peer: &Peer, family: IpFamily) -> Result<IpAddr, State> {
        let address = self.claims.address(peer, family).map_err(State::Refused)?;
        match self.addresses.contains_key(&single(address)) {
            true => Err(State::Refused(format!("the node's address {address} belongs to this node"))),
            false => Ok(address),
        }
    }

    /// Adds the node to the overlays that its podCIDRs need.
    fn add_peer(&mut self, name: &str, peer: &Peer, states: &[(IpNetwork, State)]) {
        let Ok(outer) = self.outer_address(peer) else { return };
        let through = |wanted: fn(&Way) -> bool| {
            let is_wanted = move |state: &State| matches!(state, State::Way(way) if wanted(way));
            states.iter().filter(move |(_, state)| is_wanted(state)).map(|(network, _)| *network)
        };
        let inner: Vec<IpAddr> =
            through(|way| matches!(way, Way::Vxlan(_))).map(|network| network.network()).collect();
        if !inner.is_empty() {
            self.vxlan.push(VxlanPeer { name: name.to_owned(), mac: mac(name), outer, inner });
        }
        let allowed: Vec<IpNetwork> = through(|way| *way == Way::WireGuard).collect();
        if let (Some(key), false) = (peer.key, allowed.is_empty()) {
            let endpoint = SocketAddr::new(outer, self.facts.options.wireguard_port);
            self.wireguard.push(WireGuardPeer { name: name.to_owned(), key, endpoint, allowed });
        }
    }

    /// Adds the devices, masquerade and the conflist's values.
    fn finish(self, own: Vec<IpNetwork>, desired: &mut Desired) {
        let options = self.facts.options;
        let addresses: Vec<IpNetwork> = own.iter().map(|network| single(network.network())).collect();
        let mut mtu = self.uplink_mtu;
        if let Some(local) = self.me.address(self.outer) {
            if options.mode == Mode::Wireguard {
                mtu = self.overlay_mtu;
                let (port, addresses) = (options.wireguard_port, addresses.clone());
                desired.wireguard = Some(WireGuard { port, mtu, addresses, peers: self.wireguard });
            }
            if options.mode == Mode::Vxlan || !self.vxlan.is_empty() {
                mtu = self.overlay_mtu;
                let (id, port, mac) = (options.vxlan_id, options.vxlan_port, mac(self.facts.name));
                desired.vxlan = Some(Vxlan { id, port, local, mac, mtu, addresses, peers: self.vxlan });
            }
        }
        let Facts { options, name, peers, local, .. } = *self.facts;
        let (claims, device) = (self.claims, desired.vxlan.as_ref());
        desired.guard = guard(&Scene { options, name, peers, local, claims, own: &own, device });
        let masqueraded = own.iter().filter(|own| options.masquerade.has(IpFamily::of(own.ip())));
        let masqueraded: Vec<IpNetwork> = masqueraded.copied().collect();
        if !masqueraded.is_empty() {
            let all = self.claims.networks.values().flatten().chain(&options.cluster_cidr);
            let cluster: BTreeSet<IpNetwork> = all.copied().collect();
            let exclude: BTreeSet<IpNetwork> = options.masquerade_exclude.iter().copied().collect();
            desired.masquerade = Some(Masquerade {
                own: masqueraded,
                cluster: cluster.into_iter().collect(),
                exclude: exclude.into_iter().collect(),
            });
        }
        if !own.is_empty() {
            // Without its uplink a node has no way that needs an overlay, and the MTU would grow.
            let former = self.facts.mtu.filter(|_| !self.has_uplink);
            desired.pods = Some(Pods { networks: own, mtu: options.mtu.or(former).unwrap_or(mtu) });
        }
    }
}

/// The MAC address of a node's VXLAN device. Each node can compute those of all nodes.
fn mac(node: &str) -> Mac {
    let hash = Sha256::new().chain_update("vxlan").chain_update(node).finalize();
    Mac::local(hash.first_chunk().copied().unwrap_or_default())
}

/// The link that has this node's address, else the default route's link.
fn uplink<'a>(local: &'a Local, lookup: &Lookup<'_>, me: &Peer) -> Option<&'a Link> {
    let by_address = me.addresses.iter().flatten().filter_map(|address| local.link_of(*address));
    let links = by_address.chain(lookup.default_link()).filter_map(|index| local.links.get(&index));
    links.into_iter().find(|link| !link.is_loopback)
}

#[cfg(test)]
mod tests;
