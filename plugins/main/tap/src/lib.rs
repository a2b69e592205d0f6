//! The `tap` CNI plugin: a persistent tap device in the container, for a virtual machine.
//!
//! [`config`] decodes the configuration and does not touch the kernel. [`device`] makes the device without starting a
//! program. `ferrule-kit` has the rest, which all plugins of one link share.

#![deny(missing_docs)]

pub mod config;
pub mod device;

use std::process::ExitCode;

use cni_common::plugin::{AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, Context as _};
use ferrule_kernel::netlink::{Link, LinkId, Socket, link};
use ferrule_kernel::tun;
use ferrule_kit::container_link::{self, Attaching};
use ferrule_kit::steps::{Step, UndoStack};
use ferrule_kit::{check, ipam, remedy, socket};

use config::Conf;

/// The plugin.
pub struct Tap;

impl Plugin for Tap {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn tool(&self, arguments: &[String]) -> Option<ExitCode> {
        device::tool(arguments)
    }

    fn add(&self, call: &AddRequest<'_>) -> Result<AddResult, CniError> {
        let conf = Conf::read(call.config, &call.env.args, call.ifname)?;
        let ipam = ipam::of_add(call)?;
        let mut attaching = Attaching::begin(call, &conf.link)?;
        let bridge = find_bridge(attaching.socket(), &conf.bridge)?;
        attaching.make_by(ipam.as_ref(), |attaching| {
            device::make(call.sandbox.netns()?, &conf)?;
            let mut undo = UndoStack::default();
            undo.push("make the tap device", link::delete(LinkId::Name(call.ifname)));
            let made = set_up(attaching.socket(), call.ifname, &conf, bridge.as_ref(), &mut undo);
            made.inspect_err(|_| undo.undo(attaching.socket()))
        })
    }

    fn check(&self, call: &AddRequest<'_>) -> Result<(), CniError> {
        let conf = Conf::read(call.config, &call.env.args, call.ifname)?;
        let device = container_link::check(call, &conf.link)?;
        let bridge = find_bridge(&mut socket::route_in(call.sandbox.netns()?)?, &conf.bridge)?;
        check::ensure(bridge.is_none_or(|bridge| device.master == Some(bridge.index)), || {
            format!("{:?} is not a port of bridge {:?}", device.name, conf.bridge)
        })
    }

    fn del(&self, call: &DelRequest<'_>) -> Result<(), CniError> {
        let wanted = || Conf::read(call.config, "", call.ifname).ok().map(|conf| conf.link);
        container_link::del(call, "tun", wanted, |_| Ok(()))
    }

    fn gc(&self, call: &GcRequest<'_>) -> Result<(), CniError> {
        container_link::gc(call, |_| Ok(()))
    }

    /// Checks that the configuration is valid, that the kernel has tap devices, and that IPAM is ready.
    fn status(&self, call: &StatusRequest<'_>) -> Result<(), CniError> {
        Conf::read(call.config, "", "")?;
        tun::open().map_err(|error| {
            CniError::new(Code::NotAvailable, format!("the kernel has no links of type \"tap\": {error}"))
                .with_remedy(remedy::modules("tun"))
        })?;
        ipam::status(call)
    }
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
    check::ensure(bridge.kind == "bridge", || format!("{}: {name:?} is not a bridge", failed()))?;
    Ok(Some(bridge))
}

/// Sets MAC address, MTU and master of the new device. `undo` removes the device.
fn set_up(
    socket: &mut Socket,
    ifname: &str,
    conf: &Conf,
    bridge: Option<&Link>,
    undo: &mut UndoStack,
) -> Result<(), CniError> {
    let made = socket.link(LinkId::Name(ifname)).context(|| format!("failed to refetch tap {ifname:?}"))?;
    let missing = || CniError::internal(format!("tap {ifname:?} disappeared from the container"));
    let index = made.ok_or_else(missing)?.index;
    let mut steps = Vec::new();
    if let Some(mac) = conf.link.conf.mac {
        steps.push(Step::new(
            format!("failed to set the MAC address of {ifname:?} to {mac}"),
            link::set_mac(index, mac),
        ));
    }
    if conf.link.conf.mtu != 0 {
        let mtu = conf.link.conf.mtu;
        steps.push(Step::new(
            format!("failed to set the MTU of {ifname:?} to {mtu}"),
            link::set_mtu(index, mtu),
        ));
    }
    if let Some(bridge) = bridge {
        let what = format!("failed to set tap {ifname} as a port of bridge {}", bridge.name);
        steps.push(Step::new(what, link::set_master(index, bridge.index)));
    }
    undo.run(socket, steps)?;
    Ok(())
}
