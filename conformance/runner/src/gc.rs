//! GC: DEL for stale cached attachments, then the plugins' GC.

use super::version::WITH_GC;
use super::{Error, Exec, Extra, Network, Runtime, plugin_input};

/// An attachment that is still in use, as the GC configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidAttachment {
    /// The container ID.
    pub container_id: String,
    /// The interface name in the container.
    pub ifname: String,
}

impl ValidAttachment {
    /// An attachment of this container ID and interface name.
    pub fn new(container_id: impl Into<String>, ifname: impl Into<String>) -> ValidAttachment {
        ValidAttachment { container_id: container_id.into(), ifname: ifname.into() }
    }
}

impl Runtime {
    /// Calls DEL for every cached attachment that is not in `valid`, then, from 1.1.0 on, GC on each plugin.
    /// If `valid` is `None`, it deletes all cached attachments and sends no list to the plugins. It goes on
    /// after errors and returns all of them.
    pub fn gc(&self, network: &Network, valid: Option<&[ValidAttachment]>) -> Result<(), Error> {
        if network.disable_gc {
            return Ok(());
        }
        let mut errors = Vec::new();
        match self.cache.attachments(&network.name) {
            Ok(cached) => {
                let is_valid = |id: &str, ifname: &str| {
                    valid.unwrap_or_default().iter().any(|v| v.container_id == id && v.ifname == ifname)
                };
                let stale = cached.into_iter().map(|cached| cached.attachment);
                for attachment in stale.filter(|a| !is_valid(&a.container_id, &a.ifname)) {
                    errors.extend(self.del(network, &attachment).err());
                }
            }
            Err(error) => errors.push(error.into()),
        }
        if network.version() >= WITH_GC {
            for plugin in &network.plugins {
                let input = plugin_input(network, plugin, Extra::Gc(valid));
                let call = |exec: Exec| exec.stdin(input);
                errors.extend(self.call(plugin, "GC", call).err());
            }
        }
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Many(errors)),
        }
    }
}
