//! What the API server says of policies, Namespaces and Pods: the messages to the thread that enforces. Pure.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};

use ferrule_node_policy::Compiler;
use ferrule_node_policy::model::{ClusterNetworkPolicy, Namespace, NetworkPolicy, Pod};
use tokio::sync::mpsc;

/// The most messages that wait. A slow receiver delays the lists.
const QUEUE: usize = 1024;

/// The kinds, each with a list and a watch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Policies,
    ClusterPolicies,
    Namespaces,
    Pods,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Policies, Kind::ClusterPolicies, Kind::Namespaces, Kind::Pods];

    /// Its plural.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Policies => "NetworkPolicies",
            Kind::ClusterPolicies => "ClusterNetworkPolicies",
            Kind::Namespaces => "Namespaces",
            Kind::Pods => "Pods",
        }
    }

    /// Whether its objects are in no namespace.
    pub fn is_of_cluster(self) -> bool {
        matches!(self, Kind::ClusterPolicies | Kind::Namespaces)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Namespace and name of an object. One that is in no namespace has its name in both.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: Box<str>,
    pub name: Box<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace == self.name {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// A message. While a list comes in, its objects are sent one by one, then [`Told::Listed`]. Before the first `Listed` of all kinds the
/// isolated pods are not known, and no pod may be released.
#[derive(Debug)]
pub enum Told {
    /// A policy is new or has changed.
    Policy(NetworkPolicy),
    /// A policy of the cluster is new or has changed.
    ClusterPolicy(ClusterNetworkPolicy),
    /// A namespace is new or has changed.
    Namespace(Namespace),
    /// A pod is new or has changed.
    Pod(Pod),
    Gone(Kind, Key),
    /// An object cannot be read, or is too large. The text says why. Such a policy isolates its namespace; one of the cluster denies everything to
    /// all pods. Such a pod has no traffic that its policies could deny, and is no peer. Such a namespace is not known.
    Unread(Kind, Key, String),
    /// All objects of this kind were sent, and there are no others. The cluster may lack the kind.
    Listed(Kind, Names),
    /// The watch of this kind works, or why it does not. The messages before still count.
    State(Kind, Result<(), String>),
}

pub fn channel() -> (mpsc::Sender<Told>, mpsc::Receiver<Told>) {
    mpsc::channel(QUEUE)
}

/// The names of a list, as hashes of eight bytes. Their key is random: no user can choose two names with one hash.
#[derive(Clone, Default)]
pub struct Names {
    key: RandomState,
    hashes: HashSet<u64>,
}

impl Names {
    pub fn insert(&mut self, namespace: &str, name: &str) {
        self.hashes.insert(self.key.hash_one((namespace, name)));
    }

    pub fn remove(&mut self, namespace: &str, name: &str) {
        self.hashes.remove(&self.key.hash_one((namespace, name)));
    }

    pub fn has(&self, namespace: &str, name: &str) -> bool {
        self.hashes.contains(&self.key.hash_one((namespace, name)))
    }

    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} names", self.len())
    }
}

/// Which kinds were listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed([bool; Kind::ALL.len()]);

impl Listed {
    /// Tells the compiler a message.
    pub fn apply(&mut self, told: Told, compiler: &mut Compiler) {
        match told {
            Told::Policy(policy) => compiler.set_policy(policy),
            Told::ClusterPolicy(policy) => compiler.set_cluster_policy(policy),
            Told::Namespace(namespace) => compiler.set_namespace(&namespace),
            Told::Pod(pod) => compiler.set_pod(&pod),
            Told::Gone(kind, Key { namespace, name }) => match kind {
                Kind::Policies => compiler.remove_policy(&namespace, &name),
                Kind::ClusterPolicies => compiler.remove_cluster_policy(&name),
                Kind::Namespaces => compiler.remove_namespace(&name),
                Kind::Pods => compiler.remove_pod(&namespace, &name),
            },
            Told::Unread(kind, Key { namespace, name }, why) => match kind {
                Kind::Policies => compiler.set_policy(NetworkPolicy::unread(&namespace, &name, why)),
                Kind::ClusterPolicies => {
                    compiler.set_cluster_policy(ClusterNetworkPolicy::unread(&name, &why));
                }
                Kind::Namespaces => compiler.remove_namespace(&name),
                Kind::Pods => compiler.close_pod(&namespace, &name),
            },
            Told::Listed(kind, names) => {
                match kind {
                    Kind::Policies => compiler.retain_policies(|namespace, name| names.has(namespace, name)),
                    Kind::ClusterPolicies => compiler.retain_cluster_policies(|name| names.has(name, name)),
                    Kind::Namespaces => compiler.retain_namespaces(|name| names.has(name, name)),
                    Kind::Pods => compiler.retain_pods(|namespace, name| names.has(namespace, name)),
                }
                self.0[kind as usize] = true;
            }
            Told::State(..) => {}
        }
    }

    /// Whether all kinds were listed.
    pub fn is_complete(self) -> bool {
        self.0.iter().all(|is_listed| *is_listed)
    }
}
