//! Decodes and checks the network configuration.

use cni_common::spec::args::bad_pair;
use cni_common::spec::ident::check_ifname;
use cni_common::spec::wire::WireRoute;
use cni_common::spec::{CniArgs, CniError, Code, Dns, Json, NetConf, Route};
use ferrule_kernel::netlink::Mac;
use serde::Deserialize;

/// The bridge's name if the configuration has none.
const DEFAULT_BRIDGE: &str = "cni0";

/// The MTU range in bytes that the kernel accepts for a bridge and a veth (`ETH_MIN_MTU`, `ETH_MAX_MTU`).
const MTU: std::ops::RangeInclusive<u32> = 68..=65535;

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
    /// MTU in bytes of the veth pair and of a new bridge; 0 for the kernel's default.
    pub mtu: u32,
    /// Hairpin mode of the port: the bridge may send a frame back through the port that it came from.
    pub hairpin: bool,
    /// Set the bridge to promiscuous mode.
    pub promiscuous: bool,
    /// The container's MAC address, if the configuration or CNI_ARGS asks for one.
    pub mac: Option<Mac>,
    /// Replaces the `dns` of IPAM's result.
    pub dns: Option<Dns>,
    /// The routes of the `ipam` section. Results before version 1.1.0 cannot carry all of their attributes.
    pub ipam_routes: Vec<Route>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    mtu: i64,
    hairpin_mode: bool,
    promisc_mode: bool,
    dns: WireDns,
    args: Args,
    runtime_config: WithMac,
    ipam: Ipam,

    ip_masq_backend: Option<Json>,
    vlan: Option<Json>,
    vlan_trunk: Option<Json>,
    preserve_default_vlan: Option<Json>,
    macspoofchk: Option<Json>,
    enabledad: Option<Json>,
    disable_container_interface: Option<Json>,
    port_isolation: Option<Json>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: WithMac,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WithMac {
    mac: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    routes: Vec<WireRoute>,
}

/// An empty list replaces IPAM's list; an absent one does not.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireDns {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl Wire {
    /// The reference's keys that this plugin does not support: name, configured value, and the value that
    /// disables the feature. Absence, `null`, `""` and `[]` disable it too.
    fn unsupported(&self) -> [(&'static str, &Option<Json>, &'static str); 8] {
        [
            ("ipMasqBackend", &self.ip_masq_backend, "\"nftables\""),
            ("vlan", &self.vlan, "0"),
            ("vlanTrunk", &self.vlan_trunk, "[]"),
            ("preserveDefaultVlan", &self.preserve_default_vlan, "false"),
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
        wire.refuse_unsupported()?;
        let invalid = CniError::invalid_config;
        let bridge = if wire.bridge.is_empty() { DEFAULT_BRIDGE } else { &wire.bridge };
        check_ifname(bridge)
            .map_err(|error| invalid(format!("bridge: {}", error.msg)).with_details(bridge))?;
        if wire.hairpin_mode && wire.promisc_mode {
            return Err(invalid("cannot set hairpin mode and promiscuous mode at the same time".to_owned()));
        }
        let mtu = match u32::try_from(wire.mtu) {
            Ok(mtu) if mtu == 0 || MTU.contains(&mtu) => mtu,
            _ => {
                let msg = format!(
                    "invalid mtu {} (must be 0 or between {} and {})",
                    wire.mtu,
                    MTU.start(),
                    MTU.end()
                );
                return Err(invalid(msg));
            }
        };
        let routes = wire.ipam.routes.iter().cloned().map(WireRoute::into_route);
        Ok(Conf {
            bridge: bridge.to_owned(),
            is_gateway: wire.is_gateway || wire.is_default_gateway,
            is_default_gateway: wire.is_default_gateway,
            force_address: wire.force_address,
            ip_masq: wire.ip_masq,
            mtu,
            hairpin: wire.hairpin_mode,
            promiscuous: wire.promisc_mode,
            mac: read_mac(&wire, cni_args)?,
            // Skip invalid routes: the IPAM plugin reports them.
            ipam_routes: routes.filter_map(Result::ok).collect(),
            dns: wire.dns.into_override(),
        })
    }
}

