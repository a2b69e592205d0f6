//! The VLAN device between the master and the macvlans of one VLAN. Its name is `MASTER.ID`, or that of an existing device.
//!
//! The kernel keeps the list of its users: each attachment adds an alternative name to a device that this plugin has made,
//! and removes it again. The last one removes the device. A device without such alternative names was
//! made by another program and is only used. The request that makes the device and the one that adds the first name are sent
//! together, so a kill cannot come between them.

use std::collections::BTreeSet;
use std::path::Path;

use cni_common::plugin::Attachment;
use cni_common::spec::ident::{MAX_IFNAME, check_ifname};
use cni_common::spec::{CniError, Context as _, Failures, ValidAttachment};
use ferrule_kernel::lock::Lock;
use ferrule_kernel::netlink::link::{self, IFF_UP, NewLink};
use ferrule_kernel::netlink::{Link, LinkData, LinkId, Socket};
use ferrule_kit::hash::sha512_hex;
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::{dead, lock, socket};

const KIND: &str = "vlan";
/// The beginning of the alternative names.
const PREFIX: &str = "cni-macvlan-";
/// Held from the look at the users until the change is made.
const LOCK: &str = "/run/ferrule-macvlan.lock";

/// The name of a new VLAN device. The configuration may have an alternative name of the master, which counts if the name would be too
/// long with the master's own.
fn name(master: &str, configured: &str, id: u16) -> String {
    let (own, other) = (format!("{master}.{id}"), format!("{configured}.{id}"));
    if own.len() > MAX_IFNAME && !configured.is_empty() { other } else { own }
}

/// The VLAN device with this ID on the master, under any name.
///
/// # Errors
/// The kernel's error.
pub(crate) fn find(socket: &mut Socket, master: &Link, id: u16) -> Result<Option<Link>, CniError> {
    let links = socket.links(Some(KIND)).context(|| "list the VLAN devices")?;
    Ok(links.into_iter().find(|link| is_on(link, master, id)))
}

fn is_on(device: &Link, master: &Link, id: u16) -> bool {
    let is_here = device.peer == Some(master.index) && device.peer_netns.is_none();
    device.kind == KIND && is_here && device.data == LinkData::Vlan { id }
}

/// The beginning of the alternative names of the users on one network.
fn network_prefix(network: &str) -> String {
    format!("{PREFIX}{}-", sha512_hex(network, 16))
}

/// The alternative name of one user.
pub fn user(attachment: &Attachment<'_>) -> String {
    let (id, ifname) = (attachment.container_id, attachment.ifname);
    network_prefix(attachment.network) + &sha512_hex(&format!("{id}\0{ifname}"), 32)
}

fn is_ours(device: &Link) -> bool {
    device.alt_names.iter().any(|name| name.starts_with(PREFIX))
}

fn lock() -> Result<Lock, CniError> {
    lock::take(Path::new(LOCK), 0o600)
}

/// Makes the device or uses an existing one. Returns it. The master comes with its name in the configuration.
///
/// # Errors
/// The name is too long, or another link has it. Nothing has changed.
pub fn acquire(
    socket: &mut Socket,
    (master, configured): (&Link, &str),
    id: u16,
    attachment: &Attachment<'_>,
) -> Result<Link, CniError> {
    let (mut name, user) = (name(&master.name, configured, id), user(attachment));
    let _lock = lock()?;
    let found = find(socket, master, id)?;
    match &found {
        Some(device) => name.clone_from(&device.name),
        None => {
            check_ifname(&name).map_err(|error| {
                let error =
                    CniError::invalid_config(format!("vlan device: {}", error.msg)).with_details(&name);
                error.with_remedy(format!(
                    "ip link property add dev {} altname SHORT, and set SHORT as \"master\"",
                    master.name
                ))
            })?;
            let taken =
                socket.link(LinkId::Name(&name)).context(|| format!("look up VLAN device {name:?}"))?;
            if taken.is_some() {
                let msg = format!("{name:?} exists and is not VLAN {id} of {:?}", master.name);
                return Err(CniError::internal(msg));
            }
        }
    }
    let step = || format!("look up VLAN device {name:?}");
    let data = LinkData::Vlan { id };
    let register = || {
        Step::new(
            format!("add a user to VLAN device {name:?}"),
            link::add_alt_name(LinkId::Name(&name), &user),
        )
    };
    let mut steps = match &found {
        Some(device) if !is_ours(device) || device.alt_names.contains(&user) => return Ok(device.clone()),
        Some(_) => vec![register()],
        None => {
            let (kind, parent) = (KIND, Some(master.index));
            let new = NewLink { kind, name: &name, flags: IFF_UP, parent, data, ..NewLink::default() };
            let make = Step::new(
                format!("failed to create VLAN {id} of {:?} as {name:?}", master.name),
                new.request(),
            );
            vec![make.undone_by(link::delete(LinkId::Name(&name))), register()]
        }
    };
    steps.push(Step::new(step(), link::get(LinkId::Name(&name))));
    let answer = UndoStack::default().run(socket, steps)?;
    let missing = || CniError::internal(format!("VLAN device {name:?} disappeared"));
    link::read(Ok(answer)).context(step)?.ok_or_else(missing)
}

