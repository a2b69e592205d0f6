//! Decodes and checks the configuration.

use std::fmt;

use cni_common::spec::{CniError, NetConf};
use serde::Deserialize;

/// The bit of the packet mark if `markBit` is not set. portmap uses 12 and 13, Kubernetes 14 and 15, netavark 12 and
/// 13, Cilium 8 to 11.
const DEFAULT_BIT: u8 = 20;
/// Maximum length of a chain name in iptables.
const CHAIN_MAX: usize = 28;
const BUILT_IN_CHAINS: [&str; 5] = ["INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"];

/// The requested backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The node decides. Every other word has this meaning, as in the reference.
    #[default]
    Automatic,
    /// The same without nftables, as the reference decides: the administrator has named a chain of iptables.
    Reference,
    /// Our own table.
    Nftables,
    /// The reference's chains.
    Iptables,
    /// A source of a zone, over D-Bus.
    Firewalld,
}

/// Which packets from other containers reach the containers of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// All.
    #[default]
    Open,
    /// Those of the same bridge, and those of bridges without a policy.
    SameBridge,
    /// As `SameBridge`, without those of the same bridge.
    Isolated,
    /// Only those of the same bridge. Everybody else reaches host ports, and gets replies.
    Strict,
}

impl Backend {
    /// Whether firewalld opens the addresses if it runs.
    pub const fn may_be_firewalld(self) -> bool {
        matches!(self, Backend::Automatic | Backend::Reference | Backend::Firewalld)
    }
}

impl Policy {
    const ALL: [Policy; 4] = [Policy::Open, Policy::SameBridge, Policy::Isolated, Policy::Strict];

    /// The word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Open => "open",
            Policy::SameBridge => "same-bridge",
            Policy::Isolated => "isolated",
            Policy::Strict => "strict",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// `backend`.
    pub backend: Backend,
    /// `iptablesAdminChainName`.
    pub admin_chain: String,
    /// `firewalldZone`.
    pub zone: String,
    /// `ingressPolicy`.
    pub policy: Policy,
    /// `markBit`: the bit of the packet mark that tells the rules of iptables what the nftables backend accepts.
    pub mark_bit: u8,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireConf {
    backend: String,
    iptables_admin_chain_name: String,
    firewalld_zone: String,
    ingress_policy: String,
    mark_bit: Option<i64>,
}

impl Conf {
    /// Decodes and checks the configuration.
    ///
    /// # Errors
    /// Code 6 for a value of the wrong type, 7 for an invalid value.
    pub fn read(config: &NetConf) -> Result<Self, CniError> {
        let wire: WireConf = config.decode()?;
        let name = &wire.ingress_policy;
        let policy = Policy::ALL.into_iter().find(|policy| policy.name() == name);
        let policy = policy.or(name.is_empty().then_some(Policy::Open));
        let unknown = || CniError::invalid_config(format!("unknown ingress policy: {name:?}"));
        let policy = policy.ok_or_else(unknown)?;
        let bit = wire.mark_bit.unwrap_or(DEFAULT_BIT.into());
        let mark_bit = u8::try_from(bit).ok().filter(|bit| *bit < 32);
        let mark_bit = mark_bit.ok_or_else(|| {
            CniError::invalid_config(format!("markBit must be between 0 and 31, not {bit}"))
        })?;
        check_chain(&wire.iptables_admin_chain_name)?;
        Ok(Conf { policy, mark_bit, ..wire.unchecked() })
    }

