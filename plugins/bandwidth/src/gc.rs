//! GC: the IFBs of attachments that are no more. They alone outlive a container whose DEL was lost; all else hangs on a link
//! that goes with the namespace.

use std::thread;
use std::time::Duration;

use cni_common::netlink::link::{self, Link, LinkId};
use cni_common::netlink::{Socket, ifb};
use cni_common::plugin::Collect;
use cni_common::spec::{CniError, Step};

use crate::del::send;
use crate::owner::{self, Alias, is_ifb_name};
use crate::state;
use cni_common::plugin::Attachment;

/// How long an IFB without alias must have been of no use before it counts as left over: an ADD of the reference has it like
/// that for a moment, before it makes the filter.
const MOMENT: Duration = Duration::from_millis(100);

/// Removes them.
///
/// # Errors
/// What could not be removed, after everything else was.
pub fn gc(call: &Collect<'_>) -> Result<(), CniError> {
    let network = call.config.name();
    let owners: Vec<Attachment<'_>> =
        call.valid.iter().map(|valid| Attachment::valid(network, valid)).collect();
    let mut socket = Socket::route().step(|| "open a netlink socket")?;
    let links = socket.links(Some(ifb::KIND)).step(|| "list the ifb devices")?;
    let ours = links.into_iter().filter(|link| is_ifb_name(&link.name));
    let (mut doomed, unsigned): (Vec<Link>, Vec<Link>) =
        ours.filter(|link| !is_alive(link, network, &owners)).partition(|link| !link.alias.is_empty());
    doomed.extend(unused(&mut socket, unsigned)?);
    let requests = doomed
        .iter()
        .map(|link| (format!("remove {:?}", link.name), link::delete(LinkId::Index(link.index))));
    send(&mut socket, requests.collect())
}

/// Whether an IFB belongs to an attachment that is alive, or is none of this network's business.
fn is_alive(link: &Link, network: &str, owners: &[Attachment<'_>]) -> bool {
    match Alias::parse(&link.alias) {
        Some(alias) => !alias.is_on(network) || owners.iter().any(|owner| alias.is_of(owner)),
        None => !link.alias.is_empty() || owners.iter().any(|owner| owner::shared_name(owner) == link.name),
    }
}

/// Those of the IFBs that no link leads to. Their names are hashes, so the kernel has to tell whether they are of use to any
/// network.
fn unused(socket: &mut Socket, mut links: Vec<Link>) -> Result<Vec<Link>, CniError> {
    for look in 0..2 {
        if links.is_empty() {
            break;
        }
        if look > 0 {
            thread::sleep(MOMENT);
        }
        let used = used(socket)?;
        links.retain(|link| !used.contains(&link.index));
    }
    Ok(links)
}

/// The indices of all links that a veth's filters lead to.
fn used(socket: &mut Socket) -> Result<Vec<u32>, CniError> {
    let mut used = Vec::new();
    for veth in socket.links(Some("veth")).step(|| "list the veth devices")? {
        let hook = state::veth(socket, veth.index)?.and_then(|host| host.hook);
        used.extend(hook.iter().flat_map(|hook| &hook.filters).filter_map(|filter| filter.redirect));
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Hook;

    #[test]
    fn only_this_networks_lost_ones_are_gone_for() {
        let owner = |network, container_id| Attachment { network, container_id, ifname: "eth0" };
        let link = |name: String, alias: String| Link { name, alias, ..Link::default() };
        let signed = |owner: Attachment<'_>| {
            link(owner::shared_name(&owner), owner::alias(&owner, 3, Hook::Made).to_string())
        };
        let valid = [owner("pods", "one")];
        assert!(is_alive(&signed(owner("pods", "one")), "pods", &valid));
        assert!(!is_alive(&signed(owner("pods", "two")), "pods", &valid));
        assert!(is_alive(&signed(owner("other", "two")), "pods", &valid));
        assert!(is_alive(&link(owner::shared_name(&valid[0]), String::new()), "pods", &valid));
        assert!(!is_alive(&link(owner::shared_name(&owner("pods", "two")), String::new()), "pods", &valid));
        assert!(is_alive(&link("bwp000000000000".to_owned(), "somebody's".to_owned()), "pods", &valid));
    }
}
