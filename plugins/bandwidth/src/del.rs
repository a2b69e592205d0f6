//! DEL: filter, hook, discipline, IFB, in this order: a filter whose IFB is gone is a black hole, and the container may well
//! live on.
//!
//! The configuration's limits do not matter: what is there is removed. The host's link is found through the container's
//! namespace, or through the alias of the IFB, and then only believed if it leads to that IFB.

use cni_common::netlink::link::{self, Link, LinkId};
use cni_common::netlink::qdisc::{self, INGRESS, ROOT};
use cni_common::netlink::{Message, Socket, filter, ifb};
use cni_common::netns::Netns;
use cni_common::plugin::Detach;
use cni_common::spec::{CniError, Failures, Step};
use nix::errno::Errno;

use crate::owner::{self, Claim, Hook};
use crate::plan;
use crate::state::{self, Host, Ifbs};
use cni_common::plugin::Attachment;

/// What the container's namespace tells.
struct Inside {
    container: Link,
}

/// Removes what ADD made, here or in the reference.
///
/// # Errors
/// What could not be removed, after everything else was.
pub fn del(call: &Detach<'_>) -> Result<(), CniError> {
    let owner = Attachment::from(call);
    let mut socket = Socket::route().step(|| "open a netlink socket")?;
    let inside = call.netns.and_then(|netns| look_inside(netns, call.ifname));
    let (host, ifbs) = find(&mut socket, call.netns, inside, &owner)?;
    let doomed = doomed(&mut socket, call.netns, &owner, host.as_ref(), &ifbs);
    remove(&mut socket, &owner, host.as_ref(), &doomed)
}

/// The container's link, if it is there and a veth: a container that has lost it has nothing that hangs on it.
fn look_inside(netns: &Netns, ifname: &str) -> Option<Inside> {
    state::container(netns, ifname).ok().map(|container| Inside { container })
}

fn find(
    socket: &mut Socket,
    netns: Option<&Netns>,
    inside: Option<Inside>,
    owner: &Attachment<'_>,
) -> Result<(Option<Host>, Ifbs), CniError> {
    if let (Some(netns), Some(Inside { container })) = (netns, inside)
        && let Ok((host, ifbs)) = state::read(socket, netns, &container, owner, true)
    {
        return Ok((Some(host), ifbs));
    }
    let ifbs = state::ifbs(socket, owner)?;
    let mut host = None;
    for link in [&ifbs.own, &ifbs.shared].into_iter().flatten() {
        if let (None, Claim::Own(alias)) = (&host, owner::claim(owner, link)) {
            // The index may have passed to another link by now, which then does not lead here.
            host = state::veth(socket, alias.veth)?.filter(|host| leads_to(host, link.index));
        }
    }
    Ok((host, ifbs))
}

fn leads_to(host: &Host, ifb: u32) -> bool {
    host.hook.iter().flat_map(|hook| &hook.filters).any(|filter| filter.redirect == Some(ifb))
}

/// The IFBs to remove: the attachment's own by alias, and one without any that no other interface of the container uses.
fn doomed<'l>(
    socket: &mut Socket,
    netns: Option<&Netns>,
    owner: &Attachment<'_>,
    host: Option<&Host>,
    ifbs: &'l Ifbs,
) -> Vec<&'l Link> {
    let mut doomed = Vec::new();
    let is_ifb = |link: &&Link| link.kind == ifb::KIND;
    doomed
        .extend(ifbs.own.as_ref().filter(is_ifb).filter(|link| owner::claim(owner, link) != Claim::Anothers));
    doomed.extend(ifbs.shared.as_ref().filter(is_ifb).filter(|link| match owner::claim(owner, link) {
        Claim::Own(_) => true,
        Claim::Anothers => false,
        Claim::Nobodys => {
            host.is_some_and(|host| leads_to(host, link.index))
                || !netns.is_some_and(|netns| is_used_by_another(socket, netns, owner.ifname, link.index))
        }
    }));
    doomed
}

/// Whether another interface of the container leads to an IFB that the reference made. It names IFBs after the container
/// alone. Without the namespace there are no other interfaces.
fn is_used_by_another(socket: &mut Socket, netns: &Netns, ifname: &str, ifb: u32) -> bool {
    let links = netns.enter(|| {
        let mut inside = Socket::route().step(|| "open a netlink socket in the container")?;
        inside.links(Some("veth")).step(|| "list the container's links")
    });
    let others = links.unwrap_or_default().into_iter().filter(|link| link.name != ifname);
    others
        .filter_map(|link| link.peer)
        .any(|peer| state::veth(socket, peer).is_ok_and(|host| host.is_some_and(|host| leads_to(&host, ifb))))
}

/// Whether the hook was made for this attachment: the IFB's alias says so, or the place of a filter.
fn is_hook_ours(owner: &Attachment<'_>, doomed: &[&Link], filters: &[&filter::Filter]) -> bool {
    let is_in_first_place = filters.iter().any(|filter| filter.preference == plan::FIRST_PREFERENCE);
    is_in_first_place
        || doomed
            .iter()
            .any(|link| matches!(owner::claim(owner, link), Claim::Own(alias) if alias.hook == Hook::Made))
}

fn remove(
    socket: &mut Socket,
    owner: &Attachment<'_>,
    host: Option<&Host>,
    doomed: &[&Link],
) -> Result<(), CniError> {
    let mut requests: Vec<(String, Message)> = Vec::new();
    if let Some(host) = host {
        let (index, name) = (host.link.index, &host.link.name);
        if let Some(hook) = &host.hook {
            let is_ours = |to: u32| to == 0 || doomed.iter().any(|ifb| ifb.index == to);
            let is_real = |filter: &&filter::Filter| !filter.is_table && filter.handle != 0;
            let (ours, others): (Vec<_>, Vec<_>) =
                hook.filters.iter().filter(is_real).partition(|filter| filter.redirect.is_some_and(is_ours));
            let hook_is_ours = is_hook_ours(owner, doomed, &ours);
            for filter in ours {
                let request = filter::delete(index, hook.parent(), filter.preference, filter.handle);
                requests.push((format!("remove the filter of {name:?}"), request));
            }
            if hook_is_ours && others.is_empty() && hook.kind == "ingress" {
                requests
                    .push((format!("remove the ingress qdisc of {name:?}"), qdisc::delete(index, INGRESS)));
            }
        }
        if plan::ours(host.root.as_ref()).is_some() {
            requests.push((format!("remove the root qdisc of {name:?}"), qdisc::delete(index, ROOT)));
        }
    }
    for ifb in doomed {
        requests.push((format!("remove {:?}", ifb.name), link::delete(LinkId::Index(ifb.index))));
    }
    send(socket, requests)
}

/// Sends requests to remove things at once; a thing that is gone is removed.
///
/// # Errors
/// Of all that failed.
pub fn send(socket: &mut Socket, requests: Vec<(String, Message)>) -> Result<(), CniError> {
    if requests.is_empty() {
        return Ok(());
    }
    let (steps, messages): (Vec<String>, Vec<Message>) = requests.into_iter().unzip();
    let mut failures = Failures::default();
    for (answer, step) in socket.requests(messages).into_iter().zip(steps) {
        match answer {
            Err(error) if matches!(error.errno, Errno::ENODEV | Errno::ENOENT) => {}
            outcome => {
                failures.keep(outcome.step(|| step));
            }
        }
    }
    failures.into_result()
}