    /// The configuration for DEL, GC and the like, which never fail because of an invalid value.
    pub fn of_removal(config: &NetConf) -> Self {
        config.decode::<WireConf>().unwrap_or_default().unchecked()
    }
}

impl WireConf {
    fn unchecked(self) -> Conf {
        let backend = match self.backend.as_str() {
            "nftables" => Backend::Nftables,
            "iptables" => Backend::Iptables,
            "firewalld" => Backend::Firewalld,
            _ if !self.iptables_admin_chain_name.is_empty() => Backend::Reference,
            _ => Backend::Automatic,
        };
        let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
        Conf {
            backend,
            admin_chain: or(self.iptables_admin_chain_name, "CNI-ADMIN"),
            zone: or(self.firewalld_zone, "trusted"),
            policy: Policy::Open,
            mark_bit: DEFAULT_BIT,
        }
    }
}

fn check_chain(name: &str) -> Result<(), CniError> {
    let bad = |why: &str| Err(CniError::invalid_config(format!("iptablesAdminChainName {name:?}: {why}")));
    if name.len() > CHAIN_MAX {
        return bad("chain name too long (must be under 29 chars)");
    }
    if BUILT_IN_CHAINS.contains(&name) {
        return bad("a built-in chain");
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '+' | '@');
    if name.starts_with('-') || !name.chars().all(is_plain) {
        return bad("not a chain name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Code;

    use super::*;

    fn parse(keys: &str) -> NetConf {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"firewall"{keys}}}"#);
        NetConf::parse(text.into_bytes()).unwrap()
    }

    fn read(keys: &str) -> Result<Conf, CniError> {
        Conf::read(&parse(keys))
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let conf = read("").unwrap();
        assert_eq!((conf.admin_chain.as_str(), conf.zone.as_str()), ("CNI-ADMIN", "trusted"));
        assert_eq!((conf.backend, conf.policy, conf.mark_bit), (Backend::Automatic, Policy::Open, 20));
        let nulls =
            r#","backend":null,"ingressPolicy":null,"firewalldZone":null,"iptablesAdminChainName":null"#;
        assert_eq!(read(nulls), Ok(conf));
    }

    #[test]
    fn unknown_backends_are_automatic() {
        for (keys, backend) in [
            (r#","backend":"""#, Backend::Automatic),
            (r#","backend":"ip6tables""#, Backend::Automatic),
            (r#","backend":"IPTABLES""#, Backend::Automatic),
            (r#","backend":"iptables""#, Backend::Iptables),
            (r#","BACKEND":"nftables""#, Backend::Nftables),
            (r#","backend":"firewalld""#, Backend::Firewalld),
            (r#","iptablesAdminChainName":"NOMAD-ADMIN""#, Backend::Reference),
            (r#","iptablesAdminChainName":"NOMAD-ADMIN","backend":"ip6tables""#, Backend::Reference),
            (r#","iptablesAdminChainName":"A","backend":"iptables""#, Backend::Iptables),
            (r#","iptablesAdminChainName":"A","backend":"firewalld""#, Backend::Firewalld),
        ] {
            assert_eq!(read(keys).unwrap().backend, backend, "{keys}");
        }
    }

    #[test]
    fn policies() {
        for policy in Policy::ALL {
            assert_eq!(read(&format!(r#","ingressPolicy":"{policy}""#)).unwrap().policy, policy);
        }
        let error = read(r#","ingressPolicy":"foo""#).unwrap_err();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (Code::InvalidConfig, r#"unknown ingress policy: "foo""#)
        );
    }

    #[test]
    fn invalid_values_are_errors_for_add_and_ignored_by_del() {
        let long = format!(r#","firewalldZone":"dmz","iptablesAdminChainName":"{}""#, "X".repeat(29));
        for (keys, code, part) in [
            (long.as_str(), Code::InvalidConfig, "too long (must be under 29 chars)"),
            (r#","firewalldZone":"dmz","iptablesAdminChainName":"FORWARD""#, Code::InvalidConfig, "built-in"),
            (
                r#","firewalldZone":"dmz","iptablesAdminChainName":"A\nB""#,
                Code::InvalidConfig,
                "not a chain name",
            ),
            (
                r#","firewalldZone":"dmz","iptablesAdminChainName":"-A""#,
                Code::InvalidConfig,
                "not a chain name",
            ),
            (
                r#","firewalldZone":"dmz","markBit":32"#,
                Code::InvalidConfig,
                "markBit must be between 0 and 31, not 32",
            ),
            (r#","firewalldZone":"dmz","ingressPolicy":"foo""#, Code::InvalidConfig, "foo"),
        ] {
            let error = read(keys).unwrap_err();
            assert!(error.code == code && error.msg.contains(part), "{keys}: {error}");
            assert_eq!(Conf::of_removal(&parse(keys)).zone, "dmz", "{keys}");
        }
        let error = read(r#","backend":1"#).unwrap_err();
        assert!(error.code == Code::Decode && error.msg.starts_with("failed to load netconf: "), "{error}");
        assert_eq!(Conf::of_removal(&parse(r#","backend":1"#)).zone, "trusted");
    }
}
