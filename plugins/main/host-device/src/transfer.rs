//! Moves the device into the container, and gives it back.
//!
//! In the container the link's alias is the device's name on the host, as with the reference. It survives even if the
//! namespace dies: the kernel then moves a physical device to the host, under its name in the container or as `dev7`, and
//! deletes a virtual one.

use std::os::fd::AsFd as _;

use cni_common::netns::Netns;
use cni_common::remark;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::link::{self, IFF_UP};
use ferrule_kernel::netlink::{Link, LinkId, Message, Socket, addr, rule, transfer};
use ferrule_kit::netns;
use nix::errno::Errno;

use crate::state::{MODES, State};
use crate::{search, vf};

/// Marks the rules of a container that ADD has copied from the host (`FRA_PROTOCOL`).
pub const OUR_RULES: u8 = 69;

/// Moves the link into the container under the name `ifname`. The alias and the move are one datagram, so a kill cannot
/// separate them. After an error the device may be in the container under any name.
pub fn to_container(host: &mut Socket, link: &Link, netns: &Netns, ifname: &str) -> Result<(), CniError> {
    let name = &link.name;
    let [alias, moved] = host.request_each([
        transfer::set_alias(link.index, name),
        transfer::move_to(link.index, netns.as_fd(), ifname),
    ]);
    alias.context(|| format!("failed to move link failed to set alias to {name:?}"))?;
    let failed = || format!("failed to move link failed to move {ifname:?} (host: {name:?}) to container NS");
    moved.map(drop).context(failed)
}

/// Gives the device back to the host: name, alias, hardware address, MTU, modes, transmit queue, state, addresses and routes, and
/// the settings of a virtual function.
/// Continues where an earlier attempt has stopped. Returns whether the device is back.
///
/// # Errors
/// Another link of the host has the device's name: the device then stays in the container as it is.
pub fn give_back(host: &mut Socket, container: Option<&mut Socket>, state: &State) -> Result<bool, CniError> {
    if state.is_userspace {
        vf::restore(host, &state.vf);
        return Ok(true);
    }
    let mut has_moved = false;
    if let Some(container) = container {
        for link in search::in_container(container, state)? {
            has_moved = take_out(host, container, &link, state)?;
            if has_moved {
                break;
            }
        }
        // Without the device a rule leads nowhere, so an error does no harm.
        let rules = state.rules.iter().map(|rule| rule::delete_again(rule, OUR_RULES));
        container.requests(rules.collect());
    }
    let name = &state.name;
    let found = if has_moved {
        host.link(LinkId::Name(name)).context(|| format!("look up {name:?} on the host"))?
    } else {
        search::on_host(host, state)?
    };
    let Some(mut link) = found else { return Ok(false) };
    if !has_moved && link.name == *name && state.is_restored(&link) {
        vf::restore(host, &state.vf);
        return Ok(true);
    }
    if link.name != *name {
        let down = link::set_flags(link.index, 0, IFF_UP);
        let [_, renamed] = host.request_each([down, transfer::rename(link.index, name)]);
        renamed.context(|| format!("failed to rename device {:?} to {name:?}", link.name))?;
        link.flags &= !IFF_UP;
    }
    restore(host, &link, state)?;
    Ok(true)
}

/// The links that the container has made on the device, such as a macvlan. They would stay in the container, on a device of the
/// node. The other end of a pair does not count.
fn made_on(links: &[Link], device: &Link) -> impl Iterator<Item = Message> {
    let is_on = |link: &&Link| (link.peer, link.peer_netns) == (Some(device.index), None);
    let is_other_end = |link: &&Link| (device.peer, device.peer_netns) == (Some(link.index), None);
    let above = links.iter().filter(move |link| is_on(link) && !is_other_end(link));
    above.map(|link| link::delete(LinkId::Index(link.index)))
}

