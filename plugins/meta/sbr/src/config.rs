//! The keys of the configuration.

use std::net::IpAddr;

use cni_common::spec::{CniError, NetConf};
use ferrule_kernel::ip::IpFamily;
use serde::Deserialize;

/// The tables `default`, `main` and `local` of the kernel.
pub const BUILT_IN: std::ops::RangeInclusive<i64> = 253..=255;

/// The decoded configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conf {
    /// The table for the rules. Routes then stay where they are.
    pub table: Option<u32>,
    /// The default gateways, in the order of [`IpFamily::ALL`].
    pub gateways: [Option<IpAddr>; 2],
    /// Routes to the subnets of the addresses stay in the main table, with the address as source.
    pub source_hints: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Keys {
    table: Option<i64>,
    gateways: Vec<String>,
    #[serde(rename = "addSourceHints")]
    add_source_hints: bool,
}

impl Conf {
    /// Decodes and checks the keys.
    ///
    /// # Errors
    /// The texts about `gateways` are the reference's.
    pub fn read(config: &NetConf) -> Result<Self, CniError> {
        let Keys { table, gateways, add_source_hints } = config.decode()?;
        let table = table.map(check_table).transpose()?;
        Ok(Conf { table, gateways: check_gateways(&gateways)?, source_hints: add_source_hints })
    }
}

fn check_table(table: i64) -> Result<u32, CniError> {
    let number = u32::try_from(table).ok().filter(|number| (1..1 << 31).contains(number));
    number.filter(|_| !BUILT_IN.contains(&table)).ok_or_else(|| {
        CniError::invalid_config(format!("table {table} is not from 1 to 2147483647 without 253 to 255"))
    })
}

fn check_gateways(texts: &[String]) -> Result<[Option<IpAddr>; 2], CniError> {
    if texts.len() > 2 {
        let msg = "gateways list cannot contain more than 2 entries (one IPv4, one IPv6)";
        return Err(CniError::invalid_config(msg));
    }
    let mut gateways = [None; 2];
    for text in texts {
        let invalid = || CniError::invalid_config(format!("invalid static gateway IP address: {text}"));
        let gateway: IpAddr = text.parse().map_err(|_| invalid())?;
        let family = IpFamily::of(gateway);
        if let Some(other) = gateways[family as usize].replace(gateway) {
            let msg = format!("gateways list contains multiple {family} addresses: {other} and {gateway}");
            return Err(CniError::invalid_config(msg));
        }
    }
    Ok(gateways)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str) -> Result<Conf, String> {
        let text = format!(r#"{{"cniVersion": "1.0.0", "name": "net", {keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes()).unwrap()).map_err(|error| error.msg)
    }

    #[test]
    fn valid_configurations() {
        assert_eq!(read(r#""table": null, "gateways": null"#), Ok(Conf::default()));
        let conf =
            read(r#""Table": 100, "gateways": ["fd00::1", "10.0.0.1"], "addSourceHints": true"#).unwrap();
        let gateways = ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().ok());
        assert_eq!(conf, Conf { table: Some(100), gateways, source_hints: true });
    }

    #[test]
    fn invalid_configurations() {
        for (keys, text) in [
            (r#""table": 0"#, "table 0 is not"),
            (r#""table": -1"#, "table -1 is not"),
            (r#""table": 254"#, "table 254 is not"),
            (r#""table": 2147483648"#, "table 2147483648 is not"),
            (r#""table": "100""#, "failed to load netconf: table"),
            (r#""gateways": ["zz"]"#, "invalid static gateway IP address: zz"),
            (r#""gateways": ["1.1.1.1", "::1", "::2"]"#, "gateways list cannot contain more than 2 entries"),
            (r#""gateways": ["1.1.1.1", "1.1.1.2"]"#, "multiple IPv4 addresses: 1.1.1.1 and 1.1.1.2"),
            (r#""table": 9, "gateways": ["::1", "::2"]"#, "multiple IPv6 addresses: ::1 and ::2"),
        ] {
            let error = read(keys).unwrap_err();
            assert!(error.contains(text), "{keys}: {error}");
        }
    }
}
