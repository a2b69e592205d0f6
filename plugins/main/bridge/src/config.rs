//! Decodes and checks the network configuration.

use cni_common::spec::ident::check_ifname;
use cni_common::spec::{CniError, NetConf};
use ferrule_kit::config::{LinkConf, LinkKeys};
use ferrule_kit::masquerade::Backend;
use serde::Deserialize;

use crate::vlan::{Trunk, VlanConf};
use crate::vlan_gateway;

/// The bridge's name if the configuration has none.
const DEFAULT_BRIDGE: &str = "cni0";

/// A checked configuration.
#[derive(Debug, Default)]
pub struct Conf {
    /// The bridge's name.
    pub bridge: String,
    /// Add each subnet's gateway address to the bridge, and enable forwarding.
    pub is_gateway: bool,
    /// Add a default route through that gateway; implies `is_gateway`.
    pub is_default_gateway: bool,
    /// Replace a bridge address whose subnet overlaps a gateway's subnet.
    pub force_address: bool,
    /// Masquerade traffic that leaves the container's subnet, with this backend.
    pub ip_masq: Option<Backend>,
    /// Hairpin mode of the port: the bridge may send a frame back through the port that it came from.
    pub hairpin: bool,
    /// Duplicate address detection in the container.
    pub dad: bool,
    /// Leave the container's interface down.
    pub container_down: bool,
    /// Drop frames from the container that do not have its MAC address.
    pub mac_spoof_check: bool,
    /// Isolation of the port: the bridge forwards no frame between two isolated ports.
    pub port_isolation: bool,
    /// Set the bridge to promiscuous mode.
    pub promiscuous: bool,
    /// The VLANs of the port.
    pub vlan: VlanConf,
    /// The keys that all interface plugins have. The MTU is that of the veth pair and of a new bridge.
    pub link: LinkConf,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    hairpin_mode: bool,
    promisc_mode: bool,
    port_isolation: bool,
    enabledad: bool,
    macspoofchk: bool,
    disable_container_interface: bool,
    vlan: i64,
    vlan_trunk: Trunk,
    preserve_default_vlan: bool,
}

impl Conf {
    /// Reads the configuration and CNI_ARGS.
    ///
    /// # Errors
    /// - Code 4: CNI_ARGS is invalid.
    /// - Code 6: the configuration cannot be decoded.
    /// - Code 7: a decoded value is invalid.
    pub fn read(config: &NetConf, cni_args: &str) -> Result<Self, CniError> {
        let wire: Wire = config.decode()?;
        let link: LinkKeys = config.decode()?;
        let vlan = VlanConf::new(wire.vlan, wire.vlan_trunk, wire.preserve_default_vlan)?;
        let invalid = CniError::invalid_config;
        let bridge = if wire.bridge.is_empty() { DEFAULT_BRIDGE } else { &wire.bridge };
        check_ifname(bridge)
            .map_err(|error| invalid(format!("bridge: {}", error.msg)).with_details(bridge))?;
        if wire.hairpin_mode && wire.promisc_mode {
            return Err(invalid("cannot set hairpin mode and promiscuous mode at the same time".to_owned()));
        }
        if wire.disable_container_interface && config.ipam_type()?.is_some() {
            return Err(invalid("cannot use IPAM when DisableContainerInterface flag is set".to_owned()));
        }
        let is_gateway = wire.is_gateway || wire.is_default_gateway;
        if is_gateway && vlan.vlan != 0 && config.ipam_type()?.is_some() {
            let name = vlan_gateway::name(bridge, vlan.vlan);
            check_ifname(&name).map_err(|error| {
                invalid(format!("gateway of the VLAN: {}", error.msg)).with_details(&name)
            })?;
        }
        let backend = Backend::parse(wire.ip_masq_backend.as_deref().unwrap_or_default())?;
        Ok(Conf {
            bridge: bridge.to_owned(),
            is_gateway,
            is_default_gateway: wire.is_default_gateway,
            force_address: wire.force_address,
            ip_masq: wire.ip_masq.then_some(backend),
            hairpin: wire.hairpin_mode,
            dad: wire.enabledad,
            container_down: wire.disable_container_interface,
            mac_spoof_check: wire.macspoofchk,
            port_isolation: wire.port_isolation,
            promiscuous: wire.promisc_mode,
            vlan,
            link: link.check(cni_args)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Code;

    use super::*;

    fn read(keys: &str) -> Result<Conf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"bridge"{keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes())?, "")
    }

    #[test]
    fn defaults() {
        let conf = read("").unwrap();
        assert_eq!((conf.bridge.as_str(), conf.is_gateway), ("cni0", false));
    }

    #[test]
    fn is_default_gateway_implies_is_gateway() {
        assert!(read(r#","isDefaultGateway":true"#).unwrap().is_gateway);
    }

    #[test]
    fn invalid_values() {
        for (keys, part) in [
            (r#","bridge":"a b""#, "bridge: interface name contains"),
            (r#","bridge":"0123456789abcdef""#, "bridge: interface name is too long"),
            (
                r#","hairpinMode":true,"promiscMode":true"#,
                "cannot set hairpin mode and promiscuous mode at the same time",
            ),
            (r#","mtu":67"#, "invalid mtu 67"),
            (
                r#","disableContainerInterface":true,"ipam":{"type":"host-local"}"#,
                "cannot use IPAM when DisableContainerInterface flag is set",
            ),
            (r#","VLAN":4095"#, "invalid VLAN ID 4095"),
            (
                r#","bridge":"a-long-name","vlan":4000,"isGateway":true,"ipam":{"type":"x"}"#,
                "gateway of the VLAN: interface name is too long",
            ),
            (r#","ipMasqBackend":"x""#, "unknown ipmasq backend \"x\""),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!(error.code, Code::InvalidConfig, "{keys}");
            assert!(error.msg.contains(part), "{}", error.msg);
        }
    }
}
