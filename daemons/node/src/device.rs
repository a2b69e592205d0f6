//! The device of an overlay: made, changed and removed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::netlink::link::{IFF_NOARP, IFF_UP, NewLink};
use ferrule_kernel::netlink::{Answer, LinkId, Message, Socket, addr, link};
use ferrule_kernel::sysctl;
use ipnetwork::IpNetwork;
use nix::errno::Errno;

/// The scope of a link-local address.
const SCOPE_LINK: u8 = 253;

/// Makes the device, or changes its settings (an MTU of 0 stands for any). A device with other [`NewLink::data`] is made anew.
/// Removes all other addresses but link-local ones. Returns the device's index.
///
/// # Errors
/// The kernel refuses it, or the name belongs to another device.
pub(crate) fn ensure(socket: &mut Socket, wanted: &NewLink<'_>, addresses: &[IpNetwork]) -> Result<u32> {
    let NewLink { kind, name, mac, mtu, .. } = *wanted;
    let mut found = socket.link(LinkId::Name(name))?;
    if let Some(other) = found.as_ref().filter(|found| found.kind != kind) {
        bail!("there is a link {name} of kind {:?}, which ferrule-node did not make", other.kind);
    }
    if let Some(former) = found.take_if(|found| found.data != wanted.data) {
        log!("makes {name} anew: it has {}, not {}", former.data, wanted.data);
        socket.delete_link(LinkId::Index(former.index)).with_context(|| format!("remove {name}"))?;
    }
    let link = match found {
        Some(found) => found,
        None => {
            let new = NewLink { flags: IFF_UP, ..*wanted };
            socket.request(new.request()).with_context(|| format!("make {name} ({})", wanted.data))?;
            socket.link(LinkId::Name(name))?.with_context(|| format!("{name} is gone again"))?
        }
    };
    // Routers must not configure the device. A kernel without IPv6 has no such sysctl.
    let _ = sysctl::ensure(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
    let mut changes = Vec::new();
    changes.extend(mac.filter(|mac| *mac != link.mac).map(|mac| link::set_mac(link.index, mac)));
    changes.extend((mtu != 0 && mtu != link.mtu).then(|| link::set_mtu(link.index, mtu)));
    changes.extend((!link.is_up()).then(|| link::set_flags(link.index, IFF_UP, IFF_UP)));
    // Another program may have made it a port of a bridge.
    changes.extend(link.master.map(|_| link::set_master(link.index, 0)));
    let is_mute = link.has_link_layer() && link.flags & IFF_NOARP != 0;
    changes.extend(is_mute.then(|| link::set_flags(link.index, 0, IFF_NOARP)));
    let present = socket.addresses(link.index)?;
    let stale =
        present.iter().filter(|present| present.scope != SCOPE_LINK && !addresses.contains(&present.network));
    changes.extend(stale.map(|stale| addr::delete(link.index, stale.network)));
    let missing = addresses.iter().filter(|wanted| present.iter().all(|present| present.network != **wanted));
    changes.extend(missing.map(|missing| addr::add(link.index, *missing, addr::NODAD)));
    send(socket, changes).with_context(|| format!("change {name}"))?;
    Ok(link.index)
}

/// Sends all requests, also those after a failed one. An object to remove may be gone already.
///
/// # Errors
/// The first failure.
pub(crate) fn send(socket: &mut Socket, changes: Vec<Message>) -> Result<()> {
    let is_gone = |answer: &Answer| {
        answer.as_ref().is_err_and(|error| matches!(error.errno, Errno::ENOENT | Errno::EADDRNOTAVAIL))
    };
    socket
        .requests(changes)
        .into_iter()
        .filter(|answer| !is_gone(answer))
        .try_for_each(|answer| Ok(answer.map(drop)?))
}

/// Removes these addresses from their links. The kernel removes the routes to their networks, too.
pub(crate) fn strip(socket: &mut Socket, stale: &BTreeSet<(u32, IpAddr)>) -> Result<()> {
    for (link, ip) in stale {
        let present = socket.addresses(*link)?;
        let gone = present.iter().map(|present| present.network).filter(|network| network.ip() == *ip);
        let gone: Vec<IpNetwork> = gone.collect();
        gone.iter()
            .for_each(|network| log!("removes the address {network}, which no pod of this node needs"));
        send(socket, gone.iter().map(|network| addr::delete(*link, *network)).collect())
            .with_context(|| format!("remove the address {ip}, which no pod of this node needs"))?;
    }
    Ok(())
}

/// Removes the device if it is of this kind. Returns its name for the report.
pub(crate) fn remove(socket: &mut Socket, name: &str, kind: &str) -> Result<Option<String>> {
    let found = socket.link(LinkId::Name(name))?.filter(|found| found.kind == kind);
    let Some(found) = found else { return Ok(None) };
    let removed = socket.delete_link(LinkId::Index(found.index)).with_context(|| format!("remove {name}"))?;
    Ok(removed.then(|| format!("link {name}")))
}
