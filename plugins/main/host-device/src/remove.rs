//! DEL and GC: give the device back, and call IPAM.

use std::borrow::Borrow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::netns::ContainerNetns;
use cni_common::plugin::{DelRequest, GcRequest, Verb};
use cni_common::remark;
use cni_common::spec::{CniError, Context as _, Failures};
use ferrule_kernel::netlink::{Link, LinkId, Mac, Socket, addr};
use ferrule_kit::state_file::{self, Seen, stem};
use ferrule_kit::{dead, ipam, leftover, socket};

use crate::config::{bus_id_of, device_of};
use crate::state::{self, FOLDER, State, is_fallback_name};
use crate::{search, transfer};

/// How long the kernel may take to move a physical device to the host after its namespace is gone.
const RETURN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// Gives the device back, and calls IPAM DEL. Of the configuration it needs only `device` and `ipam`, if they can be read.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    ipam::del_with_link(call, || release(call))
}

fn release(call: &DelRequest<'_>) -> Result<(), CniError> {
    let file = state::file(call.config.name(), call.container_id, call.ifname);
    let saved = State::find(&file)?;
    let mut host = socket::route()?;
    let container = call.netns.opened().map(socket::route_in).transpose()?;
    let mut container = container.map(Socket::with_whole_dumps);
    // The kernel moves a device to the host some time after its namespace is gone. The container may have hidden it in
    // another namespace.
    let end =
        Instant::now() + if matches!(call.netns, ContainerNetns::Gone) { RETURN } else { Duration::ZERO };
    let is_unknown = matches!(call.netns, ContainerNetns::Unknown(_));
    let has_file = saved.is_some();
    let known = match saved {
        Some(state) => Some(state),
        None => of_the_reference(call, &mut host, container.as_mut())?,
    };
    while let Some(state) = &known
        && !transfer::give_back(&mut host, container.as_mut(), state)?
        && (!state.is_virtual() || is_unknown)
        && has_file
    {
        if Instant::now() >= end {
            // Something keeps the namespace alive, or the device was unplugged. GC and the next ADD use the state file.
            remark!("host-device: {:?} has not come back to the host yet", state.name);
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    let left = container.as_mut().map_or(Ok(()), |container| take_addresses(call, container));
    file.remove()?;
    left
}

/// Removes the addresses that the container has moved from the device to other links.
fn take_addresses(call: &DelRequest<'_>, container: &mut Socket) -> Result<(), CniError> {
    let former = leftover::former_addresses(call.prev_result.as_ref(), call.ifname);
    if former.is_empty() {
        return Ok(());
    }
    let listed = container.request(addr::list(0));
    leftover::remove_addresses(container, &former, listed)
}

/// The device of an attachment without a state file, which is the reference's: by the link's alias, in the container or, if
/// the namespace is gone, on the host. A physical link of the container may have lost its alias, but not what the
/// configuration or the result says of it.
fn of_the_reference(
    call: &DelRequest<'_>,
    host: &mut Socket,
    container: Option<&mut Socket>,
) -> Result<Option<State>, CniError> {
    let of = |name: &str, link: &Link| State { ifname: call.ifname.to_owned(), ..State::of(name, link) };
    let step = || format!("look up {:?}", call.ifname);
    let device = device_of(call.config);
    let home = if device.is_empty() { None } else { host.link(LinkId::Name(&device)).context(step)? };
    let has_alt_name = |link: &Link| link.alt_names.contains(&device);
    let is_named = |link: &Link| match device.as_str() {
        "" => !link.alias.is_empty(),
        // It may be an alternative name, which the link has taken with it.
        device => link.alias == device || !link.alias.is_empty() && has_alt_name(link),
    };
    let reported = call.prev_result.iter().flat_map(|result| result.container_interfaces());
    let mac: Option<Mac> =
        { reported }.find(|one| one.name == call.ifname).and_then(|one| one.mac.parse().ok());
    if let Some(container) = container {
        let bus_id = bus_id_of(call.config);
        let is_described = |link: &Link| {
            mac.is_some_and(|mac| mac == link.mac || mac == link.permanent_mac)
                || !link.parent.is_empty() && link.parent == bus_id
        };
        let found = search::without_state(container, |link, is_physical| {
            // A virtual device whose name the host has is there already.
            let is_named = is_named(link) && (link.name == call.ifname || !device.is_empty());
            if is_physical { is_named || is_described(link) } else { is_named && home.is_none() }
        })?;
        let Some(link) = found else { return Ok(None) };
        if !device.is_empty() && !has_alt_name(&link) {
            return Ok(Some(of(&device, &link)));
        }
        // The container can take the alias away, or make it the name of a link of the host.
        let alias = LinkId::Name(&link.alias);
        let is_free = !link.alias.is_empty() && host.link(alias).context(step)?.is_none();
        let fallback = format!("dev{}", link.index);
        let alt_names = if has_alt_name(&link) && home.is_none() { vec![device] } else { Vec::new() };
        return Ok(Some(State { alt_names, ..of(if is_free { &link.alias } else { &fallback }, &link) }));
    }
    if device.is_empty() && mac.is_none() {
        return Ok(None);
    }
    let is_it = |link: &Link| {
        let is_renamed = link.name == call.ifname || is_fallback_name(&link.name);
        is_renamed && is_named(link) && link.alias != link.name && mac.is_none_or(|mac| link.mac == mac)
    };
    let found = host.link(LinkId::Name(call.ifname)).context(step)?.filter(is_it);
    let found = match found {
        None if home.is_none() => host.links(None).context(step)?.into_iter().find(is_it),
        found => found,
    };
    Ok(found.map(|link| of(&link.alias, &link)))
}

/// Gives back the devices of attachments that are not valid, and calls IPAM GC.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let network = call.config.name();
    let is_valid = |own: &str| call.valid.iter().any(|one| stem(&one.container_id, &one.ifname) == own);
    let give_back = |bytes: &[u8]| {
        let Some(state) = State::parse(bytes).filter(|state| state.network == network) else {
            return Ok(false);
        };
        give_back_of(&state)
    };
    failures.keep(state_file::collect(Path::new(FOLDER), network, is_valid, give_back));
    failures.keep(ipam::call(call.env, call.config, Verb::Gc));
    failures.into_result()
}

/// Returns whether the state file can be removed: the device is back, or it has ended with the namespace.
fn give_back_of(state: &State) -> Result<bool, CniError> {
    let netns = state.open_netns();
    if let ContainerNetns::Unknown(error) = netns {
        return Err(error);
    }
    let mut container = netns.opened().map(socket::route_in).transpose()?;
    let is_back = transfer::give_back(&mut socket::route()?, container.as_mut(), state)?;
    Ok(is_back || state.is_virtual())
}

/// Gives back the devices whose state files are still the same and whose owners `are_dead` names, by one answer for each. A file that was
/// written after the answer stays. Returns for each whether it was there and is given back, or the kernel's error; a physical device may
/// not have come back to the host yet.
pub fn give_back_dead(
    states: &[impl Borrow<State>],
    are_dead: &mut dyn FnMut() -> Vec<bool>,
) -> Vec<Result<bool, CniError>> {
    let find = |state: &&State| {
        let (file, is_same) = (state.file(), |found: &State| found == *state);
        let seen = file.seen();
        Ok(State::find(&file)?.filter(is_same).and(seen))
    };
    let states: Vec<&State> = states.iter().map(Borrow::borrow).collect();
    let found: Vec<Result<Option<Seen>, CniError>> = states.iter().map(find).collect();
    let is_there = found.iter().map(|seen| matches!(seen, Ok(Some(_)))).collect();
    let dead = dead::confirmed(is_there, are_dead);
    let outcome = |((state, seen), is_dead): ((&State, Result<Option<Seen>, CniError>), bool)| {
        let (file, seen) = (state.file(), seen?);
        if !is_dead || file.seen() != seen {
            return Ok(false);
        }
        if !give_back_of(state)? {
            return Err(CniError::internal(format!("{:?} has not come back to the host yet", state.name)));
        }
        file.remove().map(|()| true)
    };
    states.into_iter().zip(found).zip(dead).map(outcome).collect()
}
