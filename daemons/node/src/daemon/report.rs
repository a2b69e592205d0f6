//! Output for people: log lines, the status file, figures.

use std::collections::BTreeSet;
use std::time::SystemTime;

use clap::ValueEnum as _;
use ferrule_kit::cluster::configurations;
use humantime::format_rfc3339_seconds;
use ipnetwork::IpNetwork;

use crate::arguments::Options;
use crate::cluster::{Peers, Refusal};
use crate::conflist::Template;
use crate::kernel::Local;
use crate::plan::{self, Plan, State};
use crate::serve::Figures;
use crate::status::{self, Network, Node, Status, Way};
use crate::word::Conflist;

/// The most lines about nodes of one sync.
pub(super) const MAX_LINES: usize = 20;

/// Writes log lines, and remembers those that it writes once.
#[derive(Debug, Default)]
pub(super) struct Log {
    told: BTreeSet<String>,
}

impl Log {
    /// Writes a line, unless it was written before.
    pub(super) fn once(&mut self, line: String) {
        if !self.told.contains(&line) {
            log!("{line}");
            if self.told.len() > 100 {
                self.told.clear();
            }
            self.told.insert(line);
        }
    }

    /// Logs the reasons that are new, and those that have ended.
    pub(super) fn reasons(&mut self, old: &Plan, new: &Plan) {
        for reason in new.reasons.difference(&old.reasons).take(MAX_LINES) {
            log!("{}: {} ({})", reason.code.key(), reason.text, reason.code.remedy());
        }
        for reason in old.reasons.difference(&new.reasons).take(MAX_LINES) {
            log!("{}: no more: {}", reason.code.key(), reason.text);
        }
    }

    /// Logs the nodes that are reached in another way than before.
    pub(super) fn changes(&mut self, old: &Plan, new: &Plan) {
        let mut lines = Vec::new();
        for (name, states) in new.nodes.iter().filter(|(name, states)| old.nodes.get(*name) != Some(states)) {
            let texts: Vec<String> = states
                .iter()
                // Refusals have lines of their own.
                .filter_map(|(network, state)| match state {
                    State::Refused(_) => None,
                    State::Way(way) => Some(format!("{network} {}", plain(way))),
                    State::Waits(why) => Some(format!("{network} waits: {why}")),
                })
                .collect();
            match texts.is_empty() {
                true => {}
                false => lines.push(format!("node {name}: {}", texts.join(", "))),
            }
        }
        let gone = old.nodes.keys().filter(|name| !new.nodes.contains_key(*name));
        lines.extend(gone.map(|name| format!("node {name}: gone")));
        for line in lines.iter().take(MAX_LINES) {
            log!("{line}");
        }
        if lines.len() > MAX_LINES {
            log!("… and {} nodes more; ferrule-node status shows all", lines.len() - MAX_LINES);
        }
    }
}

fn plain(way: &plan::Way) -> String {
    match way {
        plan::Way::Direct { via, .. } => format!("via {via}"),
        plan::Way::Vxlan(_) => "by VXLAN".to_owned(),
        plan::Way::WireGuard => "by WireGuard".to_owned(),
    }
}

fn now() -> String {
    format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The status before the API server has said anything: the nodes of the former process keep their times.
pub(super) fn begin(options: &Options, node: &str, template: &Template, former: Status) -> Status {
    let (nodes, health) =
        if former.node == node { (former.nodes, former.health) } else { (Vec::new(), None) };
    let mode = options.mode.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let conflist = status::Conflist {
        path: options.conflist.clone(),
        // A conflist of a former process counts: pods start while the API server is away.
        written: crate::conflist::file::is_ours(&options.conflist),
        store: template.store(),
        ..former.conflist
    };
    let api = status::Api { since: now(), ..status::Api::default() };
    Status { node: node.to_owned(), mode, api, conflist, nodes, health, ..Status::default() }
}

/// Notes the state of the connection to the API server.
pub(super) fn api(status: &mut Status, error: Option<&String>) {
    let api = &mut status.api;
    if api.connected != error.is_none() || api.since.is_empty() {
        (api.connected, api.since) = (error.is_none(), now());
    }
    if api.error.as_ref() != error {
        match error {
            Some(error) => log!("API server: {error}"),
            None => log!("API server: followed again"),
        }
        api.error = error.cloned();
    }
}

/// What a runtime finds in the conflist's folder. `has_pods`: whether this node has podCIDRs.
pub(super) fn found(conflist: &status::Conflist, has_pods: bool) -> Conflist {
    let path = &conflist.path;
    let first = configurations(path.parent().unwrap_or(path)).into_iter().next();
    match first.filter(|first| first < path) {
        _ if !has_pods => Conflist::Missing("this node has no podCIDR, so there is no conflist".to_owned()),
        _ if !conflist.written => Conflist::Missing(format!("{} is not written", path.display())),
        Some(first) => Conflist::After(first),
        None => Conflist::First,
    }
}

/// Notes how each node is reached. A node whose networks are as before keeps its time.
pub(super) fn nodes(status: &mut Status, plan: &Plan, peers: Option<&Peers>, local: &Local) {
    let former = std::mem::take(&mut status.nodes);
    for (name, states) in &plan.nodes {
        let mut networks: Vec<Network> =
            states.iter().map(|(network, state)| row(*network, state, local)).collect();
        // podCIDRs that were refused before the search for a way. The set is sorted by node.
        let first = Refusal { node: name.clone(), what: String::new(), why: String::new() };
        for refusal in plan.refusals.range(first..).take_while(|refusal| refusal.node == *name) {
            if !networks.iter().any(|network| network.network == refusal.what) {
                let (network, detail) = (refusal.what.clone(), refusal.why.clone());
                networks.push(Network { network, way: Way::Refused, detail, probe: None });
            }
        }
        let same = former.binary_search_by(|node| node.name.cmp(name)).ok().map(|at| &former[at]);
        let since = same.filter(|node| node.networks == networks).map_or_else(now, |node| node.since.clone());
        let peer = peers.and_then(|peers| peers.get(name));
        let addresses = peer.into_iter().flat_map(|peer| peer.addresses).flatten().collect();
        status.nodes.push(Node { name: name.clone(), addresses, networks, since, standing: String::new() });
    }
}

fn row(network: IpNetwork, state: &State, local: &Local) -> Network {
    let (way, detail, probe) = match state {
        State::Way(plan::Way::Direct { via, link }) => {
            let name = local.links.get(link).map_or("?", |link| link.name.as_str());
            (Way::Route, format!("via {via} dev {name}"), Some(*via))
        }
        State::Way(plan::Way::Vxlan(inner)) => (Way::Vxlan, format!("via {inner}"), Some(*inner)),
        State::Way(plan::Way::WireGuard) => (Way::Wireguard, String::new(), Some(network.network())),
        State::Waits(why) => (Way::Waits, why.clone(), None),
        State::Refused(why) => (Way::Refused, why.clone(), None),
    };
    Network { network: network.to_string(), way, detail, probe }
}

/// The figures of the status.
pub(super) fn figures(figures: &mut Figures, status: &Status, routes: usize) {
    let count = |way| status.nodes.iter().flat_map(|node| &node.networks).filter(|n| n.way == way).count();
    figures.nodes = status.nodes.len();
    figures.networks = vec![
        ("route", count(Way::Route)),
        ("vxlan", count(Way::Vxlan)),
        ("wireguard", count(Way::Wireguard)),
        ("waits", count(Way::Waits)),
        ("refused", count(Way::Refused)),
    ];
    figures.routes = routes;
    figures.connected = status.api.connected;
}
