//! DEL: removes filter, ingress qdisc, root qdisc and IFB, in this order. The filter must go first: without
//! its IFB it drops all traffic, and the container may keep running after DEL.
//!
//! DEL ignores the configured limits and removes what exists. It finds the host's link through the
//! container's namespace, or through the index in the IFB's alias. The index counts only if that link has a
//! filter that redirects to the IFB.

use cni_common::netns::{ContainerNetns, Netns};
use cni_common::plugin::{Attachment, DelRequest};
use cni_common::spec::{CniError, Context, Failures};
use ferrule_kernel::netlink::link::{self, Link, LinkId};
use ferrule_kernel::netlink::qdisc::{self, INGRESS, ROOT};
use ferrule_kernel::netlink::{Message, Socket, deferred, filter, ifb};
use ferrule_kit::socket;
use ferrule_kit::steps::{Step, run_all};
use nix::errno::Errno;

use crate::owner::{self, Whose};
use crate::plan;
use crate::rates::Rates;
use crate::state::{self, Filters, Host, Ifbs};

/// Removes what ADD made, this plugin's or the reference's.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let owner = Attachment::from(call);
    let mut socket = socket::route()?;
    let (host, ifbs) = find(&mut socket, call.netns.opened(), &owner)?;
    let mut failures = Failures::default();
    let to_remove = to_remove(&mut socket, call.netns, &owner, host.as_ref(), &ifbs, &mut failures);
    failures.keep(remove(&mut socket, &owner, host.as_ref(), &to_remove));
    failures.into_result()
}

fn find(
    socket: &mut Socket,
    netns: Option<&Netns>,
    owner: &Attachment<'_>,
) -> Result<(Option<Host>, Ifbs), CniError> {
    // If the container's link does not exist or is not a veth, nothing on the host belongs to it.
    if let Some(netns) = netns
        && let Ok(container) = state::container(netns, owner.ifname)
        && let Ok((host, ifbs)) = state::read(socket, netns, &container, owner, Filters::Expected)
    {
        return Ok((Some(host), ifbs));
    }
    let ifbs = state::ifbs(socket, owner)?;
    let mut host = None;
    for link in [&ifbs.own, &ifbs.shared].into_iter().flatten() {
        if let (None, Whose::Own(alias)) = (&host, owner::whose(owner, link)) {
            // Another link may have got this index. Then it has no filter that redirects to the IFB.
            host = state::veth(socket, alias.veth)?.filter(|host| redirects_to(host, link.index));
        }
    }
    Ok((host, ifbs))
}

/// Whether a filter of the host's link redirects to this IFB.
pub fn redirects_to(host: &Host, ifb: u32) -> bool {
    host.ingress_qdisc.iter().flat_map(|qdisc| &qdisc.filters).any(|filter| filter.redirect == Some(ifb))
}

/// The IFBs to remove: those with this attachment's alias, and one without an alias if no other interface of
/// the container uses it.
fn to_remove<'l>(
    socket: &mut Socket,
    netns: &ContainerNetns,
    owner: &Attachment<'_>,
    host: Option<&Host>,
    ifbs: &'l Ifbs,
    failures: &mut Failures,
) -> Vec<&'l Link> {
    let is_ours = |link: &&Link| link.kind == ifb::KIND && owner::whose(owner, link) != Whose::Other;
    let mut is_unused = |link: &Link| {
        host.is_some_and(|host| redirects_to(host, link.index))
            || match netns {
                ContainerNetns::Open(netns) => {
                    let used = is_used_by_another(socket, netns, owner.ifname, link.index);
                    failures.keep(used) == Some(false)
                }
                ContainerNetns::Gone => true,
                ContainerNetns::Unknown(_) => false,
            }
    };
    let own = ifbs.own.as_ref().filter(is_ours);
    let shared = ifbs.shared.as_ref().filter(is_ours);
    let shared = shared.filter(|link| !link.alias.is_empty() || is_unused(link));
    own.into_iter().chain(shared).collect()
}

/// Whether another interface of the container has a filter that redirects to this IFB of the reference, which
/// names IFBs after network and container alone.
fn is_used_by_another(socket: &mut Socket, netns: &Netns, ifname: &str, ifb: u32) -> Result<bool, CniError> {
    let links = socket::route_in(netns)?.links(Some("veth")).context(|| "list the container's links")?;
    for peer in links.iter().filter(|link| link.name != ifname).filter_map(|link| link.peer) {
        if state::veth(socket, peer)?.is_some_and(|host| redirects_to(&host, ifb)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the IFBs, what leads to them, and what the host's end has of ours.
pub fn remove(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    host: Option<&Host>,
    to_remove: &[&Link],
) -> Result<(), CniError> {
    let mut steps = Vec::new();
    if let Some(host) = host {
        let (index, name) = (host.link.index, &host.link.name);
        if let Some(ingress_qdisc) = &host.ingress_qdisc {
            let is_ours = |to: u32| to == 0 || to_remove.iter().any(|ifb| ifb.index == to);
            let is_entry = |filter: &&filter::Filter| !filter.is_table && filter.handle != 0;
            let (ours, others): (Vec<_>, Vec<_>) = ingress_qdisc
                .filters
                .iter()
                .filter(is_entry)
                .partition(|filter| filter.redirect.is_some_and(is_ours));
            // ADD created the qdisc, according to a filter's preference or to the IFB's alias.
            let created =
                |link: &&Link| matches!(owner::whose(owner, link), Whose::Own(alias) if alias.has_own_qdisc);
            let qdisc_is_ours = ours.iter().any(|filter| filter.preference == plan::FIRST_PREFERENCE)
                || to_remove.iter().any(created);
            for filter in ours {
                let request = filter::delete(index, ingress_qdisc.parent(), filter.preference, filter.handle);
                steps.push(removal(format!("remove the filter of {name:?}"), request));
            }
            if qdisc_is_ours && others.is_empty() && ingress_qdisc.kind == "ingress" {
                let request = qdisc::delete(index, INGRESS);
                steps.push(removal(format!("remove the ingress qdisc of {name:?}"), request));
            }
        }
        if plan::ours(host.root.as_ref()).is_some() {
            steps.push(removal(format!("remove the root qdisc of {name:?}"), qdisc::delete(index, ROOT)));
        }
        if Rates::parse(&host.link.alias).is_some() {
            steps.push(removal(format!("remove the alias of {name:?}"), ifb::set_alias(index, "")));
        }
    }
    // A process that removes the veth pair too removes both at once.
    steps.extend(to_remove.iter().filter(|ifb| !deferred::link(ifb)).map(|ifb| remove_ifb(ifb)));
    run_all(socket, steps)
}

/// The step that removes an IFB.
pub fn remove_ifb(ifb: &Link) -> Step {
    removal(format!("remove {:?}", ifb.name), link::delete(LinkId::Index(ifb.index)))
}

/// A deletion. A missing object counts as removed.
fn removal(what: String, request: Message) -> Step {
    Step::new(what, request).unless(&[Errno::ENODEV, Errno::ENOENT])
}
