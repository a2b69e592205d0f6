//! Decodes and checks the configuration.

use std::path::PathBuf;

use cni_common::spec::{CniError, Json, NetConf, SpecVersion};
use ferrule_blocks::block::{Size, check_domain};
use ferrule_blocks::ledger::Network;
use ferrule_blocks::range::{Fixed, Range};
use ferrule_blocks::wire::{FOLDER, SOCKET};
use ferrule_reservations::config::Config;
use ferrule_reservations::range::Range as Checked;
use serde::Deserialize;

/// A checked configuration.
#[derive(Debug)]
pub struct Shared {
    /// The keys of host-local.
    pub config: Config,
    /// What the daemon needs to know.
    pub network: Network,
    /// The file of the ledger.
    pub ledger: PathBuf,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The link on which ADD asks whether another host has an address.
    pub probe: Option<String>,
}

impl Shared {
    /// Reads and checks the configuration. `args` is CNI_ARGS.
    ///
    /// # Errors
    /// Those of [`Config::load`], and code 7 for the keys that host-local does not have.
    pub fn load(conf: &NetConf, version: SpecVersion, args: &str) -> Result<Shared, CniError> {
        let config = Config::load(conf, version, args)?;
        let wire: WireConf = conf.decode()?;
        if !wire.runtime_config.ip_ranges.is_empty() {
            return Err(CniError::invalid_config(
                "runtimeConfig.ipRanges: shared takes no ranges from the runtime, because all nodes must have the same",
            ));
        }
        let ipam = wire.ipam;
        let size = ipam.block_size.map(Size::try_from).transpose().map_err(CniError::invalid_config)?;
        check_domain(&ipam.domain).map_err(|why| {
            CniError::invalid_config(why).with_remedy(
                "set \"domain\" to one name for all networks whose containers are on the same layer 2",
            )
        })?;
        let sets = config.sets.iter().map(|set| set.ranges().iter().map(|range| read(range, size)).collect());
        let network = Network {
            network: conf.name().to_owned(),
            domain: ipam.domain,
            data_dir: config.data_dir.clone(),
            sets: sets.collect(),
        };
        network.check().map_err(CniError::invalid_config)?;
        let (folder, socket) = (or(ipam.ledgers, FOLDER), or(ipam.socket, SOCKET));
        let (ledger, probe) = (
            folder.join(format!("{}.json", network.network)),
            Some(ipam.probe).filter(|link| !link.is_empty()),
        );
        Ok(Shared { config, ledger, network, socket, probe })
    }
}

fn read(range: &Checked, size: Option<Size>) -> Range {
    let subnet = range.subnet;
    let block_size = size.unwrap_or_else(|| Fixed::usual_size(subnet));
    let fixed = Fixed { subnet, range_start: range.start, range_end: range.end, block_size };
    Range { fixed, gateway: range.gateway, exclude: range.exclude().to_vec() }
}

fn or(path: String, usual: &str) -> PathBuf {
    if path.is_empty() { usual.into() } else { path.into() }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireConf {
    ipam: WireIpam,
    runtime_config: WireRuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireIpam {
    domain: String,
    block_size: Option<u32>,
    ledgers: String,
    socket: String,
    probe: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRuntimeConfig {
    ip_ranges: Vec<Option<Json>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Shared, CniError> {
        let text = format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"macvlan"{text}}}"#);
        Shared::load(&NetConf::parse(text.into_bytes()).unwrap(), SpecVersion::V1_1_0, "")
    }

    #[test]
    fn keys_and_defaults() {
        let ipam = r#","ipam":{"type":"shared","domain":"lan","ranges":[[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.9","exclude":["10.0.0.64/27"]}],[{"subnet":"fd00::/126"}]]}"#;
        let shared = load(ipam).unwrap();
        let fixed: Vec<String> = shared.network.fixed().iter().map(Fixed::to_string).collect();
        assert_eq!(
            fixed,
            [
                "10.0.0.0/24 from 10.0.0.9 to 10.0.0.254 in blocks of 32",
                "fd00::/126 from fd00::1 to fd00::3 in blocks of 4"
            ]
        );
        assert_eq!(shared.network.sets[0][0].exclude.len(), 1);
        assert_eq!(shared.ledger, PathBuf::from("/var/lib/ferrule/blocks/net.json"));
        assert_eq!(shared.socket, PathBuf::from("/run/ferrule/blocks.sock"));
    }

    #[test]
    fn wrong_values_are_named() {
        let ipam = r#""type":"shared","subnet":"10.0.0.0/28""#;
        for (text, said) in [
            (format!(r#","ipam":{{{ipam}}}"#), "domain \"\" is no name"),
            (format!(r#","ipam":{{{ipam},"domain":"L"}}"#), "domain \"L\" is no name"),
            (format!(r#","ipam":{{{ipam},"domain":"l","blockSize":3}}"#), "blockSize 3 is no power of two"),
            (
                format!(r#","ipam":{{{ipam},"domain":"l","blockSize":32}}"#),
                "a block is larger than the subnet",
            ),
            (format!(r#","ipam":{{{ipam},"domain":"l","dataDir":"x"}}"#), "is no absolute path"),
            (
                format!(
                    r#","ipam":{{{ipam},"domain":"l"}},"runtimeConfig":{{"ipRanges":[[{{"subnet":"10.1.0.0/24"}}]]}}"#
                ),
                "runtimeConfig.ipRanges",
            ),
        ] {
            let error = load(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
