//! Decodes and checks the network configuration.

use cni_common::spec::ident::check_ifname;
use cni_common::spec::{CniError, Code, Json, NetConf};
use ferrule_kit::config::{LinkConf, LinkKeys};
use serde::Deserialize;

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
    /// Masquerade traffic that leaves the container's subnet.
    pub ip_masq: bool,
    /// Hairpin mode of the port: the bridge may send a frame back through the port that it came from.
    pub hairpin: bool,
    /// Set the bridge to promiscuous mode.
    pub promiscuous: bool,
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
    hairpin_mode: bool,
    promisc_mode: bool,

    ip_masq_backend: Option<Json>,
    vlan: Option<Json>,
    vlan_trunk: Option<Json>,
    /// Decoded for its type alone: it changes what `vlan` and `vlanTrunk` do, and those are refused.
    #[serde(rename = "preserveDefaultVlan")]
    _preserve_default_vlan: bool,
    macspoofchk: Option<Json>,
    enabledad: Option<Json>,
    disable_container_interface: Option<Json>,
    port_isolation: Option<Json>,
}

impl Wire {
    /// The reference's keys that this plugin does not support: name, configured value, and the value that
    /// disables the feature. Absence, `null`, `""` and `[]` disable it too.
    fn unsupported(&self) -> [(&'static str, &Option<Json>, &'static str); 7] {
        [
            ("ipMasqBackend", &self.ip_masq_backend, "\"nftables\""),
            ("vlan", &self.vlan, "0"),
            ("vlanTrunk", &self.vlan_trunk, "[]"),
            ("macspoofchk", &self.macspoofchk, "false"),
            ("enabledad", &self.enabledad, "false"),
            ("disableContainerInterface", &self.disable_container_interface, "false"),
            ("portIsolation", &self.port_isolation, "false"),
        ]
    }

    fn refuse_unsupported(&self) -> Result<(), CniError> {
        for (key, value, off) in self.unsupported() {
            let Some(value) = value else { continue };
            let text = serde_json::to_string(value).unwrap_or_default();
            if text != off && text != "\"\"" && text != "[]" {
                let msg = format!("unsupported field {key:?} with value {text}");
                return Err(CniError::new(Code::UnsupportedField, msg));
            }
        }
        Ok(())
    }
}

impl Conf {
    /// Reads the configuration and CNI_ARGS.
    ///
    /// # Errors
    /// - Code 2: an unsupported key of the reference has a value that enables it.
    /// - Code 4: CNI_ARGS is invalid.
    /// - Code 6: the configuration cannot be decoded.
    /// - Code 7: a decoded value is invalid.
    pub fn read(config: &NetConf, cni_args: &str) -> Result<Self, CniError> {
        let wire: Wire = config.decode()?;
        let link: LinkKeys = config.decode()?;
        wire.refuse_unsupported()?;
        let invalid = CniError::invalid_config;
        let bridge = if wire.bridge.is_empty() { DEFAULT_BRIDGE } else { &wire.bridge };
        check_ifname(bridge)
            .map_err(|error| invalid(format!("bridge: {}", error.msg)).with_details(bridge))?;
        if wire.hairpin_mode && wire.promisc_mode {
            return Err(invalid("cannot set hairpin mode and promiscuous mode at the same time".to_owned()));
        }
        Ok(Conf {
            bridge: bridge.to_owned(),
            is_gateway: wire.is_gateway || wire.is_default_gateway,
            is_default_gateway: wire.is_default_gateway,
            force_address: wire.force_address,
            ip_masq: wire.ip_masq,
            hairpin: wire.hairpin_mode,
            promiscuous: wire.promisc_mode,
            link: link.check(cni_args)?,
        })
    }
}

#[cfg(test)]
mod tests {
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
    fn unsupported_keys_are_refused_by_name() {
        for (key, value) in [
            ("vlan", "100"),
            ("vlanTrunk", r#"[{"id":1}]"#),
            ("macspoofchk", "true"),
            ("enabledad", "true"),
            ("disableContainerInterface", "true"),
            ("portIsolation", "true"),
            ("ipMasqBackend", r#""iptables""#),
            ("vlan", r#""x""#),
            ("VLAN", "5"),
        ] {
            let error = read(&format!(r#","{key}":{value}"#)).unwrap_err();
            assert_eq!(error.code, Code::UnsupportedField, "{key}");
            let lowercase = error.msg.to_lowercase();
            assert!(lowercase.contains(&key.to_lowercase()) && error.msg.contains(value), "{}", error.msg);
        }
    }

    #[test]
    fn unsupported_keys_may_be_off() {
        let off = r#","vlan":0,"vlanTrunk":[],"preserveDefaultVlan":false,"macspoofchk":false,"enabledad":false,
            "disableContainerInterface":false,"portIsolation":null,"ipMasqBackend":"nftables""#;
        assert!(read(off).is_ok());
        assert!(read(r#","ipMasqBackend":"","vlanTrunk":null"#).is_ok());
        // Without `vlan` it asks for nothing.
        assert!(read(r#","preserveDefaultVlan":true"#).is_ok());
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
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!(error.code, Code::InvalidConfig, "{keys}");
            assert!(error.msg.contains(part), "{}", error.msg);
        }
    }
}
