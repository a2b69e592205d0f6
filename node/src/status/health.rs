//! The health endpoint in the status file.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::proof::Endpoint;

/// The health endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub addresses: Vec<IpAddr>,
    /// The node's ends of its link and of that of its other side.
    pub links: Vec<String>,
}

impl From<&Endpoint> for Health {
    fn from(endpoint: &Endpoint) -> Health {
        Health {
            addresses: endpoint.places.iter().map(|place| place.address).collect(),
            links: endpoint.links.to_vec(),
        }
    }
}
