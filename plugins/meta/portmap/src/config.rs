//! Decodes and checks the configuration.

use cni_common::spec::{CniError, Code, NetConf};
use ferrule_kernel::ip::IpFamily;
use serde::Deserialize;

use crate::conditions::{self, Matches};
use crate::mapping::{Mapping, WireMapping};
use crate::mark::{self, bit_number};

/// The default of `ipvsMarkBit`. Not used by Kubernetes (14, 15), the reference's portmap (13), Cilium (8 to
/// 11), Calico (16 to 31) and the AWS plugin (7).
pub const SERVICES_BIT: u8 = 12;
/// The default if `markMasqBit` is [`SERVICES_BIT`].
pub const SECOND_SERVICES_BIT: u8 = 11;

/// The kernel interface that holds the host ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nf_tables over netlink, in a table of our own.
    Nftables,
    /// The reference's iptables rules, applied by `iptables-restore`.
    Iptables,
}

impl Backend {
    const fn name(self) -> &'static str {
        match self {
            Backend::Nftables => "nftables",
            Backend::Iptables => "iptables",
        }
    }

    const fn other(self) -> Self {
        match self {
            Backend::Nftables => Backend::Iptables,
            Backend::Iptables => Backend::Nftables,
        }
    }

    /// The backend with whose syntax conditions begin, which the reference decides by the first character of the first string:
    /// arguments of `iptables`, or an expression of `nft`. `None` if that is empty or missing.
    fn of_conditions(conditions: &[String]) -> Option<Self> {
        let first = conditions.first()?.chars().next()?;
        Some(if matches!(first, '-' | '!') { Backend::Iptables } else { Backend::Nftables })
    }
}

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Conf {
    /// `backend`, or the backend that the syntax of the conditions requires.
    pub backend: Backend,
    /// `snat`: masquerade connections whose replies would not pass the node otherwise.
    pub snat: bool,
    /// `masqAll`: masquerade all connections to host ports.
    pub masq_all: bool,
    /// The bit of the mark of packets to masquerade.
    pub mark_bit: u8,
    /// `ipvsMarkBit`: the bit of the packet mark with which iptables admits packets to host ports, see
    /// [`services`](mod@crate::services).
    pub services_bit: u8,
    /// `markMasqBit`.
    pub masq_bit: Option<u8>,
    /// `externalSetMarkChain`.
    pub external_chain: Option<String>,
    /// `conditionsV4` and `conditionsV6`.
    pub conditions: [Vec<String>; 2],
    /// The same, decoded; for the nftables backend.
    pub matches: [Matches; 2],
    /// `runtimeConfig.portMappings`.
    pub mappings: Vec<Mapping>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireConf {
    backend: String,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    ipvs_mark_bit: Option<i64>,
    external_set_mark_chain: String,
    #[serde(rename = "conditionsV4")]
    conditions_v4: Vec<String>,
    #[serde(rename = "conditionsV6")]
    conditions_v6: Vec<String>,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    port_mappings: Vec<WireMapping>,
}

impl Conf {
    /// Decodes and checks the configuration.
    ///
    /// # Errors
    /// Code 6 for a value of the wrong type, 7 for an invalid value; with the reference's texts where the
    /// reference has one.
    pub fn read(config: &NetConf) -> Result<Self, CniError> {
        let wire: WireConf = config.decode()?;
        let bad = |why: String| CniError::invalid_config(format!("failed to parse config: {why}"));
        let mark_bit = wire.mark_bit().map_err(bad)?;
        let backend = wire.backend().map_err(bad)?;
        let check = |(index, mapping): (usize, &WireMapping)| mapping.check(index);
        let mappings = wire.runtime_config.port_mappings.iter().enumerate().map(check);
        let services_bit = wire.services_bit(mark_bit).map_err(bad)?;
        let mappings = mappings.collect::<Result<_, _>>().map_err(bad)?;
        let conditions = [wire.conditions_v4, wire.conditions_v6];
        let matches = match backend {
            Backend::Nftables => [
                matches("conditionsV4", &conditions[0], IpFamily::V4).map_err(bad)?,
                matches("conditionsV6", &conditions[1], IpFamily::V6).map_err(bad)?,
            ],
            Backend::Iptables => {
                // They would break the lines for `iptables-restore`.
                let is_bad = |word: &&String| word.contains(['\n', '\r', '\0']) || word.is_empty();
                if let Some(word) = conditions.iter().flatten().find(is_bad) {
                    return Err(bad(format!("invalid condition {word:?}")));
                }
                Default::default()
            }
        };
        Ok(Conf {
            backend,
            snat: wire.snat.unwrap_or(true),
            masq_all: wire.masq_all,
            masq_bit: wire.mark_masq_bit.and_then(bit_number),
            services_bit,
            mark_bit,
            external_chain: Some(wire.external_set_mark_chain).filter(|chain| !chain.is_empty()),
            conditions,
            matches,
            mappings,
        })
    }
}

/// Decodes the conditions of one family, which must be in nft syntax. The error names the word that is not supported.
fn matches(key: &str, conditions: &[String], family: IpFamily) -> Result<Matches, String> {
    let parsed = conditions::parse(conditions, family);
    parsed.map_err(|why| format!("{key} {:?}: {why}", conditions.join(" ")))
}

impl WireConf {
    fn mark_bit(&self) -> Result<u8, String> {
        let external = Some(self.external_set_mark_chain.as_str()).filter(|chain| !chain.is_empty());
        match (self.mark_masq_bit, external) {
            (Some(_), Some(_)) => Err("Cannot specify externalSetMarkChain and markMasqBit".to_owned()),
            (Some(bit), None) => {
                bit_number(bit).ok_or_else(|| "MasqMarkBit must be between 0 and 31".to_owned())
            }
            (None, Some(chain)) => mark::check_chain(chain).map(|()| mark::DEFAULT_BIT),
            (None, None) => Ok(mark::DEFAULT_BIT),
        }
    }

    fn services_bit(&self, mark_bit: u8) -> Result<u8, String> {
        let bit = self.ipvs_mark_bit.unwrap_or(SERVICES_BIT.into());
        match bit_number(bit).ok_or_else(|| format!("ipvsMarkBit must be between 0 and 31, not {bit}"))? {
            mark::DEFAULT_BIT => Err(format!("ipvsMarkBit {bit} is the bit of Kubernetes' own mark")),
            bit if bit != mark_bit => Ok(bit),
            // The default must not make a configuration of the reference invalid.
            _ if self.ipvs_mark_bit.is_none() => Ok(SECOND_SERVICES_BIT),
            bit => Err(format!("ipvsMarkBit and markMasqBit are both {bit}")),
        }
    }

    /// `backend` if set, else the backend that the syntax of the conditions requires, else nf_tables.
    fn backend(&self) -> Result<Backend, String> {
        let lists = [("conditionsV4", &self.conditions_v4), ("conditionsV6", &self.conditions_v6)];
        let syntaxes = lists.map(|(key, list)| (key, Backend::of_conditions(list)));
        let backend = match self.backend.as_str() {
            "nftables" => Backend::Nftables,
            "iptables" => Backend::Iptables,
            "" if syntaxes.iter().any(|(_, syntax)| *syntax == Some(Backend::Iptables)) => Backend::Iptables,
            "" => Backend::Nftables,
            other => return Err(format!("unrecognized backend {other:?}")),
        };
        let is_foreign = |(key, syntax): &(&'static str, Option<Backend>)| {
            syntax.is_some_and(|syntax| syntax != backend).then_some(*key)
        };
        let mut foreign: Vec<&str> = syntaxes.iter().filter_map(is_foreign).collect();
        if foreign.is_empty() {
            return Ok(backend);
        }
        // Both backends have this key here. The reference counts it to iptables, and its tests compare the text.
        if backend == Backend::Nftables && !self.external_set_mark_chain.is_empty() {
            foreign.insert(0, "externalSetMarkChain");
        }
        Err(format!(
            "{} backend was requested but configuration contains {}-specific options [{}]",
            backend.name(),
            backend.other().name(),
            foreign.join(" ")
        ))
    }
}

/// Whether a DEL configuration has mappings; its other keys, and the mappings themselves, may be invalid. DEL
/// starts no process for a container without mappings.
pub fn has_mappings(config: &NetConf) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct WireConf {
        runtime_config: RuntimeConfig,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct RuntimeConfig {
        port_mappings: Vec<cni_common::spec::Json>,
    }
    // A value of the wrong type counts as mappings: the ADD may have had a valid one.
    config.decode::<WireConf>().map_or(true, |wire| !wire.runtime_config.port_mappings.is_empty())
}

/// The error of a call without `prevResult`, with the reference's text.
pub fn not_chained(msg: &str) -> CniError {
    CniError::new(Code::InvalidConfig, msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netconf(keys: &str) -> NetConf {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"portmap"{keys}}}"#);
        NetConf::parse(text.into_bytes()).unwrap()
    }

    fn read(keys: &str) -> Result<Conf, CniError> {
        Conf::read(&netconf(keys))
    }

    #[test]
    fn defaults() {
        let conf = read("").unwrap();
        assert_eq!((conf.backend, conf.snat, conf.masq_all), (Backend::Nftables, true, false));
        assert_eq!(conf.mark_bit, 14);
        assert!(conf.mappings.is_empty());
        assert_eq!((conf.services_bit, read(r#","ipvsMarkBit":3"#).unwrap().services_bit), (12, 3));
        assert_eq!(read(r#","markMasqBit":12"#).unwrap().services_bit, 11, "not the bit for masquerading");
        assert!(read(r#","snat":null,"externalSetMarkChain":"","markMasqBit":null"#).unwrap().snat);
    }

    #[test]
    fn port_mapping_keys_of_containerd_and_lower_case() {
        for keys in [
            r#""HostPort":8080,"ContainerPort":80,"Protocol":"TCP","HostIP":"""#,
            r#""hostPort":8080,"containerPort":80,"protocol":"tcp""#,
        ] {
            let conf = read(&format!(r#","runtimeConfig":{{"PortMappings":[{{{keys}}}]}}"#)).unwrap();
            assert_eq!((conf.mappings[0].host_port, conf.mappings[0].container_port), (8080, 80));
        }
    }

    #[test]
    fn backend_is_the_requested_one_or_that_of_the_conditions() {
        let backend = |keys| read(keys).unwrap().backend;
        assert_eq!(backend(r#","backend":"iptables""#), Backend::Iptables);
        assert_eq!(backend(r#","conditionsV4":["!","-s","10.0.0.0/8"]"#), Backend::Iptables);
        assert_eq!(backend(r#","conditionsV6":["ip6 saddr fd00::1"]"#), Backend::Nftables);
        assert_eq!(
            backend(r#","backend":"nftables","externalSetMarkChain":"KUBE-MARK-MASQ""#),
            Backend::Nftables
        );
    }

    #[test]
    fn first_character_of_conditions_decides() {
        let of = |first: &str| Backend::of_conditions(&[first.to_owned(), "-x".to_owned()]);
        assert_eq!(["-d", "!"].map(of), [Some(Backend::Iptables); 2]);
        assert_eq!((of("ip"), of("")), (Some(Backend::Nftables), None));
        assert_eq!(Backend::of_conditions(&[]), None);
    }

    #[test]
    fn invalid_values_have_the_references_texts() {
        for (keys, msg) in [
            (
                r#","markMasqBit":5,"externalSetMarkChain":"X""#,
                "Cannot specify externalSetMarkChain and markMasqBit",
            ),
            (r#","markMasqBit":32"#, "MasqMarkBit must be between 0 and 31"),
            (r#","markMasqBit":-1"#, "MasqMarkBit must be between 0 and 31"),
            (r#","ipvsMarkBit":32"#, "ipvsMarkBit must be between 0 and 31, not 32"),
            (r#","ipvsMarkBit":14"#, "ipvsMarkBit 14 is the bit of Kubernetes' own mark"),
            (r#","ipvsMarkBit":5,"markMasqBit":5"#, "ipvsMarkBit and markMasqBit are both 5"),
            (r#","backend":"ebpf""#, "unrecognized backend \"ebpf\""),
            (
                r#","backend":"nftables","conditionsV4":["-s","10.0.0.1"],"conditionsV6":["!"]"#,
                "nftables backend was requested but configuration contains iptables-specific options [conditionsV4 conditionsV6]",
            ),
            (
                r#","backend":"iptables","conditionsV6":["ip6 saddr fd00::1"]"#,
                "iptables backend was requested but configuration contains nftables-specific options [conditionsV6]",
            ),
            (
                r#","conditionsV4":["tcp dport 80"]"#,
                "conditionsV4 \"tcp dport 80\": \"tcp\" is not supported",
            ),
            (r#","conditionsV4":["-s","a\nb"]"#, "invalid condition \"a\\nb\""),
            (
                r#","runtimeConfig":{"portMappings":[{"hostPort":0,"containerPort":80,"protocol":"tcp"}]}"#,
                "Invalid host port number: 0",
            ),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!(error.code, Code::InvalidConfig, "{keys}");
            assert!(error.msg.starts_with(&format!("failed to parse config: {msg}")), "{}", error.msg);
        }
    }

    #[test]
    fn decode_error_names_the_key() {
        for (mapping, place) in [(r#"{"hostPort":"80"}"#, "ostPort"), (r#"{"hostPort":8e1}"#, "ostPort")] {
            let error = read(&format!(r#","runtimeConfig":{{"portMappings":[{mapping}]}}"#)).unwrap_err();
            assert_eq!(error.code, Code::Decode);
            assert!(error.msg.contains("portMappings[0]") && error.msg.contains(place), "{}", error.msg);
        }
    }

    #[test]
    fn has_mappings_accepts_invalid_values() {
        for (keys, there_are) in [
            ("", false),
            (r#","runtimeConfig":{"portMappings":[]}"#, false),
            (r#","runtimeConfig":null"#, false),
            (r#","runtimeConfig":{"portMappings":[{"hostPort":"x"}]}"#, true),
            (r#","runtimeConfig":7"#, true),
        ] {
            assert_eq!(has_mappings(&netconf(keys)), there_are, "{keys}");
        }
    }
}
