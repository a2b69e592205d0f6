//! Decodes and checks the configuration.

use cni_common::spec::{CniError, Code, NetConf};
use ferrule_kernel::ip::IpFamily;
use serde::Deserialize;

use crate::conditions::{self, Matches, Syntax};
use crate::mapping::{Mapping, WireMapping};
use crate::mark::{self, Mark};
use crate::services;

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

    const fn syntax(self) -> Syntax {
        match self {
            Backend::Nftables => Syntax::Nft,
            Backend::Iptables => Syntax::Iptables,
        }
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
    /// The mark of packets to masquerade.
    pub mark: Mark,
    /// `ipvsMarkBit`: the bit of the packet mark with which iptables admits packets to host ports, see
    /// [`services`].
    pub services_bit: u8,
    /// `markMasqBit`.
    pub masq_bit: Option<u8>,
    /// `externalSetMarkChain`.
    pub external_chain: Option<String>,
    /// `conditionsV4` and `conditionsV6`.
    pub conditions: [Vec<String>; 2],
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
        let mark = wire.mark().map_err(bad)?;
        let backend = wire.backend().map_err(bad)?;
        let check = |(index, mapping): (usize, &WireMapping)| mapping.check(index);
        let mappings = wire.runtime_config.port_mappings.iter().enumerate().map(check);
        let conf = Conf {
            backend,
            snat: wire.snat.unwrap_or(true),
            masq_all: wire.masq_all,
            masq_bit: wire.mark_masq_bit.and_then(|bit| u8::try_from(bit).ok()),
            services_bit: wire.services_bit(&mark).map_err(bad)?,
            mark,
            external_chain: Some(wire.external_set_mark_chain).filter(|chain| !chain.is_empty()),
            conditions: [wire.conditions_v4, wire.conditions_v6],
            mappings: mappings.collect::<Result<_, _>>().map_err(bad)?,
        };
        match backend {
            Backend::Nftables => {
                IpFamily::ALL.into_iter().try_for_each(|family| conf.matches(family).map(drop))?;
            }
            Backend::Iptables => conf.check_iptables_conditions()?,
        }
        Ok(conf)
    }

    /// Parses the conditions of one family, which must be in nft syntax.
    ///
    /// # Errors
    /// Code 7 with the word that is not supported.
    pub fn matches(&self, family: IpFamily) -> Result<Matches, CniError> {
        let conditions = &self.conditions[family as usize];
        conditions::parse(conditions, family).map_err(|why| {
            let key = match family {
                IpFamily::V4 => "conditionsV4",
                IpFamily::V6 => "conditionsV6",
            };
            CniError::invalid_config(format!(
                "failed to parse config: {key} {:?}: {why}",
                conditions.join(" ")
            ))
        })
    }

    /// Refuses conditions that would break the lines for `iptables-restore`.
    fn check_iptables_conditions(&self) -> Result<(), CniError> {
        let is_bad = |word: &&String| word.contains(['\n', '\r', '\0']) || word.is_empty();
        match self.conditions.iter().flatten().find(is_bad) {
            None => Ok(()),
            Some(word) => {
                Err(CniError::invalid_config(format!("failed to parse config: invalid condition {word:?}")))
            }
        }
    }
}

impl WireConf {
    fn mark(&self) -> Result<Mark, String> {
        let external = Some(self.external_set_mark_chain.as_str()).filter(|chain| !chain.is_empty());
        match (self.mark_masq_bit, external) {
            (Some(_), Some(_)) => Err("Cannot specify externalSetMarkChain and markMasqBit".to_owned()),
            (Some(bit), None) => u8::try_from(bit)
                .ok()
                .and_then(Mark::bit)
                .ok_or_else(|| "MasqMarkBit must be between 0 and 31".to_owned()),
            (None, Some(chain)) => Mark::chain(chain),
            (None, None) => Ok(Mark::default()),
        }
    }

    fn services_bit(&self, mark: &Mark) -> Result<u8, String> {
        let bit = self.ipvs_mark_bit.unwrap_or(services::DEFAULT_BIT.into());
        let Some(bit) = u8::try_from(bit).ok().filter(|bit| *bit < 32) else {
            return Err(format!("ipvsMarkBit must be between 0 and 31, not {bit}"));
        };
        match bit {
            mark::DEFAULT_BIT => Err(format!("ipvsMarkBit {bit} is the bit of Kubernetes' own mark")),
            // The default must not make a configuration invalid that was valid before `ipvsMarkBit` existed.
            bit if mark.value() == 1 << bit && self.ipvs_mark_bit.is_some() => {
                Err(format!("ipvsMarkBit and markMasqBit are both {bit}"))
            }
            bit if mark.value() == 1 << bit => Ok(services::SECOND_BIT),
            bit => Ok(bit),
        }
    }

    /// `backend` if set, else the backend that the syntax of the conditions requires, else nf_tables.
    fn backend(&self) -> Result<Backend, String> {
        let lists = [("conditionsV4", &self.conditions_v4), ("conditionsV6", &self.conditions_v6)];
        let syntaxes = lists.map(|(key, list)| (key, conditions::syntax(list)));
        let backend = match self.backend.as_str() {
            "nftables" => Backend::Nftables,
            "iptables" => Backend::Iptables,
            "" if syntaxes.iter().any(|(_, syntax)| *syntax == Some(Syntax::Iptables)) => Backend::Iptables,
            "" => Backend::Nftables,
            other => return Err(format!("unrecognized backend {other:?}")),
        };
        let (own, other) = match backend {
            Backend::Nftables => (backend.syntax(), Backend::Iptables),
            Backend::Iptables => (backend.syntax(), Backend::Nftables),
        };
        let mut foreign: Vec<&str> = syntaxes
            .iter()
            .filter(|(_, syntax)| syntax.is_some_and(|syntax| syntax != own))
            .map(|(key, _)| *key)
            .collect();
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
            other.name(),
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
        assert_eq!((conf.mark.chain_name(), conf.mark.value()), ("KUBE-MARK-MASQ".to_owned(), 0x4000));
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
