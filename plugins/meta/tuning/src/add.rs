//! ADD: sysctls, state file, offload features, link attributes. Undoes them in reverse order if a step fails.

use cni_common::netns::Netns;
use cni_common::plugin::{AddRequest, Attachment};
use cni_common::spec::{AddResult, CniError};
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kit::container::Container;
use ferrule_kit::steps::UndoStack;
use ferrule_kit::{check, socket, veth};

use crate::attributes::{Attributes, mtu_step};
use crate::config::Conf;
use crate::offload::Offload;
use crate::state::{Former, State};
use crate::sysctl::{Kept, Written};
use crate::{allowlist, sysctl};

/// Sets the configured values. Without any key, returns the result unchanged.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config, &call.env.args, call.ifname)?;
    allowlist::check(&conf.sysctls)?;
    let mut result = check::prev_result(call)?.clone();
    let netns = call.sandbox.netns()?;
    let Written { former, kept } = sysctl::write(netns, &conf.sysctls)?;
    if !conf.keeps_link() {
        let tuned = tune(call, netns, &conf, kept).inspect_err(|_| sysctl::restore(netns, &former))?;
        report(&mut result, call.ifname, &conf.link, tuned.as_ref());
    } else if !kept.is_empty() {
        keep(call, &conf, kept).inspect_err(|_| sysctl::restore(netns, &former))?;
    }
    Ok(result)
}

/// Saves how the kernel shows sysctls, for CHECK.
pub fn keep(call: &AddRequest<'_>, conf: &Conf, kept: Kept) -> Result<(), CniError> {
    let file = State::new(&conf.data_dir, &Attachment::from(call));
    file.save(Former { sysctl: kept, ..Former::default() }).map(drop)
}

/// Changes the link. Returns the host's end if its MTU changes too.
fn tune(call: &AddRequest<'_>, netns: &Netns, conf: &Conf, kept: Kept) -> Result<Option<Link>, CniError> {
    let mut container = Container::open(netns, call.ifname)?;
    let missing = || CniError::internal(format!("failed to get {:?}: Link not found", call.ifname));
    let link = container.interface()?.ok_or_else(missing)?;
    let mut host = match conf.link.mtu() {
        Some(_) => host_end(netns, &link)?,
        None => None,
    };
    let host_mtu = host.as_ref().map(|(_, end)| end.mtu);
    let file = State::new(&conf.data_dir, &Attachment::from(call));
    let mut offload = Offload::plan(netns, &link, &conf.offload)?;
    let switches = offload.as_ref().map(|offload| offload.former.clone()).unwrap_or_default();
    let link_values = conf.link.of(&link);
    let values = Former { link: link_values, host_mtu, offload: switches, sysctl: kept, ..Former::default() };
    let former = file.save(values)?;
    let switched = offload.as_mut().map_or(Ok(()), Offload::apply);
    let changed = switched.and_then(|()| {
        let changed = change(&mut container.socket, &link, host.as_mut(), &conf.link);
        changed.inspect_err(|_| offload.iter_mut().for_each(Offload::undo))
    });
    changed.inspect_err(|_| file.undo(former))?;
    Ok(host.map(|(_, end)| end))
}

/// The host's end of a veth, with a socket on the host. `None` for any other link.
pub fn host_end(netns: &Netns, link: &Link) -> Result<Option<(Socket, Link)>, CniError> {
    if link.kind != veth::KIND {
        return Ok(None);
    }
    let mut socket = socket::route()?;
    Ok(veth::host_end(&mut socket, netns, link)?.map(|end| (socket, end)))
}

fn change(
    container: &mut Socket,
    link: &Link,
    host: Option<&mut (Socket, Link)>,
    wanted: &Attributes,
) -> Result<(), CniError> {
    let mut undo = UndoStack::default();
    undo.run(container, wanted.steps(link))?;
    let (Some((socket, end)), Some(mtu)) = (host, wanted.mtu()) else { return Ok(()) };
    let changed = UndoStack::default().run(socket, vec![mtu_step(end, mtu)]);
    changed.map(drop).map_err(CniError::from).inspect_err(|_| undo.undo(container))
}

/// Reports the new MAC address, and the new MTU if the plugin before has reported the old one.
fn report(result: &mut AddResult, ifname: &str, link: &Attributes, host: Option<&Link>) {
    for interface in &mut result.interfaces {
        // Like the reference, does not look at the sandbox: not all plugins report it.
        let is_container = interface.name == ifname;
        let is_host = interface.sandbox.is_empty() && host.is_some_and(|host| host.name == interface.name);
        if let (true, Some(mac)) = (is_container, link.mac()) {
            interface.mac = mac.to_string();
        }
        if let (true, Some(mtu)) = (is_container || is_host, link.mtu().filter(|_| interface.mtu != 0)) {
            interface.mtu = mtu;
        }
    }
}
