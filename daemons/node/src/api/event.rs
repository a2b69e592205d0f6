//! Events about Node objects.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The reason of an event that is no warning.
pub const READY: &str = "PodNetworkReady";

/// An event about a node. All nodes that see one fault make one event: its name is a hash of node, reason and fault, so the API
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
            "type": if *reason == READY { "Normal" } else { "Warning" },
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
        let object = |reporter: &str, node: &str, fault: &str, message: &str| {
            let (node, fault, message) = (node.into(), fault.into(), message.into());
            Event { node, reason: "PodNetworkRefused", fault, message }.to_json(reporter)
        };
        let [one, same, fault, node] =
            [("n1", "n2", "a", "A"), ("n3", "n2", "a", "B"), ("n1", "n2", "b", "A"), ("n1", "n4", "a", "A")]
                .map(|(reporter, node, fault, text)| {
                    object(reporter, node, fault, text)["metadata"]["name"].clone()
                });
        assert_eq!(one, same, "whoever reports it");
        assert!(one != fault && one != node);
        assert_eq!(object("n1", "n2", "a", "it is so")["message"], "it is so");
    }
}
