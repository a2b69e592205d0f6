//! The keys of the configuration for masquerading. Nothing here touches the kernel.

use cni_common::spec::{CniError, NetConf};
use ferrule_kernel::ip::IpFamily;
use ipnetwork::IpNetwork;
use serde::Deserialize;

/// The most networks in `ipMasqExclude`: each takes up to three of the 128 expressions that the kernel allows in a rule.
const MOST_EXCLUDED: usize = 32;

/// How the rules are stored: the key `ipMasqBackend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// In the reference's nftables table, over netlink.
    #[default]
    Nftables,
    /// In the chains of the reference's iptables backend, by the iptables programs.
    Iptables,
}

/// What ADD masquerades, and CHECK demands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// Where ADD puts the rules.
    pub backend: Backend,
    /// Destinations whose traffic keeps its source address: the key `ipMasqExclude`.
    pub exclude: Vec<IpNetwork>,
    /// The only family to masquerade: the key `ipMasqFamilies`. `None`: both.
    pub family: Option<IpFamily>,
    /// Masquerade traffic inside the own subnet too: the key `ipMasqWithinSubnet`.
    pub within_subnet: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    ip_masq: bool,
    ip_masq_backend: String,
    ip_masq_exclude: Vec<String>,
    ip_masq_families: Option<Vec<String>>,
    ip_masq_within_subnet: bool,
}

impl Masquerade {
    /// What a network with the key `ipMasq` wants. `None` if it does not ask for masquerading.
    ///
    /// # Errors
    /// Code 6 if the configuration cannot be decoded, 7 for an invalid value, with the reference's text for an unknown backend.
    pub fn read(config: &NetConf) -> Result<Option<Self>, CniError> {
        let keys: Keys = config.decode()?;
        let masquerade = Masquerade {
            backend: Backend::parse(&keys.ip_masq_backend)?,
            exclude: excluded(&keys.ip_masq_exclude)?,
            family: keys.ip_masq_families.map_or(Ok(None), |names| family(&names))?,
            within_subnet: keys.ip_masq_within_subnet,
        };
        Ok(keys.ip_masq.then_some(masquerade))
    }

    /// Those of the addresses whose traffic is masqueraded.
    pub fn of<'a>(&self, addresses: &'a [IpNetwork]) -> impl Iterator<Item = &'a IpNetwork> + use<'a> {
        let family = self.family;
        addresses
            .iter()
            .filter(move |address| family.is_none_or(|family| family == IpFamily::of(address.ip())))
    }

    /// The excluded networks of a family.
    pub fn excluded(&self, family: IpFamily) -> impl Iterator<Item = IpNetwork> {
        self.exclude.iter().filter(move |network| IpFamily::of(network.ip()) == family).copied()
    }

    /// The destinations to which traffic from this address is not masqueraded.
    pub fn unchanged(&self, address: IpNetwork) -> impl Iterator<Item = IpNetwork> {
        let subnet = (!self.within_subnet).then_some(address);
        subnet.into_iter().chain(self.excluded(IpFamily::of(address.ip())))
    }
}

impl Backend {
    fn parse(name: &str) -> Result<Self, CniError> {
        match name {
            "" | "nftables" => Ok(Backend::Nftables),
            "iptables" => Ok(Backend::Iptables),
            other => Err(CniError::invalid_config(format!("unknown ipmasq backend {other:?}"))
                .with_details("ipMasqBackend is nftables or iptables")),
        }
    }
}

