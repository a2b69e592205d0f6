//! The bridge behind which the container is, and the bridge's port.

use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::netlink::bridge::PortSettings;
use ferrule_kernel::netlink::link;
use ferrule_kernel::netlink::{Link, LinkId};
use ferrule_kit::socket;

use crate::config::Policy;

/// A bridge and its port that leads to the container.
pub struct Bridge {
    /// The name of the bridge.
    pub name: String,
    /// The ports among the links of the result.
    ports: Vec<Link>,
}

/// Finds the bridge: the first link on the host that the result names and that is a bridge. The reference takes the
/// first interface of the result, even if that is the container's or not a bridge; it then guards another link.
///
/// # Errors
/// Code 999 with the reference's text if there is no bridge.
pub fn bridge(result: &AddResult, ifname: &str, policy: Policy) -> Result<Bridge, CniError> {
    let missing = || {
        CniError::internal(format!(
            "interface needs to be set for ingress policy \"{policy}\", make sure to chain \"firewall\" plugin with \"bridge\""
        ))
    };
    if result.interfaces.first().is_some_and(|first| first.name.is_empty() && first.sandbox.is_empty()) {
        return Err(CniError::internal("got empty bridge name"));
    }
    let names: Vec<&str> = result.host_interfaces(ifname).map(|interface| interface.name.as_str()).collect();
    let mut socket = socket::route()?;
    let answers = socket.requests(names.iter().map(|name| link::get(LinkId::Name(name))).collect());
    let mut found = Vec::new();
    for (answer, name) in answers.into_iter().zip(&names) {
        found.extend(link::read(answer).context(|| format!("find link {name:?}"))?);
    }
    let bridge = found.iter().find(|link| link.kind == "bridge").ok_or_else(missing)?.clone();
    found.retain(|link| link.master == Some(bridge.index));
    Ok(Bridge { name: bridge.name, ports: found })
}

impl Bridge {
    /// Isolates the port: the bridge forwards no frame between isolated ports. Rules in the hook `forward` see such
    /// frames only with `bridge-nf-call-iptables`.
    ///
    /// # Errors
    /// Code 999 if the kernel refuses it.
    pub fn isolate_port(&self) -> Result<(), CniError> {
        let shared: Vec<&Link> = self.ports.iter().filter(|port| port.port.isolated != Some(true)).collect();
        if shared.is_empty() {
            return Ok(());
        }
        let mut socket = socket::route()?;
        let isolation = PortSettings { isolated: Some(true), hairpin: None };
        let answers = socket.requests(shared.iter().map(|port| isolation.request(port.index)).collect());
        for (answer, port) in answers.into_iter().zip(shared) {
            answer.context(|| format!("isolate port {:?} of bridge {:?}", port.name, self.name))?;
        }
        Ok(())
    }

    /// A port that is not isolated.
    pub fn shared_port(&self) -> Option<&str> {
        self.ports.iter().find(|port| port.port.isolated != Some(true)).map(|port| port.name.as_str())
    }
}