/// The container's MAC address. Precedence: `runtimeConfig.mac`, `args.cni.mac`, `MAC` of CNI_ARGS.
fn read_mac(wire: &Wire, cni_args: &str) -> Result<Option<Mac>, CniError> {
    let args = CniArgs::parse(cni_args, &["MAC"])?;
    let sources = [
        ("runtimeConfig.mac", wire.runtime_config.mac.as_str()),
        ("args.cni.mac", wire.args.cni.mac.as_str()),
        ("MAC", args.get("MAC").unwrap_or_default()),
    ];
    let Some((source, text)) = sources.into_iter().find(|(_, text)| !text.is_empty()) else {
        return Ok(None);
    };
    let mac = text.parse::<Mac>().and_then(|mac| {
        if mac.is_unicast() { Ok(mac) } else { Err(format!("address {text}: not a unicast address")) }
    });
    mac.map(Some).map_err(|why| match source {
        "MAC" => bad_pair(&format!("MAC={text}"), &why),
        key => CniError::invalid_config(format!("{key}: {why}")),
    })
}

impl WireDns {
    fn into_override(self) -> Option<Dns> {
        let is_set = self.nameservers.is_some()
            || !self.domain.is_empty()
            || self.search.is_some()
            || self.options.is_some();
        is_set.then(|| Dns {
            nameservers: self.nameservers.unwrap_or_default(),
            domain: self.domain,
            search: self.search.unwrap_or_default(),
            options: self.options.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(keys: &str, args: &str) -> Result<Conf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"bridge"{keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes())?, args)
    }

    fn read(keys: &str) -> Result<Conf, CniError> {
        read_with(keys, "")
    }

    #[test]
    fn defaults() {
        let conf = read("").unwrap();
        assert_eq!((conf.bridge.as_str(), conf.mtu, conf.is_gateway), ("cni0", 0, false));
        assert!(conf.mac.is_none() && conf.dns.is_none());
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
            ("preserveDefaultVlan", "true"),
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
    }

    #[test]
    fn invalid_values() {
        for (keys, part) in [
            (r#","mtu":67"#, "invalid mtu 67"),
            (r#","mtu":-1"#, "invalid mtu -1"),
            (r#","mtu":65536"#, "invalid mtu 65536"),
            (r#","bridge":"a b""#, "bridge: interface name contains"),
            (r#","bridge":"0123456789abcdef""#, "bridge: interface name is too long"),
            (
                r#","hairpinMode":true,"promiscMode":true"#,
                "cannot set hairpin mode and promiscuous mode at the same time",
            ),
            (r#","runtimeConfig":{"mac":"x"}"#, "runtimeConfig.mac: address x: invalid MAC address"),
            (
                r#","args":{"cni":{"mac":"01:00:00:00:00:01"}}"#,
                "args.cni.mac: address 01:00:00:00:00:01: not a unicast",
            ),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!(error.code, Code::InvalidConfig, "{keys}");
            assert!(error.msg.contains(part), "{}", error.msg);
        }
        assert_eq!(read(r#","mtu":"9000""#).unwrap_err().code, Code::Decode);
        assert_eq!(read_with("", "MAC=x").unwrap_err().code, Code::InvalidEnvironment);
        assert_eq!(read_with("", "IP=10.1.2.3").unwrap_err().code, Code::InvalidEnvironment);
    }

    #[test]
    fn mac_precedence() {
        let mac = |keys: &str, args: &str| read_with(keys, args).unwrap().mac.unwrap().to_string();
        let args = "IgnoreUnknown=1;MAC=02:00:00:00:00:01";
        let cni = r#","args":{"cni":{"mac":"02:00:00:00:00:02"}}"#;
        let runtime = r#","RuntimeConfig":{"mac":"02:00:00:00:00:03"}"#;
        assert_eq!(mac("", args), "02:00:00:00:00:01");
        assert_eq!(mac(cni, args), "02:00:00:00:00:02");
        assert_eq!(mac(&format!("{cni}{runtime}"), args), "02:00:00:00:00:03");
    }

    #[test]
    fn dns_replaces_ipams_if_any_key_is_set() {
        assert!(read(r#","dns":{"nameservers":null}"#).unwrap().dns.is_none());
        assert!(read(r#","dns":{"search":[]}"#).unwrap().dns.unwrap().is_empty());
        assert_eq!(read(r#","dns":{"domain":"x"}"#).unwrap().dns.unwrap().domain, "x");
    }
}
