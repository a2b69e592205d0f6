//! CHECK: compares the link with `prevResult` and the configuration.

use cni_common::plugin::AddRequest;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::{Link, LinkId};
use ferrule_kit::check::{self, ensure};
use ferrule_kit::socket;

use super::{ContainerLink, Parent};

/// Checks kind, MAC address, state, addresses and routes, then mode, parent and MTU. Returns the link.
pub fn check(call: &AddRequest<'_>, wanted: &ContainerLink) -> Result<Link, CniError> {
    let (link, _) = check::container(call, Some(wanted.kind), &wanted.conf, true)?;
    let (name, kind) = (&link.name, wanted.kind);
    let (is, must) = (link.data.to_string(), wanted.data.completed_by(link.data).to_string());
    ensure(is == must, || format!("{kind} {name:?} has {is}, the configuration says {must}"))?;
    mtu(call, wanted, &link)?;
    wanted.parent.as_ref().map_or(Ok(()), |parent| check_parent(call, parent, &link))?;
    Ok(link)
}

/// Compares a configured MTU, unless `prevResult` has another one: then a chained plugin has changed it. Results before
/// 1.1.0 have none.
fn mtu(call: &AddRequest<'_>, wanted: &ContainerLink, link: &Link) -> Result<(), CniError> {
    let mut interfaces = check::prev_result(call)?.container_interfaces();
    let reported = interfaces.find(|interface| interface.name == call.ifname).map_or(0, |found| found.mtu);
    let configured = wanted.parent.as_ref().map_or(i64::from(wanted.conf.mtu), |parent| parent.mtu);
    let must = if reported == 0 { configured } else { i64::from(reported) };
    ensure(configured == 0 || must == i64::from(link.mtu), || {
        format!("interface {:?} of the container has MTU {}, not {must}", link.name, link.mtu)
    })
}

/// The link of the default route is not looked up again: it may be another one now.
fn check_parent(call: &AddRequest<'_>, parent: &Parent, link: &Link) -> Result<(), CniError> {
    let is_in_container = link.peer_netns.is_none();
    ensure(is_in_container == parent.in_container, || {
        format!("the master of {:?} is not in {}", link.name, parent.place())
    })?;
    if parent.name.is_empty() {
        return Ok(());
    }
    let mut socket =
        if parent.in_container { socket::route_in(call.sandbox.netns()?)? } else { socket::route()? };
    let found = parent.find_made(&mut socket)?;
    if link.peer == Some(found.index) {
        return Ok(());
    }
    let actual = socket.link(LinkId::Index(link.peer.unwrap_or_default()));
    let actual = actual.context(|| "look up the master")?.map_or_else(String::new, |actual| actual.name);
    Err(CniError::internal(format!("the master of {:?} is {actual:?}, not {:?}", link.name, found.name)))
}
