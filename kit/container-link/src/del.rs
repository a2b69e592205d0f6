//! DEL: the link, also if the container has renamed it, then IPAM.

use std::os::fd::AsFd as _;

use cni_common::netns::Netns;
use cni_common::plugin::{Attachment, DelRequest};
use cni_common::spec::{CniError, Context as _, Failures};
use ferrule_kernel::netlink::{Link, LinkId, Socket, addr, link, nsid};
use ferrule_kit::leftover::{self, Created};
use ferrule_kit::{ipam, netns, socket};
use nix::errno::Errno;

use super::{ContainerLink, ContainerPlugin};

/// Removes the link of this kind, and calls IPAM DEL. The configuration may be invalid: it is needed only if the
/// container has changed its links.
pub(crate) fn del<P: ContainerPlugin>(call: &DelRequest<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let wanted = || P::read(call.config, "").ok();
    let remove = |netns| remove(call, netns, P::KIND, &wanted);
    failures.keep(ipam::del_with_link(call, || call.netns.opened().map_or(Ok(()), remove)));
    failures.keep(P::release(&Attachment::from(call)));
    failures.into_result()
}

/// Removes the link by its name, and looks at the addresses that are left: usually with one datagram.
fn remove(
    call: &DelRequest<'_>,
    netns: &Netns,
    kind: &'static str,
    wanted: &dyn Fn() -> Option<ContainerLink>,
) -> Result<(), CniError> {
    let ifname = call.ifname;
    let mut container = socket::route_in(netns)?.with_whole_dumps();
    let (mac, former) =
        (leftover::former_mac(call), leftover::former_addresses(call.prev_result.as_ref(), ifname));
    let name = LinkId::Name(ifname);
    let [found, removed, listed] =
        container.request_each([link::get(name), link::delete(name), addr::list(0)]);
    let found = link::read(found).context(|| format!("look up {ifname:?} in the container"))?;
    let is_removed = match removed {
        // The kernel removes no links of some kinds, such as `lo`, which the container has given the name to.
        Err(error) if matches!(error.errno, Errno::ENODEV | Errno::EOPNOTSUPP) => false,
        removed => removed.map(|_| true).context(|| format!("remove {ifname:?} from the container"))?,
    };
    let is_in_container =
        || wanted().and_then(|wanted| wanted.parent).is_some_and(|parent| parent.in_container);
    let is_it = |link: &Link| {
        let has_parent_outside = link.peer.is_none() || link.peer_netns.is_some();
        link.kind == kind
            && mac.is_none_or(|mac| mac == link.mac)
            && (has_parent_outside || is_in_container())
    };
    let is_gone = is_removed && found.as_ref().is_some_and(is_it);
    let held = leftover::held(&former, listed)?;
    if held.is_empty() && (is_gone || mac.is_none()) {
        return Ok(());
    }
    leftover::remove(&mut container, &former, held, |container| {
        let wanted = wanted();
        let parent = wanted.as_ref().and_then(|wanted| parent(container, wanted));
        let data = wanted.map(|wanted| wanted.data).unwrap_or_default();
        Some(Created { kind, data, mac, parent, is_gone })
    })
}

/// See [`Created::parent`]. Only a configured name counts: the default route may have changed since ADD.
fn parent(container: &mut Socket, wanted: &ContainerLink) -> Option<(Option<u32>, Option<i32>)> {
    let Some(parent) = &wanted.parent else { return Some((None, None)) };
    if parent.name.is_empty() {
        return None;
    }
    if parent.in_container {
        return Some((Some(parent.find_made(container).ok()?.index), None));
    }
    let found = parent.find_made(&mut socket::route().ok()?).ok()?;
    let node = nsid::read(container.request(nsid::get(netns::own().ok()?.as_fd()))).ok()?;
    // Without an ID, no link of the container has a parent on the node.
    Some((Some(found.index), Some(node.unwrap_or(-1))))
}
