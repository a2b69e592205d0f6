//! Decodes and checks the configuration: the keys of the top level, of `args.cni`, of `runtimeConfig` and of
//! CNI_ARGS.

use std::fmt;
use std::path::PathBuf;

use cni_common::spec::args::bad_pair;
use cni_common::spec::{CniArgs, CniError, Code, Json, NetConf};
use ferrule_kernel::netlink::Mac;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::attributes::Attributes;
use crate::offload::Switches;
use crate::sysctl::{self, Sysctl};

/// The default of `dataDir`.
const DEFAULT_DATA_DIR: &str = "/run/cni/tuning";

/// A checked configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    /// The sysctls in the order in which ADD writes them.
    pub sysctls: Vec<Sysctl>,
    /// The configured attributes of the link.
    pub link: Attributes,
    /// The offload features that the configuration switches.
    pub offload: Switches,
    /// The folder of the state files.
    pub data_dir: PathBuf,
}

/// The keys that the top level and `args.cni` have, beside those of [`Attributes`].
#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    sysctl: Pairs,
    mac: String,
    offload: Switches,
}

/// The other keys.
#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    data_dir: String,
    runtime_config: WithMac,
    args: Args,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct WithMac {
    mac: String,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Args {
    cni: Keys,
}

impl Conf {
    /// Whether the link stays as it is.
    pub fn keeps_link(&self) -> bool {
        self.link.is_empty() && self.offload.is_empty()
    }

    /// Reads the configuration and CNI_ARGS for the interface `ifname`. `args.cni` has precedence over
    /// `runtimeConfig`, CNI_ARGS and the top level, in this order.
    ///
    /// # Errors
    /// Code 4 for CNI_ARGS, 6 for a value of the wrong type, 7 for an invalid one.
    pub fn read(config: &NetConf, cni_args: &str, ifname: &str) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let Wire { data_dir, runtime_config, args: Args { cni } } = config.decode()?;
        let mac = mac(&keys.mac, cni_args, &runtime_config.mac, &cni.mac)?;
        let link = attributes(&config.decode()?).map_err(|why| CniError::new(Code::Decode, why))?;
        let sysctls = sysctl::merge(keys.sysctl.0, cni.sysctl.0, ifname)?;
        let mut offload = keys.offload;
        offload.extend(cni.offload);
        Ok(Conf { sysctls, link: link.configured(mac)?, offload, data_dir: folder(data_dir) })
    }
}

/// `dataDir` for DEL and GC, which must work with every configuration. Without a readable `dataDir` this is the
/// default.
pub fn data_dir_of(config: &NetConf) -> PathBuf {
    #[derive(Default, serde::Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Folder {
        data_dir: Option<Json>,
    }
    let json = config.decode::<Folder>().ok().and_then(|conf| conf.data_dir);
    folder(json.and_then(|json| json.decode().ok()).unwrap_or_default())
}

/// The attributes of `args.cni`, and those of the top level that are missing there.
fn attributes(json: &Json) -> Result<Attributes, String> {
    let top = Attributes::read(json)?;
    let cni = json.get("args").and_then(|args| args.get("cni")).map(Attributes::read).transpose()?;
    Ok(cni.unwrap_or_default().or(&top))
}

fn folder(text: String) -> PathBuf {
    if text.is_empty() { DEFAULT_DATA_DIR.into() } else { text.into() }
}

fn mac(top: &str, cni_args: &str, runtime: &str, cni: &str) -> Result<Option<Mac>, CniError> {
    let args = CniArgs::parse(cni_args, &["MAC"])?;
    let sources = [cni, runtime, args.get("MAC").unwrap_or_default(), top];
    let Some(position) = sources.iter().position(|text| !text.is_empty()) else { return Ok(None) };
    let text = sources[position];
    let mac = text.parse::<Mac>().and_then(|mac| {
        if mac.is_unicast() { Ok(mac) } else { Err(format!("address {text}: not a unicast address")) }
    });
    mac.map(Some).map_err(|why| match position {
        2 => bad_pair(&format!("MAC={text}"), &why),
        _ => CniError::invalid_config(format!("invalid args {text} for MAC addr: {why}")),
    })
}

