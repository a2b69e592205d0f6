//! Decodes and checks the network configuration.

use cni_common::spec::ident::{MAX_IFNAME, check_ifname};
use cni_common::spec::{CniError, NetConf};
use ferrule_kernel::netlink::Link;
use ferrule_kit::config::{LinkConf, LinkKeys};
use ferrule_kit::router_wait;
use ferrule_masquerade::Masquerade;
use serde::Deserialize;

use crate::vlan::VlanConf;

/// The bridge's name if the configuration has none.
const DEFAULT_BRIDGE: &str = "cni0";

/// A checked configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    /// The bridge's name, or an alternative name of it.
    pub bridge: String,
    /// Add each subnet's gateway address to the bridge, and enable forwarding.
    pub is_gateway: bool,
    /// Add a default route through that gateway; implies `is_gateway`.
    pub is_default_gateway: bool,
    /// Replace the addresses of the bridge that exclude a gateway's, see [`crate::gateways`].
    pub force_address: bool,
    /// Hairpin mode of the port: the bridge may send a frame back through the port that it came from.
    pub hairpin_mode: bool,
    /// Duplicate address detection in the container.
    #[serde(rename = "enabledad")]
    pub dad: bool,
    /// Leave the container's interface down.
    pub disable_container_interface: bool,
    /// Drop frames from the container that do not have its MAC address.
    #[serde(rename = "macspoofchk")]
    pub mac_spoof_check: bool,
    /// Isolation of the port: the bridge forwards no frame between two isolated ports.
    pub port_isolation: bool,
    /// Set the bridge to promiscuous mode.
    pub promisc_mode: bool,
    /// Masquerade the container's traffic in this way.
    #[serde(skip)]
    pub ip_masq: Option<Masquerade>,
    /// The VLANs of the port.
    #[serde(skip)]
    pub vlan: VlanConf,
    /// A link beside the bridge has the gateways' addresses.
    #[serde(skip)]
    pub has_vlan_gateway: bool,
    /// The keys that all interface plugins have. The MTU is that of the veth pair and of a new bridge.
    #[serde(skip)]
    pub link: LinkConf,
}

impl Conf {
    /// Reads the configuration and CNI_ARGS.
    ///
    /// # Errors
    /// - Code 4: CNI_ARGS is invalid.
    /// - Code 6: the configuration cannot be decoded.
    /// - Code 7: a decoded value is invalid.
    pub fn read(config: &NetConf, cni_args: &str) -> Result<Self, CniError> {
        let mut conf: Conf = config.decode()?;
        let link: LinkKeys = config.decode()?;
        conf.vlan = VlanConf::read(config)?;
        if conf.bridge.is_empty() {
            conf.bridge = DEFAULT_BRIDGE.to_owned();
        }
        // A longer one may be an alternative name of a bridge that exists.
        if conf.bridge.len() <= MAX_IFNAME {
            check_name("bridge", &conf.bridge)?;
        }
        if conf.hairpin_mode && conf.promisc_mode {
            let msg = "cannot set hairpin mode and promiscuous mode at the same time";
            return Err(CniError::invalid_config(msg));
        }
        let has_ipam = config.ipam_type()?.is_some();
        if conf.disable_container_interface && has_ipam {
            let msg = "cannot use IPAM when DisableContainerInterface flag is set";
            return Err(CniError::invalid_config(msg));
        }
        conf.is_gateway |= conf.is_default_gateway;
        conf.has_vlan_gateway = conf.is_gateway && conf.vlan.vlan != 0 && has_ipam;
        conf.ip_masq = Masquerade::read(config)?;
        conf.link = link.check(cni_args, "")?;
        if conf.disable_container_interface {
            router_wait::refuse(conf.link.wait_for_ra, "an interface that stays down")?;
        }
        Ok(conf)
    }

    /// Checks the names of the links that ADD may have to make. `bridge` is the bridge, if it exists.
    ///
    /// # Errors
    /// Code 7: the kernel refuses a name.
    pub fn check_names(&self, bridge: Option<&Link>) -> Result<(), CniError> {
        let name = match bridge {
            Some(bridge) => &bridge.name,
            None => {
                check_name("bridge", &self.bridge)?;
                &self.bridge
            }
        };
        if self.has_vlan_gateway {
            check_name("gateway of the VLAN", &self.vlan_gateway(name))?;
        }
        Ok(())
    }

    /// The name of the link that has the gateway's addresses of the VLAN, on the bridge with this name.
    pub fn vlan_gateway(&self, bridge: &str) -> String {
        format!("{bridge}.{}", self.vlan.vlan)
    }
}

fn check_name(what: &str, name: &str) -> Result<(), CniError> {
    check_ifname(name)
        .map_err(|error| CniError::invalid_config(format!("{what}: {}", error.msg)).with_details(name))
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
    fn a_bridge_that_exists_may_have_any_alternative_name() {
        let bridge = |name: &str| Link { name: name.to_owned(), ..Link::default() };
        let conf = read(r#","bridge":"the-bridge-of-rack-7","vlan":7,"isGateway":true,"ipam":{"type":"x"}"#);
        let conf = conf.unwrap();
        conf.check_names(Some(&bridge("br0"))).unwrap();
        conf.check_names(Some(&bridge("a-long-name-br"))).unwrap_err();
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
            (
                r#","disableContainerInterface":true,"waitForRA":5"#,
                "waitForRA: an interface that stays down hears no router",
            ),
            (r#","VLAN":4095"#, "invalid VLAN ID 4095"),
            (
                r#","bridge":"a-long-name","vlan":4000,"isGateway":true,"ipam":{"type":"x"}"#,
                "gateway of the VLAN: interface name is too long",
            ),
            (r#","ipMasqBackend":"x""#, "unknown ipmasq backend \"x\""),
        ] {
            let error = read(keys).and_then(|conf| conf.check_names(None)).unwrap_err();
            assert_eq!(error.code, Code::InvalidConfig, "{keys}");
            assert!(error.msg.contains(part), "{}", error.msg);
        }
    }
}
