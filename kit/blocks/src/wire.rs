//! What the plugin and the daemon say to each other over the Unix socket: one request and one answer for each connection, both a JSON
//! object in one line.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ledger::Network;

/// The version of the protocol.
pub const PROTOCOL: u32 = 1;
/// The longest line in bytes.
pub const LONGEST: u64 = 1 << 20;
/// The socket, if neither configuration nor option names another one.
pub const SOCKET: &str = "/run/ferrule/blocks.sock";
/// The folder of the ledgers, if neither configuration nor option names another one.
pub const FOLDER: &str = "/var/lib/ferrule/blocks";

/// What an ADD lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Need {
    /// An address of the range set with this index.
    Set(usize),
    /// This address.
    Address(IpAddr),
}

/// Addresses of a network that ADD was about to give, and the MAC addresses of the hosts that have them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// The network's name.
    pub network: String,
    /// The hosts.
    pub owners: BTreeMap<IpAddr, [u8; 6]>,
}

/// A request of the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// [`PROTOCOL`].
    pub ferrule_blocks: u32,
    /// The network that lacks something; `None`: the daemon only says whether it can claim blocks.
    #[serde(default)]
    pub network: Option<Network>,
    /// What it lacks.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// What the daemon is to report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<Foreign>,
}

/// An answer of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// [`PROTOCOL`].
    pub ferrule_blocks: u32,
    /// Why the ledger has not what the plugin needs; `None`: it has.
    #[serde(default)]
    pub failure: Option<Failure>,
}

/// An error of CNI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its code.
    pub code: u32,
    /// What has failed.
    pub msg: String,
}

impl Answer {
    /// The answer to a request.
    pub fn new(outcome: Result<(), Failure>) -> Answer {
        Answer { ferrule_blocks: PROTOCOL, failure: outcome.err() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;

    const TEXT: &str = r#"{"ferruleBlocks":1,"network":{"network":"net","domain":"lan","dataDir":"/stores","sets":[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.1","rangeEnd":"10.0.0.254","blockSize":32,"gateway":"10.0.0.1","exclude":["10.0.0.8/29"]}]]},"needs":[{"set":0},{"address":"10.0.0.9"}]}"#;

    #[test]
    fn a_request_survives_the_way() {
        let request: Request = serde_json::from_str(TEXT).unwrap();
        assert_eq!(serde_json::to_string(&request).unwrap(), TEXT);
        let network = request.network.unwrap();
        network.check().unwrap();
        let ledger = Ledger::new(network.clone());
        assert_eq!(Ledger::parse(&ledger.to_text()).unwrap(), ledger);
    }

    #[test]
    fn what_others_send_is_checked() {
        for (from, to) in [
            ("\"net\"", "\"../net\""),
            ("\"net\"", "\".net\""),
            ("\"lan\"", "\"LAN\""),
            ("/stores", "stores"),
            ("10.0.0.254", "10.0.1.254"),
            (":32", ":512"),
            (":32", ":31"),
            ("10.0.0.8/29", "10.0.0.9/29"),
            ("0.0/24", "0.0/33"),
        ] {
            let text = TEXT.replace(from, to);
            assert_ne!(text, TEXT);
            let request = serde_json::from_str::<Request>(&text).map_err(|error| error.to_string());
            assert!(request.and_then(|request| request.network.unwrap().check()).is_err(), "{text}");
        }
    }
}
