//! The `macvlan` CNI plugin: a link with a MAC address of its own on a link of the node.
//!
//! `ferrule-container-link` has what all plugins of one link share, and the VLAN device between master and macvlans.

#![deny(missing_docs)]

use cni_common::plugin::{AddRequest, Attachment, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Failures, NetConf};
use ferrule_container_link::{Attaching, ContainerLink, ContainerPlugin, mode, plugin, vlan_device};
use ferrule_kernel::netlink::LinkData;
use ferrule_kernel::netlink::link_data::MACVLAN_MODES;
use ferrule_kit::steps::report_undo;
use serde::Deserialize;

/// The plugin.
pub const PLUGIN: Plugin = Plugin { add, gc, status, ..plugin::<Macvlan>("macvlan") };

struct Macvlan;

impl ContainerPlugin for Macvlan {
    const KIND: &'static str = "macvlan";

    fn read(config: &NetConf, cni_args: &str) -> Result<ContainerLink, CniError> {
        Conf::read(config, cni_args).map(Conf::of_check)
    }

    fn release(attachment: &Attachment<'_>) -> Result<(), CniError> {
        vlan_device::release(attachment)
    }
}

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let mut conf = Conf::read(call.config, &call.env.args)?;
    if !conf.link.find_parent(call)? {
        return Ok(ferrule_kubelet::skipped(call));
    }
    let mut attaching = Attaching::begin(call, &conf.link, None)?;
    let (Some(id), Some(master)) = (conf.vlan, attaching.parent.clone()) else {
        return attaching.make();
    };
    let attachment = Attachment::from(call);
    let configured = conf.link.parent.as_ref().map_or("", |parent| &parent.name);
    attaching.parent =
        Some(vlan_device::acquire(attaching.socket(), (&master, configured), id, &attachment)?);
    attaching.make().inspect_err(|_| report_undo(vlan_device::release(&attachment)))
}

fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    failures.keep(vlan_device::collect(call.config.name(), call.valid));
    failures.keep(ferrule_container_link::gc(call));
    failures.into_result()
}

fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    ferrule_container_link::status(call, &Conf::read(call.config, "")?.link)
}

const BRIDGE: u32 = 4;
const PASSTHRU: u32 = 8;

/// A checked configuration.
#[derive(Debug)]
struct Conf {
    /// The macvlan.
    link: ContainerLink,
    /// The VLAN of the master that it is made on.
    vlan: Option<u16>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    mode: String,
    bcqueuelen: u32,
    vlan: i64,
}

impl Conf {
    /// Reads the configuration and CNI_ARGS.
    ///
    /// # Errors
    /// Code 4 if CNI_ARGS is invalid, 6 if the configuration cannot be decoded, 7 if a value is invalid.
    fn read(config: &NetConf, cni_args: &str) -> Result<Self, CniError> {
        let wire: Wire = config.decode()?;
        let mut link = ContainerLink::read_child("macvlan", config, cni_args)?;
        link.read_resource(config)?;
        let mode = mode("macvlan mode", &MACVLAN_MODES, &wire.mode, BRIDGE)?;
        link.data = LinkData::Macvlan { mode, broadcast_queue: wire.bcqueuelen };
        if let (PASSTHRU, Some(mac)) = (mode, link.conf.mac) {
            let msg = format!("a macvlan of mode passthru has the MAC address of its master, not {mac}");
            return Err(
                CniError::invalid_config(msg).with_details("remove the MAC address, or use another mode")
            );
        }
        let vlan = u16::try_from(wire.vlan).ok().filter(|id| *id <= 4094);
        let invalid =
            || CniError::invalid_config(format!("invalid vlan {} (must be between 1 and 4094)", wire.vlan));
        let vlan = Some(vlan.ok_or_else(invalid)?).filter(|id| *id != 0);
        if vlan.is_some() && link.parent.as_ref().is_some_and(|parent| parent.in_container) {
            let msg = "vlan does not work with linkInContainer";
            return Err(
                CniError::invalid_config(msg).with_details("use the plugin vlan for a VLAN in the container")
            );
        }
        Ok(Conf { link, vlan })
    }

    /// The link that CHECK expects: with `vlan`, the parent is the VLAN device.
    fn of_check(self) -> ContainerLink {
        let mut link = self.link;
        if let Some(parent) = &mut link.parent {
            parent.vlan = self.vlan;
        }
        link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str) -> Result<Conf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"macvlan"{keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes())?, "")
    }

    #[test]
    fn modes_and_vlan() {
        let conf = read("").unwrap();
        assert_eq!((conf.link.data.to_string().as_str(), conf.vlan), ("mode bridge", None));
        let conf = read(r#","master":"up0","mode":"vepa","bcqueuelen":7,"vlan":4094"#).unwrap();
        assert_eq!(conf.link.data, LinkData::Macvlan { mode: 2, broadcast_queue: 7 });
        assert_eq!(conf.vlan, Some(4094));
        let parent = conf.of_check().parent.unwrap();
        assert_eq!((parent.name.as_str(), parent.vlan), ("up0", Some(4094)));
    }

    #[test]
    fn invalid_values() {
        for (keys, code, msg) in [
            (r#","mode":"source""#, 7, "unknown macvlan mode: \"source\""),
            (r#","vlan":4095"#, 7, "invalid vlan 4095 (must be between 1 and 4094)"),
            (r#","vlan":-1"#, 7, "invalid vlan -1 (must be between 1 and 4094)"),
            (r#","vlan":2,"linkInContainer":true"#, 7, "vlan does not work with linkInContainer"),
            (
                r#","mode":"passthru","mac":"02:00:00:00:00:01""#,
                7,
                "a macvlan of mode passthru has the MAC address of its master, not 02:00:00:00:00:01",
            ),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!((error.code.number(), error.msg.as_str()), (code, msg), "{keys}");
        }
        assert_eq!(read(r#","bcqueuelen":-1"#).unwrap_err().code.number(), 6);
    }
}
