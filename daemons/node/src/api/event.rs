//! Events about Nodes, policies and AddressDomains.

use std::fmt;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The reason of an event that is no warning.
pub const READY: &str = "PodNetworkReady";

/// The reasons of events about a policy.
const NOT_UNDERSTOOD: &str = "NetworkPolicyNotUnderstood";
const CLUSTER_NOT_UNDERSTOOD: &str = "ClusterNetworkPolicyNotUnderstood";
const DOUBTFUL: &str = "NetworkPolicyDoubtful";

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    Node(String),
    Policy {
        namespace: String,
        name: String,
    },
    ClusterPolicy(String),
    /// `kubectl describe` finds the events by the UID.
    Domain {
        name: String,
        uid: String,
    },
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            About::Node(name) => write!(f, "node {name}"),
            About::Policy { namespace, name } => write!(f, "NetworkPolicy {namespace}/{name}"),
            About::Domain { name, .. } => write!(f, "AddressDomain {name}"),
            About::ClusterPolicy(name) => write!(f, "ClusterNetworkPolicy {name}"),
        }
    }
}

/// An event about an object. All nodes that see one fault make one event: its name is a hash of object, reason and fault, so the API
/// server refuses a repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub about: About,
    /// One word, such as `PodNetworkRefused`.
    pub reason: &'static str,
    /// Names the fault. It has no name of the node that reports, unless each one shall make an event of its own.
    pub fault: String,
    pub message: String,
}

impl Event {
    /// Something in a policy is not understood: the policy isolates, and this part of it allows nothing. A ClusterNetworkPolicy has no
    /// `namespace`: it is empty.
    pub fn of_policy(namespace: &str, name: &str, what: &str) -> Event {
        let (about, reason) = match namespace {
            "" => (About::ClusterPolicy(name.to_owned()), CLUSTER_NOT_UNDERSTOOD),
            _ => (About::Policy { namespace: namespace.to_owned(), name: name.to_owned() }, NOT_UNDERSTOOD),
        };
        Event { about, reason, fault: what.to_owned(), message: what.to_owned() }
    }

    /// Something in a policy is understood, and probably not meant.
    pub fn of_doubt(namespace: &str, name: &str, what: &str) -> Event {
        Event { reason: DOUBTFUL, ..Event::of_policy(namespace, name, what) }
    }

    /// There are more parts of policies that are not understood than events about them. All nodes make one event, also if they count different numbers.
    pub fn of_more(namespace: &str, name: &str, more: usize) -> Event {
        let message =
            format!("{more} more parts of policies are not understood: ferrule-node status counts them");
        Event { message, ..Event::of_policy(namespace, name, "more") }
    }

    /// The namespace of the object. Events of an object without one are in `default`.
    pub(crate) fn namespace(&self) -> &str {
        match &self.about {
            About::Node(_) | About::ClusterPolicy(_) | About::Domain { .. } => "default",
            About::Policy { namespace, .. } => namespace,
        }
    }

    /// The object. `reporter`: this node.
    pub(crate) fn to_json(&self, reporter: &str) -> Value {
        let Event { about, reason, fault, message } = self;
        // The kubelet and kubectl use the name of a Node as its UID here.
        let (key, object) = match about {
            About::Node(name) => {
                (name.clone(), json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": name }))
            }
            About::Policy { namespace, name } => (
                format!("{namespace}/{name}"),
                json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "namespace": namespace, "name": name }),
            ),
            About::Domain { name, uid } => (
                format!("domain {name}"),
                json!({ "apiVersion": "ferrule.dev/v1alpha1", "kind": "AddressDomain", "name": name, "uid": uid }),
            ),
            About::ClusterPolicy(name) => (
                name.clone(),
                json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "name": name }),
            ),
        };
        let mut hash = Sha256::new();
        for part in [key.as_str(), *reason, fault] {
            hash.update(part);
            hash.update([0]);
        }
        let name: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": format!("ferrule-node.{name}"), "namespace": self.namespace() },
            "involvedObject": object,
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
            Event { about: About::Node(node), reason: "PodNetworkRefused", fault, message }.to_json(reporter)
        };
        let [one, same, fault, node] =
            [("n1", "n2", "a", "A"), ("n3", "n2", "a", "B"), ("n1", "n2", "b", "A"), ("n1", "n4", "a", "A")]
                .map(|(reporter, node, fault, text)| {
                    object(reporter, node, fault, text)["metadata"]["name"].clone()
                });
        assert_eq!(one, same, "whoever reports it");
        assert!(one != fault && one != node);
        assert_eq!(object("n1", "n2", "a", "it is so")["message"], "it is so");
        // The API server takes only one in the object's own namespace.
        let of_policy = |reporter: &str, name: &str| Event::of_policy("shop", name, "x").to_json(reporter);
        let (one, same, other) = (of_policy("n1", "db"), of_policy("n2", "db"), of_policy("n1", "web"));
        assert_eq!(one["metadata"], same["metadata"]);
        assert_ne!(one["metadata"], other["metadata"]);
        assert_eq!(
            (&one["metadata"]["namespace"], &one["involvedObject"]["namespace"]),
            (&json!("shop"), &json!("shop"))
        );
        let of_cluster = Event::of_policy("", "db", "x").to_json("n1");
        assert_eq!(
            (&of_cluster["metadata"]["namespace"], &of_cluster["involvedObject"]["namespace"]),
            (&json!("default"), &Value::Null)
        );
        assert_eq!(of_cluster["involvedObject"]["kind"], "ClusterNetworkPolicy");
    }
}
