//! Decodes and checks the configuration.

use std::path::PathBuf;

use cni_common::spec::{CniError, Json, NetConf, SpecVersion};
use ferrule_blocks::block::{Size, check_domain};
use ferrule_blocks::ledger::Network;
use ferrule_blocks::range::{Fixed, Range};
use ferrule_blocks::wire::{FOLDER, SOCKET};
use ferrule_reservations::config::Config;
use ferrule_reservations::range::Range as Checked;
use ferrule_reservations::set::RangeSet;
use ipnetwork::IpNetwork;
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
        let on_request = on_request(&ipam.on_request, &config)?;
        let read =
            |range: &Checked| read(range, size, on_request.iter().any(|network| is_in(range, *network)));
        let sets = config.sets.iter().map(|set| set.ranges().iter().map(read).collect());
        let network = Network {
            network: conf.name().to_owned(),
            domain: ipam.domain,
            data_dir: config.data_dir.clone(),
            sets: sets.collect(),
            link: [ipam.link, wire.master, wire.bridge].into_iter().find(|name| !name.is_empty()),
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

/// The networks of `onRequest`. A node claims each of their addresses by itself.
fn on_request(texts: &[String], config: &Config) -> Result<Vec<IpNetwork>, CniError> {
    let read = |text: &String| {
        let network = text.parse().ok().filter(|network: &IpNetwork| network.ip() == network.network());
        let has_range = |network: &IpNetwork| {
            config.sets.iter().flat_map(RangeSet::ranges).any(|range| is_in(range, *network))
        };
        network.filter(has_range).ok_or_else(|| {
            CniError::invalid_config(format!(
                "onRequest {text:?} is no network that has a whole range of this one"
            ))
        })
    };
    texts.iter().map(read).collect()
}

fn is_in(range: &Checked, network: IpNetwork) -> bool {
    network.contains(range.start) && network.contains(range.end)
}

fn read(range: &Checked, size: Option<Size>, on_request: bool) -> Range {
    let subnet = range.subnet;
    let block_size = match on_request {
        true => Size::ONE,
        false => size.unwrap_or_else(|| Fixed::usual_size(subnet)),
    };
    let fixed = Fixed { subnet, range_start: range.start, range_end: range.end, block_size };
    Range { fixed, gateway: range.gateway, exclude: range.exclude().to_vec(), on_request }
}

fn or(path: String, usual: &str) -> PathBuf {
    if path.is_empty() { usual.into() } else { path.into() }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireConf {
    ipam: WireIpam,
    runtime_config: WireRuntimeConfig,
    /// Keys of macvlan, ipvlan and bridge.
    master: String,
    bridge: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireIpam {
    domain: String,
    block_size: Option<u32>,
    on_request: Vec<String>,
    link: String,
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
    fn addresses_on_request_have_claims_of_their_own() {
        let ipam = r#","master":"eth1","ipam":{"type":"shared","domain":"lan","onRequest":["10.0.0.224/27"],"ranges":[[{"subnet":"10.0.0.0/24","rangeEnd":"10.0.0.127"},{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.224","rangeEnd":"10.0.0.254"}]]}"#;
        let network = load(ipam).unwrap().network;
        let read: Vec<_> =
            network.ranges().map(|range| (range.on_request, range.fixed.block_size.count())).collect();
        assert_eq!((&read[..], network.link.as_deref()), (&[(false, 32), (true, 1)][..], Some("eth1")));
        for other in ["10.0.0.240/28", "10.0.0.225/27", "x"] {
            let error = load(&ipam.replace("10.0.0.224/27", other)).unwrap_err().to_string();
            assert!(error.contains(&format!("onRequest \"{other}\" is no network")), "{error}");
        }
        assert_eq!(
            load(&ipam.replace("\"type\"", "\"link\":\"eth2\",\"type\"")).unwrap().network.link.as_deref(),
            Some("eth2")
        );
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