/// The pairs of an object of strings, in the order of the document and with duplicate keys.
#[derive(Default)]
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collector;

        impl<'de> Visitor<'de> for Collector {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Collector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str, args: &str) -> Result<Conf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"tuning"{keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes())?, args, "eth0")
    }

    #[test]
    fn keyless_configuration() {
        let conf = read("", "IgnoreUnknown=1;K8S_POD_NAME=x").unwrap();
        assert!(conf.sysctls.is_empty() && conf.link.is_empty());
        assert_eq!(conf.data_dir, PathBuf::from("/run/cni/tuning"));
        let nothing =
            r#","mtu":0,"promisc":false,"mac":"","sysctl":{},"allmulti":null,"txQLen":null,"args":null"#;
        assert!(read(nothing, "").unwrap().link.is_empty());
    }

    #[test]
    fn args_replace_the_top_level_key_by_key() {
        let top = r#","mtu":1400,"promisc":true,"allmulti":true,"txQLen":5,
            "sysctl":{"net.core.somaxconn":"1","net.ipv4.conf.IFNAME.arp_filter":"1"}"#;
        let conf = read(top, "").unwrap();
        let keys =
            |keys: &str| -> Attributes { Attributes::read(&Json::parse(keys.as_bytes()).unwrap()).unwrap() };
        assert_eq!(conf.link, keys(r#"{"mtu":1400,"promisc":true,"allmulti":true,"txQLen":5}"#));
        let cni = r#","args":{"cni":{"mtu":0,"promisc":false,"allmulti":false,"txQLen":0,
            "sysctl":{"net/core/somaxconn":"2","net.ipv4.tcp_syncookies":null}}}"#;
        let conf = read(&format!("{top}{cni}"), "").unwrap();
        assert_eq!(conf.link, keys(r#"{"allmulti":false,"txQLen":0}"#));
        let sysctls: Vec<_> =
            conf.sysctls.iter().map(|one| (one.name.as_str(), one.value.as_str())).collect();
        let expected = [
            ("net/core/somaxconn", "2"),
            ("net/ipv4/conf/eth0/arp_filter", "1"),
            ("net/ipv4/tcp_syncookies", ""),
        ];
        assert_eq!(sysctls, expected);
        // The reference panics without a `sysctl` at the top level.
        assert_eq!(read(cni, "").unwrap().sysctls.len(), 2);
    }

    #[test]
    fn mac_precedence() {
        let mac = |keys: &str, args: &str| read(keys, args).unwrap().link.mac().unwrap().to_string();
        let top = r#","mac":"02-00-00-00-00-01""#;
        let runtime = format!(r#"{top},"RuntimeConfig":{{"mac":"02:00:00:00:00:03"}}"#);
        let cni = format!(r#"{runtime},"args":{{"cni":{{"mac":"0200.0000.000A"}}}}"#);
        assert_eq!(mac(top, ""), "02:00:00:00:00:01");
        assert_eq!(mac(top, "MAC=02:00:00:00:00:02"), "02:00:00:00:00:02");
        assert_eq!(mac(&runtime, "MAC=02:00:00:00:00:02"), "02:00:00:00:00:03");
        assert_eq!(mac(&cni, "MAC=02:00:00:00:00:02"), "02:00:00:00:00:0a");
    }

    #[test]
    fn invalid_values() {
        for (keys, code, part) in [
            (r#","mac":"zz""#, 7, "invalid args zz for MAC addr: address zz: invalid MAC address"),
            (r#","mac":"01:00:00:00:00:01""#, 7, "not a unicast address"),
            (r#","mtu":-1"#, 7, "invalid mtu -1"),
            (r#","txQLen":-1"#, 7, "invalid txQLen -1"),
            (r#","mtu":"1400""#, 6, "mtu: expected"),
            (r#","offload":{"tso":"off"}"#, 6, "offload.tso: expected"),
            (r#","sysctl":{"net.core.somaxconn":5}"#, 6, "expected a string, found number 5"),
            (r#","sysctl":["x"]"#, 6, "sysctl: expected"),
            (r#","sysctl":{"net.a":"1","net.a":"1"}"#, 7, "duplicated sysctl keys are not allowed"),
        ] {
            let error = read(keys, "").unwrap_err();
            assert_eq!(error.code.number(), code, "{keys}: {error}");
            assert!(error.msg.contains(part), "{keys}: {error}");
        }
        assert_eq!(read("", "MAC=zz").unwrap_err().code, Code::InvalidEnvironment);
        assert_eq!(read("", "FOO=1").unwrap_err().msg, r#"ARGS: unknown args ["FOO=1"]"#);
    }

    #[test]
    fn data_dir_of_a_broken_configuration() {
        let folder = |keys: &str| {
            let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"tuning"{keys}}}"#);
            data_dir_of(&NetConf::parse(text.into_bytes()).unwrap())
        };
        assert_eq!(folder(r#","dataDir":"/run/x","mtu":"x","sysctl":7"#), PathBuf::from("/run/x"));
        assert_eq!(folder(r#","dataDir":7"#), PathBuf::from(DEFAULT_DATA_DIR));
    }
}
