//! Decodes and checks the network configuration.

use cni_common::spec::{CniError, Code, NetConf};
use ferrule_kit::config::{LinkConf, LinkKeys};
use ferrule_kit::veth;
use ferrule_masquerade::Masquerade;
use serde::Deserialize;

/// A checked configuration.
#[derive(Debug, Default)]
pub struct Conf {
    /// Masquerade the container's traffic in this way.
    pub masquerade: Option<Masquerade>,
    /// The kernel's type of the pair: `veth` or `netkit`.
    pub kind: &'static str,
    /// The keys that all interface plugins have.
    pub link: LinkConf,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    link_type: String,
}

impl Conf {
    /// Reads the configuration. Like the reference, does not read CNI_ARGS.
    ///
    /// # Errors
    /// Code 2 for another `linkType`, 6 if the configuration cannot be decoded, 7 if a value is invalid or there is
    /// no IPAM plugin.
    pub fn read(config: &NetConf) -> Result<Self, CniError> {
        let wire: Wire = config.decode()?;
        let link: LinkKeys = config.decode()?;
        if config.ipam_type()?.is_none() {
            return Err(CniError::invalid_config("no plugin name provided")
                .with_details("ptp needs an IPAM plugin: ipam.type is missing"));
        }
        let kind = match wire.link_type.as_str() {
            "" | veth::KIND => veth::KIND,
            veth::NETKIT => veth::NETKIT,
            other => {
                let msg = format!("unsupported field \"linkType\" with value {other:?}");
                return Err(
                    CniError::new(Code::UnsupportedField, msg).with_details("veth and netkit are supported")
                );
            }
        };
        Ok(Conf { masquerade: Masquerade::read(config)?, kind, link: link.check("", "")? })
    }
}

#[cfg(test)]
mod tests {
    use ferrule_masquerade::Backend;

    use super::*;

    fn read(keys: &str) -> Result<Conf, CniError> {
        let ipam = r#""ipam":{"type":"host-local"}"#;
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"ptp",{ipam}{keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes())?)
    }

    #[test]
    fn backends_and_link_types() {
        let conf = read("").unwrap();
        assert_eq!((conf.masquerade, conf.kind), (None, "veth"));
        assert_eq!(read(r#","ipMasq":true"#).unwrap().masquerade, Some(Masquerade::default()));
        let iptables = read(r#","ipMasq":true,"IPMASQBACKEND":"iptables","linkType":"netkit""#).unwrap();
        assert_eq!(
            (iptables.masquerade.map(|wanted| wanted.backend), iptables.kind),
            (Some(Backend::Iptables), "netkit")
        );
        assert_eq!(read(r#","ipMasqBackend":"iptables""#).unwrap().masquerade, None);
    }

    #[test]
    fn invalid_values() {
        for (keys, code, msg) in [
            (r#","ipMasqBackend":"foo""#, 7, r#"unknown ipmasq backend "foo""#),
            (r#","linkType":"macvlan""#, 2, r#"unsupported field "linkType" with value "macvlan""#),
            (r#","ipam":{}"#, 7, "no plugin name provided"),
            (r#","mtu":5"#, 7, "invalid mtu 5 (must be 0 or between 68 and 65535)"),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!((error.code.number(), error.msg.as_str()), (code, msg), "{keys}");
        }
    }
}
