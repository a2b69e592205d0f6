//! `status.json`, and the lock that says whether a daemon runs.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ferrule_kernel::file;
use ferrule_kit::cluster::{LOCK_FILE, STATUS_FILE};
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use super::health::Health;
use super::policy::Policy;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The name of this node.
    pub node: String,
    /// How packets get to the pods of other nodes, as `--mode`.
    pub mode: String,
    /// The daemon's word: `ready`, `degraded`, `waiting` or `not ready`.
    #[serde(default)]
    pub word: String,
    /// Why it is not ready; the worst reasons first.
    #[serde(default)]
    pub reasons: Vec<Reason>,
    pub api: Api,
    pub conflist: Conflist,
    /// The other nodes, sorted by name.
    pub nodes: Vec<Node>,
    /// The health endpoint and its proofs.
    #[serde(default)]
    pub health: Option<Health>,
    /// The NetworkPolicies; `None` with `--policy off`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<Policy>,
}

/// The connection to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Api {
    /// Since when `connected` is as it is, RFC 3339.
    pub since: String,
    /// Whether the nodes are followed.
    pub connected: bool,
    /// Why it is not connected.
    pub error: Option<String>,
    /// What the ways are made from.
    #[serde(default)]
    pub source: Source,
}

/// Where the daemon knows the nodes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// It knows none yet.
    #[default]
    Nothing,
    /// The file with the plan of before, as of this time, RFC 3339.
    File(String),
    /// The API server's answer.
    Server,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conflist {
    pub path: PathBuf,
    /// Whether the daemon's conflist is in place.
    pub written: bool,
    /// This node's podCIDRs.
    pub networks: Vec<String>,
    /// The podCIDRs that it had before, while pods or addresses of that time are there.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub former: Vec<String>,
    pub mtu: u32,
    /// host-local's folder of this network: a file for each address in use.
    pub store: PathBuf,
}

/// A reason for a word that is not `ready`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The key of its row in README.md.
    pub code: String,
    /// A node, a part or a network; may be empty.
    pub about: String,
    pub text: String,
    /// What to do.
    pub remedy: String,
    /// What the node is because of it, as [`Status::word`].
    pub word: String,
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    /// Its InternalIPs that count.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addresses: Vec<IpAddr>,
    /// Its podCIDRs, also those that are refused.
    pub networks: Vec<Network>,
    /// Since when its networks are as they are, RFC 3339.
    pub since: String,
    /// How it stands: `proved`, `unknown`, `new`, `not_ready`, `restarting`, `waits` or `lost`.
    #[serde(default)]
    pub standing: String,
}

/// A podCIDR of another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The podCIDR, as the Node object has it.
    pub network: String,
    /// How it is reached.
    pub way: Way,
    /// For people: the next hop, or the reason.
    pub detail: String,
    /// The address for the echo request that tests the way.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub probe: Option<IpAddr>,
}

/// How a podCIDR is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// By a route to the node.
    Route,
    /// By VXLAN.
    Vxlan,
    /// By WireGuard.
    Wireguard,
    /// Not yet.
    Waits,
    /// Never.
    Refused,
}

impl Status {
    /// This node's podCIDRs.
    pub fn own(&self) -> Vec<IpNetwork> {
        self.conflist.networks.iter().filter_map(|text| text.parse().ok()).collect()
    }
}

/// The status file until it is complete.
pub const PENDING: &str = "status.new";

fn path(state: &Path) -> PathBuf {
    state.join(STATUS_FILE)
}

/// Reads the file; `None` if it does not exist.
///
/// # Errors
/// It cannot be read or parsed.
pub fn read(state: &Path) -> io::Result<Option<Status>> {
    let path = path(state);
    let said = |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", path.display()));
    match file::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(said(&error)),
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| said(&error)),
    }
}

/// Writes the file if its content differs.
pub fn write(state: &Path, status: &Status) -> io::Result<()> {
    let (path, pending, bytes) = (path(state), state.join(PENDING), serde_json::to_vec(status)?);
    match file::read(&path).is_ok_and(|old| old == bytes) {
        true => Ok(()),
        false => file::replace(&path, &pending, 0o644, &bytes),
    }
}

/// Whether a daemon runs.
pub fn runs(state: &Path) -> bool {
    file::is_locked(&state.join(LOCK_FILE))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), None);
        let network = |way| Network { network: "10.0.0.0/24".into(), way, detail: "x".into(), probe: None };
        let node: Node = serde_json::from_str(r#"{"name":"n","networks":[],"since":""}"#).unwrap();
        let nodes = vec![Node { networks: vec![network(Way::Vxlan)], ..node }];
        let status = Status { node: "n1".into(), nodes, ..Status::default() };
        write(folder.path(), &status).unwrap();
        assert_eq!(read(folder.path()).unwrap(), Some(status));
        fs::write(folder.path().join("status.json"), "[").unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains("status.json: "));
    }
}
