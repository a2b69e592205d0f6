//! What `ferrule` and `ferrule-node` say to each other about policies over the daemon's Unix socket: one question and one answer for each
//! connection, both a JSON object in one line.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ferrule_kernel::unix_stream::exchange;
use serde::{Deserialize, Serialize};

use crate::Direction;
use crate::denials::{self, Denial};

/// The version of the protocol.
pub const PROTOCOL: u32 = 1;
/// The longest question in bytes.
pub const LONGEST: u64 = 1 << 20;
/// The longest answer in bytes.
pub const LONGEST_ANSWER: u64 = 1 << 26;
/// The socket in the daemon's folder.
pub const SOCKET_FILE: &str = "policy.sock";
/// The most questions at once.
pub const MOST: usize = 256;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// [`PROTOCOL`].
    pub ferrule_policy: u32,
    /// The question.
    pub ask: Ask,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ask {
    /// Why flows pass or not: at most [`MOST`].
    Why(Vec<Question>),
    /// Who denies flows that were denied, and the names of both ends: at most [`MOST`].
    Denied(Vec<denials::Flow>),
    /// The addresses of a pod.
    Pod(String),
    /// The policies of this node's pods.
    Pods,
}

/// The first packet of a flow: after the translation of its destination, before that of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// From where.
    pub from: IpAddr,
    /// To where.
    pub to: IpAddr,
    /// The protocol's number.
    pub protocol: u8,
    /// The destination port.
    pub port: u16,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// [`PROTOCOL`].
    pub ferrule_policy: u32,
    /// Why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// What restricts the answer: objects that are not followed now, for example.
    #[serde(default)]
    pub notes: Vec<String>,
    /// To [`Ask::Why`]: one for each question.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flows: Vec<Flow>,
    /// To [`Ask::Denied`]: one for each flow.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub denials: Vec<Denial>,
    /// To [`Ask::Pod`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<Pod>,
    /// To [`Ask::Pods`].
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub pods: Vec<Applied>,
}

/// A pod that the daemon knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// It runs on this node.
    pub is_here: bool,
    /// Policies are for it, and it can be a peer: it has not ended, and is not in the node's network.
    pub has_part: bool,
}

/// What the objects of the API say of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// The end of its source.
    pub egress: Side,
    /// The end of its destination.
    pub ingress: Side,
}

/// One end of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Side {
    /// The pods that have the address, as NAMESPACE/NAME: one, but for moments. Also one of another node.
    pub pods: Vec<String>,
    /// What decides.
    pub reason: Reason,
    /// The policies that decide, with their entries.
    pub by: Vec<By>,
    /// The rules of ClusterNetworkPolicies that have passed the packet on to the next tier.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub passed: Vec<By>,
    /// The first rules behind the reason that would have decided otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub unreached: Vec<By>,
    /// The pod's mode is dry: what the reason denies passes, and is counted.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_dry: bool,
}

impl Side {
    /// Whether it passes this end; `None` if this node does not decide.
    pub fn allows(&self) -> Option<bool> {
        if self.is_dry { Some(true) } else { self.reason.allows() }
    }
}

/// What decides at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// A pod always reaches itself.
    Itself,
    /// No pod of this node has the address: another node, or nobody, decides.
    NotHere,
    /// No policy isolates the pod.
    NoPolicy,
    /// A NetworkPolicy allows it.
    Allowed,
    /// NetworkPolicies isolate the pod, and none allows it.
    NothingAllows,
    /// A ClusterNetworkPolicy accepts it.
    Accepted,
    /// A ClusterNetworkPolicy denies it.
    Refused,
    /// Two pods say that they have the address.
    TwoPods,
    /// The pod's object cannot be read.
    Closed,
}

impl Reason {
    /// Whether it passes this end; `None` if this node does not decide.
    pub fn allows(self) -> Option<bool> {
        match self {
            Reason::NotHere => None,
            Reason::Itself | Reason::NoPolicy | Reason::Allowed | Reason::Accepted => Some(true),
            Reason::NothingAllows | Reason::Refused | Reason::TwoPods | Reason::Closed => Some(false),
        }
    }
}

/// A policy, and what of it matches or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct By {
    /// Such as `NetworkPolicy shop/web`.
    pub policy: String,
    /// Such as `ingress[0].from[1]`; `None`: the policy as a whole.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub entry: Option<String>,
    /// What of the entry does not match, and why; empty if it matches.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub misses: String,
}

/// The policies of a pod of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// NAMESPACE/NAME.
    pub pod: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The policies, for each direction in which there are some.
    pub policies: Vec<AppliedPolicy>,
    /// The pod's mode is dry: denied packets pass, and are counted.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_dry: bool,
}

/// A policy that is for a pod in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedPolicy {
    /// Such as `NetworkPolicy shop/web`.
    pub policy: String,
    /// The direction.
    pub direction: Direction,
    /// What its rules do, such as `allows`, or `Admin 20: Accept, Deny` with the tier and the priority of a ClusterNetworkPolicy.
    #[serde(default)]
    pub does: String,
    /// Whether a rule is for everybody.
    pub everybody: bool,
    /// Blocks of addresses, as FIRST-LAST: the first ones.
    pub blocks: Vec<String>,
    /// Pods among the peers, as NAMESPACE/NAME: the first ones.
    pub peers: Vec<String>,
    /// How many addresses of pods are peers.
    pub addresses: usize,
}

/// Asks the daemon.
///
/// # Errors
/// It does not answer in time, or with something else.
pub fn ask(folder: &Path, ask: Ask, limit: Duration) -> io::Result<Answer> {
    let request = serde_json::to_vec(&Request { ferrule_policy: PROTOCOL, ask })?;
    let answer = exchange(&folder.join(SOCKET_FILE), &request, LONGEST_ANSWER, limit)?;
    let answer: Answer = serde_json::from_slice(&answer)?;
    match answer.ferrule_policy {
        PROTOCOL => Ok(answer),
        other => Err(io::Error::other(format!(
            "ferrule-node speaks version {other} of the protocol, this program version {PROTOCOL}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_way() {
        let (from, to) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let ask = Ask::Why(vec![Question { from, to, protocol: 6, port: 80 }]);
        let text = r#"{"ferrulePolicy":1,"ask":{"why":[{"from":"10.0.0.1","to":"10.0.0.2","protocol":6,"port":80}]}}"#;
        let request = Request { ferrule_policy: PROTOCOL, ask };
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        let pods: Request = serde_json::from_str(r#"{"ferrulePolicy":1,"ask":"pods"}"#).unwrap();
        assert_eq!(pods.ask, Ask::Pods);
        assert!(serde_json::from_str::<Request>(r#"{"ferrulePolicy":1,"ask":"all"}"#).is_err());
    }
}
