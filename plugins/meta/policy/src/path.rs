//! Whether the node's rules see the packets of a pod.

use cni_common::plugin::Attachment;
use cni_common::spec::{AddResult, CniError, Context};
use ferrule_kernel::netlink::{LinkId, link};
use ferrule_kernel::sysctl;
use ferrule_kit::socket;

use crate::plan::own_links;

/// With these, packets between two ports of a bridge pass the hook `forward` of the families of IP.
const BRIDGED: [&str; 2] = ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"];

/// Refuses a pod whose packets do not pass the hooks `forward` and `input` of the node. Asks the kernel only if the result names another link of
/// the node than the pod's own.
///
/// # Errors
/// Code 7 with the reason.
pub fn check(attachment: &Attachment<'_>, result: &AddResult) -> Result<(), CniError> {
    let own: Vec<String> = own_links(attachment, result).collect();
    let links = result.host_interfaces(attachment.ifname).map(|interface| interface.name.as_str());
    let others: Vec<&str> =
        links.filter(|name| !name.is_empty() && !own.iter().any(|own| own == name)).collect();
    if others.is_empty() {
        let is_outside = own.is_empty() && result.container_interfaces().next().is_some();
        return if is_outside { Err(outside()) } else { Ok(()) };
    }
    let mut socket = socket::route()?;
    let answers = socket.requests(others.iter().map(|name| link::get(LinkId::Name(name))).collect());
    for (answer, name) in answers.into_iter().zip(others) {
        let found = link::read(answer).context(|| format!("find link {name:?}"))?;
        let is_bridge = found.is_some_and(|link| link.kind == "bridge");
        if is_bridge && !BRIDGED.iter().all(|name| sysctl::read(name).is_ok_and(|value| value == "1")) {
            return Err(bridged(name));
        }
    }
    Ok(())
}

fn outside() -> CniError {
    CniError::invalid_config(
        "network policies cannot isolate the pod: its interface does not lead to this node, whose rules never see its packets",
    )
    .with_remedy("use ptp, or leave policy out of this network")
}

fn bridged(name: &str) -> CniError {
    CniError::invalid_config(format!(
        "network policies cannot isolate the pod: bridge {name:?} forwards packets between its pods past the rules of the node"
    ))
    .with_remedy("use ptp, or modprobe br_netfilter and set net.bridge.bridge-nf-call-iptables and -ip6tables to 1")
}
