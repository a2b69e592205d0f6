//! The proof that pods can talk: a health endpoint in a pod's place asks the gateway, a forwarded address and the endpoints of
//! the other nodes.
//!
//! - `endpoint` makes and removes the endpoint, in a process of its own, which `attach` starts.
//! - `schedule` decides what is asked when. Pure.
//! - `echo` has the sockets.
//! - `denied` asks whether the table of the policies judges the packets of pods.
//! - `input` is what the daemon knows, and [`run`] joins all of them.

mod attach;
mod denied;
mod echo;
mod endpoint;
mod input;
mod judge;
mod run;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use ferrule_kernel::ip::IpFamily;
use ferrule_node_policy::ruleset::Entry;

pub use attach::{cleanup, has_plugin};
pub use endpoint::{Endpoint, NETNS, Place, Wanted, links, serve};
pub use input::Input;
pub use run::run;
pub use schedule::Target;

/// What the health endpoint has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proofs {
    /// The endpoint, if there is one.
    pub endpoint: Option<Endpoint>,
    /// Whether packets leave and reach a pod of this node, for each family of its podCIDRs. One that was not asked yet has no entry.
    pub local: BTreeMap<IpFamily, Proof>,
    /// Whether the table of the policies judges the packets of pods, as `local`. Empty with `--policy off`.
    pub policies: BTreeMap<IpFamily, Proof>,
    /// Whether the endpoints of the other nodes answer, by the node's name and family.
    pub peers: BTreeMap<String, BTreeMap<IpFamily, Proof>>,
    /// The endpoints of the other nodes, as far as they are known.
    pub endpoints: BTreeMap<String, BTreeMap<IpFamily, Target>>,
}

/// One thing that is asked for again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing is known, and why: the endpoint is off or has no address, or the node was not asked yet.
    Unknown(String),
    /// It answered.
    Proved {
        /// The last answer.
        at: SystemTime,
    },
    /// Several requests in a row had no answer.
    Lost {
        /// The first request without an answer.
        since: SystemTime,
        /// What was asked, and what failed.
        why: String,
    },
}

impl Endpoint {
    /// Its addresses as those of pods in the maps of the policies.
    pub fn entries(&self) -> BTreeSet<Entry> {
        denied::entries(&self.places)
    }
}

impl Proofs {
    /// Nothing is known of this node yet.
    pub fn none() -> Proofs {
        Proofs {
            endpoint: None,
            local: BTreeMap::new(),
            policies: BTreeMap::new(),
            peers: BTreeMap::new(),
            endpoints: BTreeMap::new(),
        }
    }
}
