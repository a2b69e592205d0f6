//! The proof that pods can talk: a health endpoint in a pod's place asks the gateway, a forwarded address and the endpoints of
//! the other nodes.

use std::collections::BTreeMap;
use std::time::SystemTime;

use ferrule_kernel::ip::IpFamily;

/// What the health endpoint has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proofs {
    /// Whether packets leave and reach a pod of this node, for each family of its podCIDRs.
    pub local: BTreeMap<IpFamily, Proof>,
    /// Whether the endpoints of the other nodes answer, by the node's name and family.
    pub peers: BTreeMap<String, BTreeMap<IpFamily, Proof>>,
}

/// One thing that is asked for again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing is known, and why: the endpoint is off, has no address, or was not asked yet.
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

impl Proofs {
    /// Nothing is known of this node yet.
    pub fn none() -> Proofs {
        Proofs { local: BTreeMap::new(), peers: BTreeMap::new() }
    }
}
