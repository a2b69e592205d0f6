//! One of the plugin folders, with the names and addresses that its plugins use on the node.

use std::path::PathBuf;

/// A plugin folder and its names on the node. The names of all sides have the same length, so that all get
/// configurations of the same size.
pub(crate) struct Side {
    /// A name of four letters.
    pub(crate) name: &'static str,
    /// From 1 to 3.
    pub(crate) number: u8,
    /// Whether the plugins are Ferrule's and not the reference's.
    pub(crate) is_ferrule: bool,
    /// The folder of the plugins.
    pub(crate) dir: PathBuf,
}

impl Side {
    pub(crate) fn new(name: &'static str, number: u8, is_ferrule: bool, dir: PathBuf) -> Side {
        Side { name, number, is_ferrule, dir }
    }

    /// The name of the network and of the pod; also the container ID.
    pub(crate) fn network(&self) -> String {
        format!("bench-{}", self.name)
    }

    pub(crate) fn bridge(&self) -> String {
        format!("cni-{}", self.name)
    }

    /// A link of the node for plugins that need one: a parent, or a device that moves into the pod.
    pub(crate) fn device(&self) -> String {
        format!("nic-{}", self.name)
    }

    /// The first two numbers of every address.
    pub(crate) fn net16(&self) -> String {
        format!("10.{}", self.number)
    }

    /// host-local's `dataDir`.
    pub(crate) fn data_dir(&self) -> String {
        format!("/var/lib/cni/{}", self.name)
    }

    pub(crate) fn host_port(&self) -> u16 {
        8080 + u16::from(self.number)
    }
}