fn excluded(texts: &[String]) -> Result<Vec<IpNetwork>, CniError> {
    if texts.len() > MOST_EXCLUDED {
        let msg = format!("ipMasqExclude has {} networks, at most {MOST_EXCLUDED} are possible", texts.len());
        return Err(CniError::invalid_config(msg));
    }
    let read = |text: &String| {
        let invalid = |why: &str| CniError::invalid_config(format!("invalid ipMasqExclude {text:?}: {why}"));
        let network: IpNetwork = text.parse().map_err(|_| invalid("not a network"))?;
        match network.prefix() {
            // iptables-save does not print such a condition.
            0 => Err(invalid("ipMasqFamilies leaves out a whole family")),
            prefix => IpNetwork::new(network.network(), prefix).map_err(|error| invalid(&error.to_string())),
        }
    };
    let mut networks: Vec<IpNetwork> = texts.iter().map(read).collect::<Result<_, _>>()?;
    networks.sort_unstable();
    networks.dedup();
    Ok(networks)
}

fn family(names: &[String]) -> Result<Option<IpFamily>, CniError> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match names[..] {
        ["ipv4"] => Ok(Some(IpFamily::V4)),
        ["ipv6"] => Ok(Some(IpFamily::V6)),
        ["ipv4", "ipv6"] | ["ipv6", "ipv4"] => Ok(None),
        _ => Err(CniError::invalid_config(format!("invalid ipMasqFamilies {names:?}"))
            .with_details("it has \"ipv4\", \"ipv6\" or both; \"ipMasq\": false switches both off")),
    }
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Code;

    use super::*;

    fn read(keys: &str) -> Result<Option<Masquerade>, CniError> {
        Masquerade::read(&NetConf::parse(format!(r#"{{"name":"n",{keys}}}"#).into_bytes())?)
    }

    #[test]
    fn keys() {
        assert_eq!(read(r#""ipMasqBackend":"iptables""#), Ok(None));
        assert_eq!(read(r#""ipMasq":true,"ipMasqFamilies":null"#), Ok(Some(Masquerade::default())));
        let both = r#""ipMasq":true,"ipMasqFamilies":["ipv6","ipv4"],"ipMasqBackend":"nftables""#;
        assert_eq!(read(both), Ok(Some(Masquerade::default())));
        let all = r#""ipMasq":true,"ipMasqBackend":"iptables","ipMasqFamilies":["ipv6"],"ipMasqWithinSubnet":true,
            "ipMasqExclude":["fd00::1","10.1.2.3/8","10.0.0.0/8"]"#;
        let expected = Masquerade {
            backend: Backend::Iptables,
            exclude: vec!["10.0.0.0/8".parse().unwrap(), "fd00::1/128".parse().unwrap()],
            family: Some(IpFamily::V6),
            within_subnet: true,
        };
        assert_eq!(read(all), Ok(Some(expected.clone())));
        let addresses: Vec<IpNetwork> =
            ["10.9.0.2/24", "fd00::2/64"].map(|text| text.parse().unwrap()).into();
        assert!(expected.of(&addresses).eq(&addresses[1..]));
        assert!(expected.unchanged(addresses[1]).eq(expected.exclude[1..].iter().copied()));
        assert!(Masquerade::default().unchanged(addresses[0]).eq([addresses[0]]));
    }

    #[test]
    fn invalid_values() {
        let many = format!(r#""ipMasqExclude":[{}]"#, vec!["\"10.0.0.1\""; 33].join(","));
        for (keys, msg) in [
            (r#""ipMasqBackend":"IPtables""#, r#"unknown ipmasq backend "IPtables""#),
            (r#""ipMasqExclude":["10.0.0/8"]"#, r#"invalid ipMasqExclude "10.0.0/8": not a network"#),
            (
                r#""ipMasqExclude":["::/0"]"#,
                r#"invalid ipMasqExclude "::/0": ipMasqFamilies leaves out a whole family"#,
            ),
            (many.as_str(), "ipMasqExclude has 33 networks, at most 32 are possible"),
            (r#""ipMasqFamilies":[]"#, "invalid ipMasqFamilies []"),
            (r#""ipMasqFamilies":["IPv4"]"#, r#"invalid ipMasqFamilies ["IPv4"]"#),
        ] {
            let error = read(keys).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::InvalidConfig, msg));
        }
    }
}
