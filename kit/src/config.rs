//! The configuration keys that interface plugins share: `mtu`, the MAC address, `waitForRA`, `dns`, and `ipam.routes`.

use std::time::Duration;

use cni_common::spec::args::bad_pair;
use cni_common::spec::wire::WireRoute;
use cni_common::spec::{CniArgs, CniError, Dns, Route};
use ferrule_kernel::netlink::Mac;
use serde::Deserialize;

use crate::router_wait;

/// The MTU range in bytes that the kernel accepts for an Ethernet link (`ETH_MIN_MTU`, `ETH_MAX_MTU`).
const MTU: std::ops::RangeInclusive<u32> = 68..=65535;

/// The checked values.
#[derive(Debug, Default)]
pub struct LinkConf {
    /// MTU in bytes; 0 for the kernel's default.
    pub mtu: u32,
    /// The MAC address of the container's interface, if the configuration or CNI_ARGS asks for one.
    pub mac: Option<Mac>,
    /// How long ADD waits for an address from a router: the key `waitForRA`.
    pub wait_for_ra: Option<Duration>,
    /// Replaces the `dns` of IPAM's result.
    pub dns: Option<Dns>,
    /// The routes of the `ipam` section. Results before version 1.1.0 cannot carry all of their attributes.
    pub ipam_routes: Vec<Route>,
}

/// The decoded keys.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LinkKeys {
    mtu: i64,
    wait_for_ra: Option<i64>,
    dns: WireDns,
    args: Args,
    runtime_config: WithMac,
    ipam: Ipam,
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

impl LinkKeys {
    /// Checks the values, and reads CNI_ARGS. `mac` is the key `mac` of a plugin that has it; it counts last.
    ///
    /// # Errors
    /// Code 4 if CNI_ARGS is invalid. Code 7 if a decoded value is invalid.
    pub fn check(self, cni_args: &str, mac: &str) -> Result<LinkConf, CniError> {
        let mtu = u32::try_from(self.mtu).ok().filter(|mtu| *mtu == 0 || MTU.contains(mtu));
        let mtu = mtu.ok_or_else(|| {
            let (mtu, min, max) = (self.mtu, MTU.start(), MTU.end());
            CniError::invalid_config(format!("invalid mtu {mtu} (must be 0 or between {min} and {max})"))
        })?;
        Ok(LinkConf {
            mtu,
            mac: self.mac(cni_args, mac)?,
            wait_for_ra: router_wait::limit(self.wait_for_ra)?,
            dns: self.dns.into_override(),
            // Skip invalid routes: the IPAM plugin reports them.
            ipam_routes: self.ipam.routes.into_iter().filter_map(|route| route.into_route().ok()).collect(),
        })
    }

    /// Takes the MTU out, for a plugin that checks it by other rules.
    pub fn take_mtu(&mut self) -> i64 {
        std::mem::take(&mut self.mtu)
    }

    /// The MAC address. Precedence: `runtimeConfig.mac`, `args.cni.mac`, `MAC` of CNI_ARGS, the key `mac`.
    fn mac(&self, cni_args: &str, key: &str) -> Result<Option<Mac>, CniError> {
        let args = CniArgs::parse(cni_args, &["MAC"])?;
        let sources = [
            ("runtimeConfig.mac", self.runtime_config.mac.as_str()),
            ("args.cni.mac", self.args.cni.mac.as_str()),
            ("MAC", args.get("MAC").unwrap_or_default()),
            ("mac", key),
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
    use cni_common::spec::{Code, NetConf};

    use super::*;

    fn read(keys: &str, args: &str) -> Result<LinkConf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"t"{keys}}}"#);
        NetConf::parse(text.into_bytes())?.decode::<LinkKeys>()?.check(args, "")
    }

    #[test]
    fn defaults() {
        let conf = read("", "").unwrap();
        assert!(conf.mtu == 0 && conf.mac.is_none() && conf.dns.is_none() && conf.ipam_routes.is_empty());
    }

    #[test]
    fn invalid_values() {
        for (keys, part) in [
            (r#","mtu":67"#, "invalid mtu 67"),
            (r#","mtu":-1"#, "invalid mtu -1"),
            (r#","mtu":65536"#, "invalid mtu 65536"),
            (r#","waitForRA":61"#, "invalid waitForRA 61"),
            (r#","runtimeConfig":{"mac":"x"}"#, "runtimeConfig.mac: address x: invalid MAC address"),
            (
                r#","args":{"cni":{"mac":"01:00:00:00:00:01"}}"#,
                "args.cni.mac: address 01:00:00:00:00:01: not a unicast",
            ),
        ] {
            let error = read(keys, "").unwrap_err();
            assert_eq!(error.code, Code::InvalidConfig, "{keys}");
            assert!(error.msg.contains(part), "{}", error.msg);
        }
        assert_eq!(read(r#","waitForRA":true"#, "").unwrap_err().code, Code::Decode);
        assert_eq!(read(r#","mtu":"9000""#, "").unwrap_err().code, Code::Decode);
        assert_eq!(read("", "MAC=x").unwrap_err().code, Code::InvalidEnvironment);
        assert_eq!(read("", "IP=10.1.2.3").unwrap_err().code, Code::InvalidEnvironment);
    }

    #[test]
    fn mac_precedence() {
        let mac = |keys: &str, args: &str| read(keys, args).unwrap().mac.unwrap().to_string();
        let args = "IgnoreUnknown=1;MAC=02:00:00:00:00:01";
        let cni = r#","args":{"cni":{"mac":"02:00:00:00:00:02"}}"#;
        let runtime = r#","RuntimeConfig":{"mac":"02:00:00:00:00:03"}"#;
        assert_eq!(mac("", args), "02:00:00:00:00:01");
        assert_eq!(mac(cni, args), "02:00:00:00:00:02");
        assert_eq!(mac(&format!("{cni}{runtime}"), args), "02:00:00:00:00:03");
    }

    #[test]
    fn dns_replaces_ipams_if_any_key_is_set() {
        assert!(read(r#","dns":{"nameservers":null}"#, "").unwrap().dns.is_none());
        assert!(read(r#","dns":{"search":[]}"#, "").unwrap().dns.unwrap().is_empty());
        assert_eq!(read(r#","dns":{"domain":"x"}"#, "").unwrap().dns.unwrap().domain, "x");
    }
}
