//! How the pods of each node are reached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Mac;
use ipnetwork::IpNetwork;
use sha2::{Digest as _, Sha256};

use super::obstacles::{Obstacle, Things};
use super::{Facts, Plan, State};
use crate::arguments::Mode;
use crate::cluster::{Claims, Peer, single};
use crate::kernel::{Link, Local, Lookup, Reach};
use crate::plan::guard::{Scene, guard};
use crate::plan::{Masquerade, Pods, Vxlan, VxlanPeer, Way, WireGuard, WireGuardPeer};
use crate::reason::{Code, Reason};

/// The MTU of a node whose uplink is not known.
const USUAL_MTU: u32 = 1500;

/// The data that the decisions about all nodes share.
pub(super) struct Maker<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) claims: &'a Claims<'a>,
    pub(super) me: &'a Peer,
    /// Why this node cannot have IPv6.
    pub(super) no_ipv6: Option<&'a str>,
    pub(super) things: Things<'a>,
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
    /// The podCIDRs that would cut this node off. They are no part of the cluster.
    pub(super) cutting: BTreeSet<IpNetwork>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(
        facts: &'a Facts<'a>,
        claims: &'a Claims<'a>,
        me: &'a Peer,
        no_ipv6: Option<&'a str>,
    ) -> Self {
        let local = facts.local;
        let things = Things::new(facts);
        let outer = outer_family(me);
        let uplink = uplink(local, &things.lookup, me);
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
            no_ipv6,
            things,
            outer,
            overlay_mtu: uplink_mtu.saturating_sub(taken),
            uplink_mtu,
            has_uplink: uplink.is_some_and(|link| link.is_up),
            vxlan: Vec::new(),
            wireguard: Vec::new(),
            keys,
            macs,
            cutting: BTreeSet::new(),
        }
    }

    /// How the pods of a node's podCIDR are reached.
    pub(super) fn state(&mut self, name: &str, peer: &Peer, network: IpNetwork, plan: &mut Plan) -> State {
        let about = |code, text| Reason { code, about: format!("{name} {network}"), text };
        match self.things.obstacle(network, &mut plan.desired.stale) {
            Some(Obstacle::Cuts(why)) => {
                self.cutting.insert(network);
                return State::Refused(why);
            }
            Some(Obstacle::Foreign(why)) => return State::Refused(why),
            Some(Obstacle::Pods(why)) => {
                plan.reasons.insert(about(Code::Former, format!("{network} of node {name}: {why}")));
                return State::Waits(why);
            }
            None => {}
        }
        if network.is_ipv6()
            && let Some(why) = self.no_ipv6
        {
            return State::Waits(why.to_owned());
        }
        let state = self.way(name, peer, network);
        if let (State::Way(_), Some(route)) = (&state, self.things.first_route(network)) {
            let text = format!("packets to the pods of node {name} ({network}) take another route: {route}");
            plan.reasons.insert(about(Code::Way, text));
        }
        state
    }

    fn way(&self, name: &str, peer: &Peer, network: IpNetwork) -> State {
        if peer.addresses == [None, None] {
            return State::Waits("the node has no address yet".into());
        }
        let family = IpFamily::of(network.ip());
        let has_both = self.me.address(family).is_some() && peer.address(family).is_some();
        match self.facts.options.mode {
            Mode::Routes if self.me.address(family).is_none() => {
                State::Waits(format!("the Node object of this node has no {family} address"))
            }
            Mode::Routes => match self.direct(name, peer, family) {
                Ok(Some((way, _))) => State::Way(way),
                Ok(None) => State::Refused("the node is behind a gateway".into()),
                Err(state) => state,
            },
            // VXLAN may carry it by the other family. The other end sees the same two objects, and decides alike.
            Mode::Auto if !has_both => self.vxlan(name, peer, network),
            Mode::Auto => match self.direct(name, peer, family) {
                Ok(Some((way, false))) => State::Way(way),
                Ok(Some((_, true)) | None) => self.vxlan(name, peer, network),
                Err(state) => state,
            },
            Mode::Vxlan => self.vxlan(name, peer, network),
            Mode::Wireguard => self.wireguard(name, peer),
        }
    }

    /// The way to a node on the same link, and whether that is a tunnel; `None` if the node is behind a gateway.
    fn direct(&self, name: &str, peer: &Peer, family: IpFamily) -> Result<Option<(Way, bool)>, State> {
        let via = self.address(name, peer, family)?;
        match self.things.lookup.reach(via) {
            Reach::OnLink(link) => {
                let is_tunnel = self.facts.local.links.get(&link).is_some_and(|link| link.is_tunnel);
                Ok(Some((Way::Direct { via, link }, is_tunnel)))
            }
            Reach::Routed => Ok(None),
            Reach::Nowhere => Err(State::Waits(format!("this node has no route to {via}"))),
        }
    }

    fn vxlan(&self, name: &str, peer: &Peer, network: IpNetwork) -> State {
        if let Err(state) = self.outer_address(name, peer) {
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
        if let Err(state) = self.outer_address(name, peer) {
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
    fn outer_address(&self, name: &str, peer: &Peer) -> Result<IpAddr, State> {
        if self.me.address(self.outer).is_none() {
            return Err(State::Waits("this node has no address yet".into()));
        }
        let address = self.address(name, peer, self.outer)?;
        match outer_family(peer) == self.outer {
            true => Ok(address),
            false => Err(State::Refused(format!(
                "its overlay has {} packets, that of this node {}: give both nodes the same families",
                outer_family(peer),
                self.outer
            ))),
        }
    }

    fn address(&self, name: &str, peer: &Peer, family: IpFamily) -> Result<IpAddr, State> {
        let address = self.claims.address(name, peer, family).map_err(State::Refused)?;
        if self.things.addresses.contains_key(&single(address)) {
            return Err(State::Refused(format!("the node's address {address} belongs to this node")));
        }
        match self.things.lookup.edge_of(address) {
            Some(lan) => Err(State::Refused(format!(
                "the node's address {address} is the first or the broadcast address of {lan}, which no host can have"
            ))),
            None => Ok(address),
        }
    }

    /// Adds the node to the overlays that its podCIDRs need.
    pub(super) fn add_peer(&mut self, name: &str, peer: &Peer, states: &[(IpNetwork, State)]) {
        let Ok(outer) = self.outer_address(name, peer) else { return };
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
    pub(super) fn finish(self, own: Vec<IpNetwork>, plan: &mut Plan) {
        let (options, desired) = (self.facts.options, &mut plan.desired);
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
        let Facts { options, name, peers, local, former, .. } = *self.facts;
        let (claims, device) = (self.claims, desired.vxlan.as_ref());
        let pods: Vec<IpNetwork> = own.iter().chain(former.keys()).copied().collect();
        desired.guard = guard(&Scene { options, name, peers, local, claims, pods: &pods, device });
        // Pods from before a change keep their way out.
        let has_pods = |pods: &Option<BTreeSet<IpAddr>>| pods.as_ref().is_none_or(|pods| !pods.is_empty());
        let former = self.facts.former.iter().filter(|(_, pods)| has_pods(pods)).map(|(network, _)| network);
        let masqueraded: BTreeSet<IpNetwork> = own.iter().chain(former).copied().collect();
        let masqueraded: Vec<IpNetwork> =
            masqueraded.into_iter().filter(|own| options.masquerade.has(IpFamily::of(own.ip()))).collect();
        if !masqueraded.is_empty() {
            let all =
                self.claims.networks.values().flatten().filter(|network| !self.cutting.contains(network));
            let cluster: BTreeSet<IpNetwork> = all.chain(&options.cluster_cidr).copied().collect();
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

/// The family of the packets of a node's overlays.
fn outer_family(peer: &Peer) -> IpFamily {
    if peer.address(IpFamily::V4).is_some() { IpFamily::V4 } else { IpFamily::V6 }
}

/// The MAC address of a node's VXLAN device. Each node can compute those of all nodes.
pub(super) fn mac(node: &str) -> Mac {
    let hash = Sha256::new().chain_update("vxlan").chain_update(node).finalize();
    Mac::local(hash.first_chunk().copied().unwrap_or_default())
}

/// The link that has this node's address, else the default route's link.
fn uplink<'a>(local: &'a Local, lookup: &Lookup<'_>, me: &Peer) -> Option<&'a Link> {
    let by_address = me.addresses.iter().flatten().filter_map(|address| local.link_of(*address));
    let links = by_address.chain(lookup.default_link()).filter_map(|index| local.links.get(&index));
    links.into_iter().find(|link| !link.is_loopback)
}
