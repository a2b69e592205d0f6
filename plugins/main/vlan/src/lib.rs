//! The `vlan` CNI plugin: an 802.1Q VLAN of a link of the node, as an interface of the container.
//!
//! It is only its configuration: `ferrule-container-link` has the rest, which all plugins of one link share.

#![deny(missing_docs)]

use cni_common::plugin::Plugin;
use cni_common::spec::{CniError, NetConf};
use ferrule_container_link::{ContainerLink, ContainerPlugin, plugin};
use ferrule_kernel::netlink::LinkData;
use serde::Deserialize;

/// The plugin.
pub const PLUGIN: Plugin = plugin::<Vlan>("vlan");

struct Vlan;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    master: String,
    vlan_id: i64,
}

impl ContainerPlugin for Vlan {
    const KIND: &'static str = "vlan";

    /// Like the reference, does not read CNI_ARGS, and takes a missing `vlanId` for 0.
    fn read(config: &NetConf, _: &str) -> Result<ContainerLink, CniError> {
        let wire: Wire = config.decode()?;
        if wire.master.is_empty() {
            let msg =
                "\"master\" field is required. It specifies the host interface name to create the VLAN for";
            return Err(CniError::invalid_config(msg));
        }
        let id = u16::try_from(wire.vlan_id).ok().filter(|id| *id <= 4094);
        let id = id.ok_or_else(|| {
            let msg = format!("invalid VLAN ID {} (must be between 0 and 4094 inclusive)", wire.vlan_id);
            CniError::invalid_config(msg)
        })?;
        let link = ContainerLink::read_child(Self::KIND, config, "")?;
        Ok(ContainerLink { data: LinkData::Vlan { id }, ..link })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_checked() {
        let read = |keys: &str| {
            let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"vlan"{keys}}}"#);
            Vlan::read(&NetConf::parse(text.into_bytes()).unwrap(), "")
        };
        for (keys, id) in
            [(r#","vlanId":4094"#, 4094), (r#","vlanId":0"#, 0), ("", 0), (r#","vlanId":null"#, 0)]
        {
            let link = read(&format!(r#","master":"up0"{keys}"#)).unwrap();
            assert_eq!(link.data, LinkData::Vlan { id });
        }
        for (keys, msg) in [
            (r#","vlanId":5"#, "\"master\" field is required. It specifies"),
            (
                r#","master":"up0","vlanId":4095"#,
                "invalid VLAN ID 4095 (must be between 0 and 4094 inclusive)",
            ),
            (r#","master":"up0","vlanId":-1"#, "invalid VLAN ID -1 "),
        ] {
            let error = read(keys).unwrap_err();
            assert!(error.code.number() == 7 && error.msg.starts_with(msg), "{error:?}");
        }
    }
}
