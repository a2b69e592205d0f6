//! The `tap` CNI plugin: a persistent tap device in the container, for a virtual machine.
//!
//! [`config`] decodes the configuration and does not touch the kernel. [`device`] makes the device without starting a
//! program. `ferrule-container-link` has the rest, which all plugins of one link share.

#![deny(missing_docs)]

pub mod config;
pub mod device;

use cni_common::plugin::{AddRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, Context as _, NetConf};
use ferrule_container_link::{Attaching, ContainerLink, ContainerPlugin, plugin};
use ferrule_kernel::netlink::{Link, LinkId, Socket, link};
use ferrule_kernel::tun;
use ferrule_kit::check::ensure;
use ferrule_kit::config::LinkConf;
use ferrule_kit::container::Container;
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::{ipam, remedy, socket};

use config::Conf;

/// The plugin.
pub const PLUGIN: Plugin = Plugin { tool: device::tool, add, check, status, ..plugin::<Tap>("tap") };

struct Tap;

impl ContainerPlugin for Tap {
    const KIND: &'static str = "tun";

    fn read(config: &NetConf, cni_args: &str) -> Result<ContainerLink, CniError> {
        Conf::read(config, cni_args).map(|conf| conf.link)
    }
}

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let mut attaching = Attaching::begin(call, &conf.link, None)?;
    let bridge = find_bridge(attaching.socket(), &conf.bridge)?;
    attaching.make_by(|attaching| {
        device::make(call.sandbox.netns()?, &conf, call.ifname)?;
        let mut undo = UndoStack::default();
        undo.push("make the tap device", link::delete(LinkId::Name(call.ifname)));
        let set_up = set_up(&mut attaching.container, &conf, bridge.as_ref(), &mut undo);
        set_up.inspect_err(|_| undo.undo(attaching.socket()))
    })
}

fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config, &call.env.args)?;
    let device = ferrule_container_link::check(call, &conf.link)?;
    let bridge = find_bridge(&mut socket::route_in(call.sandbox.netns()?)?, &conf.bridge)?;
    ensure(bridge.is_none_or(|bridge| device.master == Some(bridge.index)), || {
        format!("{:?} is not a port of bridge {:?}", device.name, conf.bridge)
    })
}

/// Checks that the configuration is valid, that the kernel has tap devices, and that IPAM is ready.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    Conf::read(call.config, "")?;
    tun::open().map_err(|error| {
        CniError::new(Code::NotAvailable, format!("the kernel has no links of type \"tap\": {error}"))
            .with_remedy(remedy::modules("tun"))
    })?;
    ipam::status(call)
}

/// The bridge of this name; `None` if the name is empty.
fn find_bridge(socket: &mut Socket, name: &str) -> Result<Option<Link>, CniError> {
    if name.is_empty() {
        return Ok(None);
    }
    let failed = || format!("failed to get bridge {name}");
    let found = socket.link(LinkId::Name(name)).context(failed)?;
    let missing = || CniError::internal(format!("{}: Link not found", failed()));
    let bridge = found.ok_or_else(|| missing().with_details("looked for the bridge in the container"))?;
    ensure(bridge.kind == "bridge", || format!("{}: {name:?} is not a bridge", failed()))?;
    Ok(Some(bridge))
}

/// Sets MAC address, MTU and master of the new device. `undo` removes the device.
fn set_up(
    container: &mut Container<'_>,
    conf: &Conf,
    bridge: Option<&Link>,
    undo: &mut UndoStack,
) -> Result<(), CniError> {
    let Link { index, name: ifname, .. } = container.created()?;
    let mut steps = Vec::new();
    let LinkConf { mac, mtu, .. } = conf.link.conf;
    if let Some(mac) = mac {
        let what = format!("failed to set the MAC address of {ifname:?} to {mac}");
        steps.push(Step::new(what, link::set_mac(index, mac)));
    }
    if mtu != 0 {
        let what = format!("failed to set the MTU of {ifname:?} to {mtu}");
        steps.push(Step::new(what, link::set_mtu(index, mtu)));
    }
    if let Some(bridge) = bridge {
        let what = format!("failed to set tap {ifname} as a port of bridge {}", bridge.name);
        steps.push(Step::new(what, link::set_master(index, bridge.index)));
    }
    undo.run(&mut container.socket, steps).map(drop).map_err(CniError::from)
}
