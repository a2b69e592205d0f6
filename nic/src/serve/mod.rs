//! The kubelet's side: the services of one resource, and their registration for as long as the daemon runs.

mod folder;
mod keep;
mod owners;
mod server;
mod service;

use std::path::PathBuf;

use tokio::sync::watch;

pub use folder::watch_folder;
pub use keep::keep_registered;
pub use owners::{Owners, name_pods, owners};

use crate::config::Resource;
use crate::plan::Offer;

/// How a resource reaches the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The plugin calls Register on `kubelet.sock` in the device plugin folder.
    Kubelet,
    /// The kubelet finds the socket in `plugins_registry`.
    Watcher,
}

/// One resource, and what its services need.
#[derive(Debug)]
pub struct Served {
    /// The resource.
    pub resource: Resource,
    /// Its devices.
    pub offers: watch::Receiver<Vec<Offer>>,
    /// The folder of its socket.
    pub folder: PathBuf,
    /// How it registers.
    pub way: Way,
    /// Hears of each Allocate.
    pub allocated: watch::Sender<u64>,
}
