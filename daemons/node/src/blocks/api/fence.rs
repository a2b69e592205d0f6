//! The requests of the steps *own Node*, *renew* and *take*, and events about Nodes.

use std::sync::Arc;

use anyhow::{Result, bail};
use ferrule_blocks::ledger::Claim;
use kube::core::Request;
use kube::core::params::{GetParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::super::fence::Node;
use super::super::object::{BOOT, Object};
use super::{Answer, Api, BLOCKS};
use crate::api::{About, Event};

const NODES: &str = "/api/v1/nodes";

impl Api {
    /// The Node of this name; `None` if it does not exist.
    pub(in super::super) async fn get_node(&self, name: &str) -> Result<Option<Node>> {
        // A claim may name any text, and an empty name would ask for all Nodes.
        if name.is_empty() {
            return Ok(None);
        }
        let request = Request::new(NODES).get(name, &GetParams::default())?;
        match self.send::<Node>(request).await? {
            Answer::Done(node) => Ok(Some(node)),
            Answer::Absent => Ok(None),
            Answer::Conflict => bail!("the API server answers 409 to a request for the Node {name}"),
        }
    }

    /// Writes this boot into an object of this store. `None`: it has changed meanwhile, or is gone.
    pub(in super::super) async fn renew(&self, claim: &Claim, domain: &str) -> Result<Option<Claim>> {
        let Claim { uid, version, .. } = claim;
        let patch = json!({ "metadata": { "uid": uid, "resourceVersion": version, "annotations": { BOOT: self.claimant.boot } } });
        let (name, params) = (claim.block.name(domain), PatchParams::default());
        let request = Request::new(BLOCKS).patch(&name, &params, &Patch::Merge(patch))?;
        match self.send::<Object>(request).await? {
            Answer::Done(object) => match object.claim(domain, &self.claimant) {
                Some(new) if new.uid == *uid && new.boot == self.claimant.boot => Ok(Some(new)),
                _ => bail!("the API server has not written the boot into {name}"),
            },
            _ => Ok(None),
        }
    }

    /// Creates an event about a Node, in a task of its own. `fault` names what has happened; it is told once.
    pub(in super::super) fn tell(
        self: &Arc<Api>,
        node: &str,
        reason: &'static str,
        fault: String,
        message: String,
    ) {
        let event = Event { about: About::Node(node.to_owned()), reason, fault, message };
        let api = self.clone();
        tokio::spawn(async move {
            if let Err(error) = api.make(&event).await {
                log!("create an event about the {}: {error:#}", event.about);
            }
        });
    }

    pub(super) async fn make(&self, event: &Event) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/events", event.namespace());
        let body = serde_json::to_vec(&event.to_json(self.node()))?;
        // It is there already: another node has made it.
        self.send::<Value>(Request::new(path).create(&PostParams::default(), body)?).await.map(|_| ())
    }
}
