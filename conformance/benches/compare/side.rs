//! One of the two folders, and names of its own for all that its plugins make.

use std::path::PathBuf;

/// A folder of plugins with its part of the node. The names of the two sides differ in as little as can be, so that
/// both get the same bytes on standard input but for those.
pub(crate) struct Side {
    /// A word of four letters.
    pub(crate) name: &'static str,
    /// 1 or 2.
    pub(crate) number: u8,
    /// Where the plugins are.
    pub(crate) dir: PathBuf,
}

impl Side {
    pub(crate) fn new(name: &'static str, number: u8, dir: PathBuf) -> Side {
        Side { name, number, dir }
    }

    /// The network's name, and the pod's, which is its container ID too.
    pub(crate) fn network(&self) -> String {
        format!("bench-{}", self.name)
    }

    pub(crate) fn bridge(&self) -> String {
        format!("cni-{}", self.name)
    }

    /// The first two parts of every address.
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
