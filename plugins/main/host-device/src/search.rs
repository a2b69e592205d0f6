//! Finds the moved device again: in the container, and on the host after the kernel has moved it there. [`crate::identity`]
//! tells it from other links.

use std::cmp::Reverse;
use std::os::fd::AsFd as _;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::{Link, LinkId, Socket, link, nsid};
use ferrule_kit::netns;

use crate::identity::{self, OtherEnd};
use crate::state::State;

/// The device in the container. There may be several candidates, the best one first.
pub fn in_container(container: &mut Socket, state: &State) -> Result<Vec<Link>, CniError> {
    let own = netns::own()?;
    let step = || format!("look up {:?} in the container", state.ifname);
    // Request the link before the node's ID: reading the link makes the kernel assign the ID.
    let requests = [link::get(LinkId::Name(&state.ifname)), nsid::get(own.as_fd())];
    let [named, node] = container.request_each(requests);
    let named = link::read(named).context(step)?;
    let mut node = nsid::read(node).context(step)?;
    if node.is_none() && state.identity.peer_netns.is_some() {
        // The device's other end is in a third namespace, and no other link of the container leads to the node.
        let [_, assigned] = container.request_each([nsid::assign(own.as_fd()), nsid::get(own.as_fd())]);
        node = nsid::read(assigned).context(step)?;
    }
    if let Some(link) = named
        && state.is_surely(&link)
        && is_candidate(container, state, node, &link)
    {
        return Ok(vec![link]);
    }
    let links = container.links(None).context(step)?;
    let mut found: Vec<Link> =
        { links.iter() }.filter(|link| is_candidate(container, state, node, link)).cloned().collect();
    if found.is_empty() && state.identity.peer.is_some() {
        found = links.into_iter().filter(|link| has_known_peer(container, state, link)).collect();
    }
    found.sort_by_cached_key(|link| Reverse(state.rank(link, other_end(container, state, node, link))));
    Ok(found)
}

fn is_candidate(container: &mut Socket, state: &State, node: Option<i32>, link: &Link) -> bool {
    link.kind == state.kind && state.is(link, other_end(container, state, node, link))
}

fn other_end(container: &mut Socket, state: &State, node: Option<i32>, link: &Link) -> OtherEnd {
    match (link.peer_netns, node) {
        (Some(id), Some(node)) if id == node => OtherEnd::Node,
        (Some(id), Some(node)) if state.identity.peer_netns.is_some() => {
            let known = nsid::read(container.request(nsid::translate(id, node)));
            known.ok().flatten().map_or(OtherEnd::Unknown, OtherEnd::Elsewhere)
        }
        _ => OtherEnd::Unknown,
    }
}

/// Whether the other end is a device that has been moved too, into this container or another one: both ends of a veth pair
/// may be devices of host-device.
fn has_known_peer(container: &mut Socket, state: &State, link: &Link) -> bool {
    if link.kind != state.kind || link.peer.is_none() {
        return false;
    }
    let is_peer = |other: &State| other.kind == state.kind && Some(other.identity.index) == link.peer;
    State::list().filter(is_peer).any(|other| match (link.peer_netns, other.open_netns().opened()) {
        (None, _) => other.netns == state.netns && other.name != state.name,
        (Some(id), Some(netns)) => {
            nsid::read(container.request(nsid::get(netns.as_fd()))).is_ok_and(|known| known == Some(id))
        }
        _ => false,
    })
}

/// The best proven link of the container that `is_meant` permits, for a device without a state file. Its second argument tells
/// whether the link is a physical one.
pub fn without_state(
    container: &mut Socket,
    is_meant: impl Fn(&Link, bool) -> bool,
) -> Result<Option<Link>, CniError> {
    let step = || "list the links of the container";
    let links = container.links(None).context(step)?;
    let node = nsid::read(container.request(nsid::get(netns::own()?.as_fd()))).context(step)?;
    let proof = |link: &Link| {
        let is_at_node = node.is_some() && link.peer_netns == node;
        identity::of_unknown(link, if is_at_node { OtherEnd::Node } else { OtherEnd::Unknown })
    };
    let is_candidate = |link: &Link| proof(link).is_some_and(|proof| is_meant(link, proof.is_physical));
    Ok(links.into_iter().filter(is_candidate).max_by_key(proof))
}

/// The device on the host: under its name, under its name in the container, or under the name that the kernel gives it if
/// that is taken. A physical device may have any name that the container has chosen.
pub fn on_host(host: &mut Socket, state: &State) -> Result<Option<Link>, CniError> {
    let (name, ifname) = (&state.name, &state.ifname);
    let [home, other] = host.request_each([link::get(LinkId::Name(name)), link::get(LinkId::Name(ifname))]);
    let step = || format!("look up {name:?} on the host");
    let [home, other] = [link::read(home).context(step)?, link::read(other).context(step)?];
    let is_it = |link: &Link| state.is_on_host(link);
    if let Some(found) = [&home, &other].into_iter().flatten().find(|link| is_it(link)) {
        return Ok(Some(found.clone()));
    }
    // Without an alias everything has been restored.
    if let Some(home) = home.filter(|link| !state.identity.is_physical() && state.is_restored(link)) {
        return Ok(Some(home));
    }
    Ok(host.links(None).context(|| "list the links of the host")?.into_iter().find(is_it))
}
