//! Nodes. Their annotations of this node go to the outbox.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Error, Result};
use tokio::sync::watch;

use super::Update;
use super::client::NODES;
use super::decode::Head;
use super::kind::Kind;
use super::outbox::Seen;
use crate::cluster::{Node, Peer, Peers};

pub(super) struct Nodes {
    /// This node's name, and its annotations.
    name: String,
    seen: watch::Sender<Seen>,
    /// The number of nodes of the last list.
    count: Arc<AtomicU32>,
    /// The list so far, and this node's annotations in it.
    peers: Peers,
    annotations: BTreeMap<String, String>,
}

impl Nodes {
    pub(super) fn new(name: String, seen: watch::Sender<Seen>, count: Arc<AtomicU32>) -> Nodes {
        Nodes { name, seen, count, peers: Peers::new(), annotations: BTreeMap::new() }
    }

    /// Notes the annotations of this node's object.
    fn note(&self, annotations: BTreeMap<String, String>) {
        let annotations = Some(annotations);
        self.seen.send_if_modified(|seen| std::mem::replace(seen, annotations.clone()) != annotations);
    }
}

impl Kind for Nodes {
    const PATH: &'static str = NODES;
    const WORD: &'static str = "nodes";
    const COST: u32 = 1;
    type Object = Node;
    type Message = Update;
    const SERVERS: Option<fn(BTreeSet<IpAddr>) -> Update> = Some(Update::Servers);

    fn version(node: &Node) -> &str {
        &node.metadata.resource_version
    }

    /// Without its object a node would lose its routes.
    fn unread(_: Head, why: Error) -> Result<Node> {
        Err(why)
    }

    fn begin(&mut self) {
        (self.peers, self.annotations) = (Peers::new(), BTreeMap::new());
    }

    fn listed(&mut self, node: Node) -> Option<Update> {
        if node.metadata.name == self.name {
            self.annotations = node.annotations();
        }
        self.peers.extend(check(node));
        None
    }

    fn complete(&mut self) -> Update {
        let annotations = std::mem::take(&mut self.annotations);
        self.note(annotations);
        self.count.store(u32::try_from(self.peers.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        Update::List(std::mem::take(&mut self.peers))
    }

    fn changed(&mut self, node: Node) -> Option<Update> {
        if node.metadata.name == self.name {
            self.note(node.annotations());
        }
        check(node).map(|(name, peer)| Update::Changed(name, Box::new(peer)))
    }

    fn gone(&mut self, node: Node) -> Option<Update> {
        if node.metadata.name == self.name {
            self.note(BTreeMap::new());
        }
        Some(Update::Gone(node.metadata.name))
    }

    fn state(state: Result<(), String>) -> Update {
        Update::State(state)
    }
}

fn check(node: Node) -> Option<(String, Peer)> {
    let shown: String = node.metadata.name.escape_default().take(80).collect();
    let checked = node.check();
    if checked.is_none() {
        log!("ignores a Node with an invalid name: {shown}");
    }
    checked
}
