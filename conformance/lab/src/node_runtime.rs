//! A runtime that works on a node.

use serde_json::Value;

use super::{Node, Place as _};
use cni_runner::{Attachment, Error, Network, Runtime, ValidAttachment};

/// The operations of [`Runtime`], with plugins and cache on a node.
#[derive(Debug, Clone)]
pub struct NodeRuntime<'n> {
    node: &'n Node,
    /// The runtime; change it for another cache, more variables or another time limit.
    pub runtime: Runtime,
}

impl<'n> NodeRuntime<'n> {
    pub(super) fn new(node: &'n Node, runtime: Runtime) -> NodeRuntime<'n> {
        NodeRuntime { node, runtime }
    }

    /// See [`Runtime::add`].
    pub fn add(&self, network: &Network, attachment: &Attachment) -> Result<Value, Error> {
        self.node.run(|| self.runtime.add(network, attachment))?
    }

    /// See [`Runtime::check`].
    pub fn check(&self, network: &Network, attachment: &Attachment) -> Result<(), Error> {
        self.node.run(|| self.runtime.check(network, attachment))?
    }

    /// See [`Runtime::del`].
    pub fn del(&self, network: &Network, attachment: &Attachment) -> Result<(), Error> {
        self.node.run(|| self.runtime.del(network, attachment))?
    }

    /// See [`Runtime::gc`].
    pub fn gc(&self, network: &Network, valid: Option<&[ValidAttachment]>) -> Result<(), Error> {
        self.node.run(|| self.runtime.gc(network, valid))?
    }

    /// See [`Runtime::status`].
    pub fn status(&self, network: &Network) -> Result<(), Error> {
        self.node.run(|| self.runtime.status(network))?
    }

    /// See [`Runtime::version`].
    pub fn version(&self, plugin: &str) -> Result<Value, Error> {
        self.node.run(|| self.runtime.version(plugin))?
    }
}