/// The users of the VLAN devices among these links: device and alternative name.
pub fn users<'l>(links: impl Iterator<Item = &'l Link>) -> impl Iterator<Item = (&'l Link, &'l str)> {
    let devices = links.filter(|link| link.kind == KIND);
    let names = devices.flat_map(|device| device.alt_names.iter().map(move |name| (device, name.as_str())));
    names.filter(|(_, name)| name.starts_with(PREFIX))
}

/// Removes the attachment from the users of its device, if it has one, and the device if it has no other user.
pub fn release(attachment: &Attachment<'_>) -> Result<(), CniError> {
    let (mut socket, user) = (socket::route()?, user(attachment));
    let find = |socket: &mut Socket| {
        socket.link(LinkId::AltName(&user)).context(|| "look up the VLAN device of the attachment")
    };
    if find(&mut socket)?.is_none() {
        return Ok(());
    }
    let _lock = lock()?;
    find(&mut socket)?.map_or(Ok(()), |device| remove_users(&mut socket, &device, &[&user]))
}

/// Removes the users with these alternative names whom `are_dead` names under the lock, by one answer for each, and devices that have no
/// other one. Returns whether each was there and is removed.
///
/// # Errors
/// Code 11 if another process keeps the lock; the kernel's error.
pub fn release_dead(
    socket: &mut Socket,
    named: &[String],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Result<Vec<bool>, CniError> {
    let _lock = lock()?;
    let devices = socket.links(Some(KIND)).context(|| "list the VLAN devices")?;
    let found: BTreeSet<String> = users(devices.iter()).map(|(_, user)| user.to_owned()).collect();
    let dead = dead::confirmed_names(named, &found, are_dead);
    for device in &devices {
        let lost: Vec<&str> =
            device.alt_names.iter().map(String::as_str).filter(|name| dead.contains(*name)).collect();
        if !lost.is_empty() {
            remove_users(socket, device, &lost)?;
        }
    }
    Ok(named.iter().map(|name| dead.contains(name)).collect())
}

/// Removes the users of this network that are not valid from all VLAN devices.
pub fn collect(network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let mut socket = socket::route()?;
    let (prefix, _lock) = (network_prefix(network), lock()?);
    let valid: Vec<String> = valid
        .iter()
        .map(|one| user(&Attachment { network, container_id: &one.container_id, ifname: &one.ifname }))
        .collect();
    let mut failures = Failures::default();
    for device in socket.links(Some(KIND)).context(|| "list the VLAN devices")? {
        let is_lost = |name: &&str| name.starts_with(&prefix) && !valid.iter().any(|user| user == name);
        let lost: Vec<&str> = device.alt_names.iter().map(String::as_str).filter(is_lost).collect();
        if !lost.is_empty() {
            failures.keep(remove_users(&mut socket, &device, &lost));
        }
    }
    failures.into_result()
}

/// Removes these users of our device, and the device if it has no other one.
fn remove_users(socket: &mut Socket, device: &Link, users: &[&str]) -> Result<(), CniError> {
    let (id, name) = (LinkId::Index(device.index), &device.name);
    let is_other = |one: &&String| one.starts_with(PREFIX) && !users.contains(&one.as_str());
    if device.alt_names.iter().any(|one| is_other(&one)) {
        let requests = users.iter().map(|user| link::remove_alt_name(id, user)).collect();
        let removed: Result<Vec<_>, _> = socket.requests(requests).into_iter().collect();
        return removed.map(drop).context(|| format!("remove users of VLAN device {name:?}"));
    }
    socket.delete_link(id).map(drop).context(|| format!("remove VLAN device {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alternative_name_makes_a_long_one_shorter() {
        for (master, configured, expected) in [
            ("up0", "", "up0.100"),
            ("up0", "rack", "up0.100"),
            ("enp129s0f0np0", "rack", "rack.100"),
            ("enp129s0f0np0", "", "enp129s0f0np0.100"),
        ] {
            assert_eq!(name(master, configured, 100), expected);
        }
    }

    #[test]
    fn a_user_is_named_by_its_attachment() {
        let user = |network, container_id, ifname| user(&Attachment { network, container_id, ifname });
        let own = user("net", "id", "eth0");
        assert!(own.starts_with(&network_prefix("net")) && own.len() < 128, "{own}");
        assert_ne!(own, user("net", "ide", "th0"));
        assert!(!own.starts_with(&network_prefix("ne")));
    }
}
