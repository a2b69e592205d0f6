//! The file that flannel's daemon writes: the networks of the cluster, and this node's part of them.

use std::io::ErrorKind;

use cni_common::spec::{CniError, Code};
use ferrule_kernel::file;
use ipnetwork::IpNetwork;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// FLANNEL_NETWORK, then FLANNEL_IPV6_NETWORK: the cluster's networks, each once.
    pub networks: Vec<IpNetwork>,
    /// FLANNEL_SUBNET, then FLANNEL_IPV6_SUBNET: the node's part, at most one for each family.
    pub subnets: Vec<IpNetwork>,
    /// FLANNEL_MTU.
    pub mtu: Option<u32>,
    /// FLANNEL_IPMASQ: flannel's daemon masquerades.
    pub ip_masq: Option<bool>,
}

impl SubnetEnv {
    /// Reads the file.
    ///
    /// # Errors
    /// Code 11 if there is no file yet, 5 if it cannot be read, 6 if its content is not as expected. The texts are the reference's.
    pub fn read(path: &str) -> Result<SubnetEnv, CniError> {
        let failed = |code, why: &dyn std::fmt::Display| {
            let msg = format!(
                "failed to load flannel 'subnet.env' file: {why}. Check the flannel pod log for this node."
            );
            CniError::new(code, msg)
        };
        let bytes = file::read_named(path.as_ref()).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                failed(Code::TryAgainLater, &format!("open {path}: no such file or directory"))
            }
            _ => failed(Code::Io, &format!("open {path}: {error}")),
        })?;
        let env = SubnetEnv::parse(&String::from_utf8_lossy(&bytes)).and_then(|env| match env.missing() {
            missing if missing.is_empty() => Ok(env),
            missing => Err(format!("{path} is missing {}", missing.join(", "))),
        });
        env.map_err(|why| failed(Code::Decode, &why))
    }

    /// Parses lines of the form `KEY=VALUE`. Ignores other keys.
    ///
    /// # Errors
    /// Names the key whose value is wrong.
    pub fn parse(text: &str) -> Result<SubnetEnv, String> {
        let value = |key: &str| {
            let mut lines = text.lines().rev().map(|line| line.split_once('=').unwrap_or((line, "")));
            lines.find(|(name, _)| *name == key).map(|(_, value)| value)
        };
        let mut env = SubnetEnv::default();
        for (networks, subnet) in
            [("FLANNEL_NETWORK", "FLANNEL_SUBNET"), ("FLANNEL_IPV6_NETWORK", "FLANNEL_IPV6_SUBNET")]
        {
            for text in value(networks).into_iter().flat_map(|list| list.split(',')) {
                let network = cidr(networks, text)?;
                if !env.networks.contains(&network) {
                    env.networks.push(network);
                }
            }
            env.subnets.extend(value(subnet).map(|text| cidr(subnet, text)).transpose()?);
        }
        let mtu = |text: &str| text.parse().map_err(|_| format!("FLANNEL_MTU: invalid number {text:?}"));
        env.mtu = value("FLANNEL_MTU").map(mtu).transpose()?;
        let is_set = |text: &str| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("FLANNEL_IPMASQ: {text:?} is neither true nor false")),
        };
        env.ip_masq = value("FLANNEL_IPMASQ").map(is_set).transpose()?;
        Ok(env)
    }

    fn missing(&self) -> Vec<&'static str> {
        let keys = [
            (self.networks.is_empty(), "FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK"),
            (self.subnets.is_empty(), "FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"),
            (self.mtu.is_none(), "FLANNEL_MTU"),
            (self.ip_masq.is_none(), "FLANNEL_IPMASQ"),
        ];
        keys.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, key)| key).collect()
    }
}

/// The network of an address with a prefix length.
fn cidr(key: &str, text: &str) -> Result<IpNetwork, String> {
    let network =
        Some(text).filter(|text| text.contains('/')).and_then(|text| text.parse::<IpNetwork>().ok());
    let network = network.and_then(|found| IpNetwork::new(found.network(), found.prefix()).ok());
    network.ok_or_else(|| format!("{key}: invalid CIDR address: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNetwork> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn both_families() {
        let text = "FLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16,10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\r\nOTHER\n\
                    FLANNEL_IPV6_NETWORK=fd00:1::/48\nFLANNEL_IPV6_SUBNET=fd00:1:0:9::1/64\nFLANNEL_MTU=1400\n\
                    FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true";
        let expected = SubnetEnv {
            networks: nets(&["10.1.0.0/16", "10.2.0.0/16", "fd00:1::/48"]),
            subnets: nets(&["10.1.17.0/24", "fd00:1:0:9::/64"]),
            mtu: Some(1450),
            ip_masq: Some(true),
        };
        assert_eq!(SubnetEnv::parse(text), Ok(expected));
        assert!(SubnetEnv::parse("FLANNEL_IPMASQ=tru").unwrap_err().starts_with("FLANNEL_IPMASQ: \"tru\""));
    }

    #[test]
    fn broken_values() {
        for (text, why) in [
            ("FLANNEL_NETWORK=10.1.0.0", "FLANNEL_NETWORK: invalid CIDR address: 10.1.0.0"),
            ("FLANNEL_NETWORK", "FLANNEL_NETWORK: invalid CIDR address: "),
            ("FLANNEL_IPV6_SUBNET=fd00::/129", "FLANNEL_IPV6_SUBNET: invalid CIDR address: fd00::/129"),
            ("FLANNEL_MTU=-1", "FLANNEL_MTU: invalid number \"-1\""),
        ] {
            assert_eq!(SubnetEnv::parse(text), Err(why.to_owned()));
        }
        let all = "FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ";
        assert_eq!(SubnetEnv::parse("").unwrap().missing().join(", "), all);
    }
}
