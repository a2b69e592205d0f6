//! Connections from the host's own 127.0.0.0/8: the kernel sends them to a pod only over a link with `route_localnet`.

use std::net::IpAddr;

use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::netlink::{LinkId, Socket};
use ferrule_kernel::sysctl;

/// What carries pods, where no plugin before this one says which link does.
const POD_LINKS: [&str; 2] = ["veth", "bridge"];

fn setting(link: &str) -> String {
    format!("net/ipv4/conf/{link}/route_localnet")
}

/// The host's link that leads to the pod and to nothing but pods: one without a router, that the result names as the
/// host's or that is of a kind that carries pods. On any other, such as the one to the world, the switch would let the
/// world in.
///
/// # Errors
/// Code 999 if the kernel cannot be asked.
pub fn pod_link(result: &AddResult, pod: IpAddr) -> Result<Option<String>, CniError> {
    let mut socket = Socket::route().context(|| "open a netlink socket")?;
    let way = socket.route_to(pod).context(|| format!("look up the way to {pod}"))?;
    let Some(index) = way.filter(|way| !way.local && !way.routed && way.prefix > 0).and_then(|way| way.oif)
    else {
        return Ok(None);
    };
    let link = socket.link(LinkId::Index(index)).context(|| format!("look up link {index}"))?;
    let named = |name: &str| {
        result.interfaces.iter().any(|interface| interface.sandbox.is_empty() && interface.name == name)
    };
    Ok(link.filter(|link| named(&link.name) || POD_LINKS.contains(&link.kind.as_str())).map(|link| link.name))
}

/// Lets connections from 127.0.0.0/8 through to the pod.
///
/// # Errors
/// Code 999 with the setting.
pub fn open(result: &AddResult, pod: IpAddr) -> Result<(), CniError> {
    match pod_link(result, pod)? {
        Some(link) => sysctl::ensure(&setting(&link), "1").context(|| "unable to enable route_localnet"),
        None => Ok(()),
    }
}

/// Whether they still get through.
///
/// # Errors
/// Code 999 if not.
pub fn check(result: &AddResult, pod: IpAddr) -> Result<(), CniError> {
    let Some(link) = pod_link(result, pod)? else { return Ok(()) };
    let setting = setting(&link);
    match sysctl::read(&setting).context(|| format!("read {setting}"))?.as_str() {
        "1" => Ok(()),
        value => {
            Err(CniError::internal(format!("{setting} is {value}: 127.0.0.1 does not reach {pod} any more")))
        }
    }
}
