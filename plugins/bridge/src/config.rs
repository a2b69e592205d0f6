//! The plugin's configuration: read, checked, and told apart from what it does not do (yet).

use cni_common::netlink::Mac;
use cni_common::spec::args::bad_pair;
use cni_common::spec::ident::check_ifname;
use cni_common::spec::wire::WireRoute;
use cni_common::spec::{CniArgs, CniError, Code, Dns, Json, NetConf, Route};
use serde::Deserialize;

/// The bridge's name where the configuration gives none.
const DEFAULT_BRIDGE: &str = "cni0";

/// What the kernel accepts as the MTU of a bridge and of a veth, in bytes (`ETH_MIN_MTU`, `ETH_MAX_MTU`).
const MTU: std::ops::RangeInclusive<u32> = 68..=65535;

/// A checked configuration.
#[derive(Debug, Default)]
pub struct Conf {
    /// The bridge's name.
    pub bridge: String,
    /// Give the bridge the address of each subnet's gateway, and forward between links.
    pub is_gateway: bool,
    /// Have a default route through that gateway; implies `is_gateway`.
    pub is_default_gateway: bool,
    /// Replace an address of the bridge that overlaps a gateway's subnet.
    pub force_address: bool,
    /// Masquerade what leaves the container's subnet.
    pub ip_masq: bool,
    /// MTU in bytes of the veth pair, and of the bridge when it is made; 0 for the kernel's choice.
    pub mtu: u32,
    /// Let frames leave through the port that they came in through.
    pub hairpin: bool,
    /// Have the bridge take in every frame.
    pub promiscuous: bool,
    /// The container's hardware address, if one is asked for.
    pub mac: Option<Mac>,
    /// Replaces IPAM's name resolution.
    pub dns: Option<Dns>,
    /// The routes in IPAM's configuration. Results before 1.1.0 cannot carry the attributes that these have.
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

/// An empty list that is there replaces IPAM's, one that is absent does not.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireDns {
    nameservers: Option<Vec<String>>,
    domain: String,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl Wire {
    /// The keys of the reference that this plugin does not serve, each with its value here and the one value that asks for
    /// nothing (besides absence, `null`, `""` and `[]`).
    fn unserved(&self) -> [(&'static str, &Option<Json>, &'static str); 8] {
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

    fn refuse_unserved(&self) -> Result<(), CniError> {
        for (key, value, neutral) in self.unserved() {
            let Some(value) = value else { continue };
            let text = serde_json::to_string(value).unwrap_or_default();
            if text != neutral && text != "\"\"" && text != "[]" {
                let msg = format!("unsupported field {key:?} with value {text}");
                return Err(CniError::new(Code::UnsupportedField, msg));
            }
        }
        Ok(())
    }
}

impl Conf {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Code 2 for a key of the reference that is not served, 4 for CNI_ARGS, 6 for what cannot be decoded, 7 for what is
    /// decoded but makes no sense.
    pub fn read(config: &NetConf, cni_args: &str) -> Result<Self, CniError> {
        let wire: Wire = config.decode()?;
        wire.refuse_unserved()?;
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
            // A route that the IPAM plugin refuses is for the IPAM plugin to complain about.
            ipam_routes: routes.filter_map(Result::ok).collect(),
            dns: wire.dns.into_override(),
        })
    }
}

/// The container's hardware address: `runtimeConfig.mac` over `args.cni.mac` over CNI_ARGS.
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
        if mac.is_unicast() {
            Ok(mac)
        } else {
            Err(format!("address {text}: not the address of one interface"))
        }
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
    fn default_gateway_is_a_gateway() {
        assert!(read(r#","isDefaultGateway":true"#).unwrap().is_gateway);
    }

    #[test]
    fn keys_of_the_reference_that_are_not_served_are_refused_by_name() {
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
            let named = error.msg.to_lowercase();
            assert!(named.contains(&key.to_lowercase()) && error.msg.contains(value), "{}", error.msg);
        }
    }

    #[test]
    fn values_that_ask_for_nothing_are_fine() {
        let neutral = r#","vlan":0,"vlanTrunk":[],"preserveDefaultVlan":false,"macspoofchk":false,"enabledad":false,
            "disableContainerInterface":false,"portIsolation":null,"ipMasqBackend":"nftables""#;
        assert!(read(neutral).is_ok());
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
                "args.cni.mac: address 01:00:00:00:00:01: not the",
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
    fn dns_replaces_if_any_part_is_there() {
        assert!(read(r#","dns":{"nameservers":null}"#).unwrap().dns.is_none());
        assert!(read(r#","dns":{"search":[]}"#).unwrap().dns.unwrap().is_empty());
        assert_eq!(read(r#","dns":{"domain":"x"}"#).unwrap().dns.unwrap().domain, "x");
    }
}
