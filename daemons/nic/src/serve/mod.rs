//! The kubelet's side: the services of one resource, and their registration for as long as the daemon runs.

mod folder;
mod keep;
mod owners;
mod server;
mod service;

use std::error::Error;
use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};

pub use folder::watch_folder;
pub use keep::keep_registered;
pub use owners::{Owners, name_pods, owners};
pub(crate) use server::Server;

use crate::config::Resource;
use crate::plan::Offer;

/// One resource, and what its services need.
#[derive(Debug)]
pub struct Served {
    /// The resource.
    pub resource: Resource,
    /// Its devices.
    pub offers: watch::Receiver<Vec<Offer>>,
    /// The kubelet's folder of device plugins, for its socket.
    pub folder: PathBuf,
    /// Hears of each Allocate.
    pub allocated: watch::Sender<u64>,
}

/// Connects to a socket of the kubelet. The error is the last cause: those above it only repeat it.
async fn connect(socket: &Path) -> Result<Channel, String> {
    fn cause(error: &dyn Error) -> String {
        error.source().map_or_else(|| error.to_string(), cause)
    }
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    endpoint.map_err(|error| cause(&error))?.connect().await.map_err(|error| cause(&error))
}