/// Moves the link to the host, without the alternative names and links that it has got in the container. Renames it first if the
/// container has no other link of that name, so that programs of the host do not see it under its name in the container.
/// Returns false for a link that cannot move: ADD has moved the device, so this is another one.
fn take_out(host: &mut Socket, container: &mut Socket, link: &Link, state: &State) -> Result<bool, CniError> {
    let (name, index) = (&state.name, link.index);
    let failed = || format!("failed to move {name:?} to hostNS");
    if host.link(LinkId::Name(name)).context(failed)?.is_some() {
        // The reference's text.
        return Err(CniError::internal(format!("{}: file exists", failed())));
    }
    let own = netns::own()?;
    let links = container.links(None).context(failed)?;
    let mut requests: Vec<Message> = made_on(&links, link).collect();
    // The container may have removed the alias.
    requests.extend([transfer::set_alias(index, name), link::set_flags(index, 0, IFF_UP)]);
    // A link of the host may have such a name, and the link would not move.
    let foreign = link.alt_names.iter().filter(|one| !state.alt_names.contains(one));
    requests.extend(foreign.map(|one| link::remove_alt_name(LinkId::Index(index), one)));
    requests.extend([transfer::rename(index, name), transfer::move_to(index, own.as_fd(), name)]);
    let mut answers = container.requests(requests);
    let moved = answers.pop().map_or(Ok(()), |answer| answer.map(drop));
    if let Err(error) = moved {
        let up = link::set_flags(index, link.flags, IFF_UP);
        // Fails if the link has moved, or if the host's name was taken meanwhile.
        let _ = container.request_each([transfer::rename(index, &link.name), up]);
        if error.errno == Errno::EINVAL && !state.identity.is_physical() {
            return Ok(false);
        }
        return Err(error).context(failed);
    }
    Ok(true)
}

/// Restores what the move has changed, the alias last: it tells that this is still to be done. What cannot be restored
/// goes to standard error, because a runtime would repeat a failed DEL forever.
fn restore(host: &mut Socket, link: &Link, state: &State) -> Result<(), CniError> {
    vf::restore(host, &state.vf);
    let (name, index) = (&state.name, link.index);
    let mut steps: Vec<(&str, Message)> = Vec::new();
    if let Ok(mac) = state.mac.parse()
        && link.mac != mac
    {
        steps.push(("MAC address", link::set_mac(index, mac)));
    }
    if state.mtu != 0 && state.mtu != link.mtu {
        steps.push(("MTU", link::set_mtu(index, state.mtu)));
    }
    if let Some(modes) = state.modes.filter(|modes| link.flags & MODES != *modes) {
        steps.push(("promiscuous mode", link::set_flags(index, modes, MODES)));
    }
    if let Some(len) = state.tx_queue_len.filter(|len| link.tx_queue_len != *len) {
        steps.push(("transmit queue", link::set_tx_queue_len(index, len)));
    }
    if state.master != 0 {
        steps.push(("master", link::set_master(index, state.master)));
    }
    if state.up {
        steps.push(("state", link::set_flags(index, IFF_UP, IFF_UP)));
    }
    steps.extend(state.addresses.iter().map(|one| ("address", addr::add_again(index, one))));
    steps.extend(state.routes().map(|route| ("route", route.add_through(index))));
    steps.push(("alias", transfer::set_alias(index, &state.alias)));
    let (whats, requests): (Vec<&str>, Vec<Message>) = steps.into_iter().unzip();
    let mut answers = host.requests(requests);
    let alias = answers.pop();
    for (what, answer) in whats.iter().zip(answers) {
        if let Err(error) = answer
            && error.errno != Errno::EEXIST
        {
            remark!("host-device: cannot restore the {what} of {name:?}: {error}");
        }
    }
    alias.map_or(Ok(()), |answer| answer.map(drop)).context(|| format!("failed to unset alias of {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_on_the_device_do_not_stay() {
        let link = |index, peer, peer_netns| Link { index, peer: Some(peer), peer_netns, ..Link::default() };
        let count = |device: &Link, links: &[Link]| made_on(links, device).count();
        let device = link(5, 7, Some(0));
        assert_eq!(
            count(&device, &[link(6, 5, None), link(7, 5, None), link(8, 6, None), device.clone()]),
            2
        );
        // On a link of the node with the same index.
        assert_eq!(count(&device, &[link(6, 5, Some(0))]), 0);
        let with_both_ends = link(5, 7, None);
        assert_eq!(count(&with_both_ends, &[link(7, 5, None), link(6, 5, None)]), 1);
    }
}
