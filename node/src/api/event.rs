//! Events about Node objects.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::cluster::Refusal;

/// A warning about a node. All nodes that see one fault make one event: its name is a hash of node, reason and fault, so the API
/// server refuses a repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name of the Node.
    pub node: String,
    /// One word, such as `PodNetworkRefused`.
    pub reason: &'static str,
    /// Names the fault. It has no name of the node that reports, unless each one shall make an event of its own.
    pub fault: String,
    pub message: String,
}

impl From<&Refusal> for Event {
    fn from(refusal: &Refusal) -> Event {
        let message = format!("{} is not used: {}", refusal.what, refusal.why);
        let (node, fault) = (refusal.node.clone(), message.clone());
        Event { node, reason: "PodNetworkRefused", fault, message }
    }
}

impl Event {
    /// The object. `reporter`: this node.
    pub(super) fn to_json(&self, reporter: &str) -> Value {
        let Event { node, reason, fault, message } = self;
        let mut hash = Sha256::new();
        for part in [node, *reason, fault] {
            hash.update(part);
            hash.update([0]);
        }
        let name: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": format!("ferrule-node.{name}"), "namespace": "default" },
            // The kubelet and kubectl use the name of a Node as its UID here.
            "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": node, "uid": node },
            "reason": reason,
            "message": message,
            "type": "Warning",
            "source": { "component": "ferrule-node", "host": reporter },
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_has_one_event() {
        let name = |reporter: &str, node: &str, why: &str| {
            let refusal = Refusal { node: node.into(), what: "10.0.0.0/24".into(), why: why.into() };
            Event::from(&refusal).to_json(reporter)
        };
        let [one, same, why, node] =
            [("n1", "n2", "a"), ("n3", "n2", "a"), ("n1", "n2", "b"), ("n1", "n4", "a")]
                .map(|(reporter, node, why)| name(reporter, node, why)["metadata"]["name"].clone());
        assert_eq!(one, same, "whoever reports it");
        assert!(one != why && one != node);
        assert_eq!(name("n1", "n2", "it is so")["message"], "10.0.0.0/24 is not used: it is so");
    }
}
