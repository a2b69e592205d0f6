//! Decodes and checks the configuration: `ipam`, and the addresses that the runtime requests.

use std::net::IpAddr;
use std::path::PathBuf;

use cni_common::spec::addr::{parse_cidr, parse_ip, parse_ip_or_cidr};
use cni_common::spec::args::bad_pair;
use cni_common::spec::wire::WireRoute;
use cni_common::spec::{CniArgs, CniError, Code, Json, NetConf, Route, SpecVersion};
use ferrule_kit::ipam::refuse_several_of_a_family;
use ipnetwork::IpNetwork;
use serde::Deserialize;

use super::range::{RangeSpec, SubnetSpec};
use super::set::RangeSet;

/// The default of `dataDir`.
const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// A checked configuration, for ADD, CHECK and STATUS.
#[derive(Clone, Debug)]
pub struct Config {
    /// `ipam.dataDir`: the directory with one store for each network.
    pub data_dir: PathBuf,
    /// At least one range set, in this order: `runtimeConfig.ipRanges`, the range of `ipam` itself,
    /// `ipam.ranges`.
    pub sets: Vec<RangeSet>,
    /// The requested addresses without duplicates, from CNI_ARGS or `args`, and from `runtimeConfig.ips`.
    pub requested: Vec<IpAddr>,
    /// `ipam.routes`.
    pub routes: Vec<Route>,
    /// `ipam.resolvConf`.
    pub resolv_conf: Option<PathBuf>,
}

impl Config {
    /// Reads and checks the configuration. `args` is CNI_ARGS.
    ///
    /// # Errors
    /// Code 6 for a value of the wrong type, 4 for CNI_ARGS, 7 for all other errors, with the reference's
    /// texts.
    pub fn load(conf: &NetConf, version: SpecVersion, args: &str) -> Result<Self, CniError> {
        let wire: WireConf = conf.decode()?;
        let ipam = wire.ipam.ok_or_else(|| CniError::invalid_config("IPAM config missing 'ipam' key"))?;
        let mut specs =
            wire.runtime_config.ip_ranges.iter().map(range_set_of).collect::<Result<Vec<_>, _>>()?;
        if ipam.subnet.is_some() {
            let (subnet, range_start, range_end) = (ipam.subnet, ipam.range_start, ipam.range_end);
            let (gateway, exclude) = (ipam.gateway, ipam.exclude);
            specs.push(vec![WireRange { subnet, range_start, range_end, gateway, exclude }.read()?]);
        }
        for set in ipam.ranges {
            specs.push(read_ranges(set.unwrap_or_default())?);
        }
        let routes = ipam.routes.into_iter().map(WireRoute::into_route).collect::<Result<_, _>>();
        let routes = routes.map_err(CniError::invalid_config)?;
        let requested = requested(args, wire.args.cni.ips, wire.runtime_config.ips)?;
        Ok(Config {
            data_dir: data_dir(ipam.data_dir),
            sets: check_sets(&specs, conf, version)?,
            requested,
            routes,
            resolv_conf: (!ipam.resolv_conf.is_empty()).then(|| ipam.resolv_conf.into()),
        })
    }
}

/// `dataDir` for DEL and GC, which must work with every configuration that ADD may have accepted. Without a
/// readable `dataDir` this is the default, which ADD used too.
pub fn data_dir_of(conf: &NetConf) -> PathBuf {
    let keys = conf.decode::<Json>().ok();
    let text = keys.and_then(|keys| keys.get("ipam")?.get("dataDir")?.decode::<String>().ok());
    data_dir(text.unwrap_or_default())
}

fn data_dir(text: String) -> PathBuf {
    if text.is_empty() { DEFAULT_DATA_DIR.into() } else { text.into() }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireConf {
    ipam: Option<WireIpam>,
    runtime_config: WireRuntimeConfig,
    args: WireArgs,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireIpam {
    subnet: Option<String>,
    range_start: String,
    range_end: String,
    gateway: String,
    exclude: Vec<String>,
    ranges: Vec<Option<Vec<Option<WireRange>>>>,
    routes: Vec<WireRoute>,
    resolv_conf: String,
    data_dir: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRuntimeConfig {
    ip_ranges: Vec<Option<Json>>,
    ips: Vec<Option<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireArgs {
    cni: WireCniArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireCniArgs {
    ips: Vec<Option<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireRange {
    subnet: Option<String>,
    range_start: String,
    range_end: String,
    gateway: String,
    exclude: Vec<String>,
}

impl WireRange {
    fn read(self) -> Result<RangeSpec, CniError> {
        let ip = |text: &str| (!text.is_empty()).then(|| parse_ip(text)).transpose();
        let read = || {
            Ok(RangeSpec {
                subnet: self.subnet.as_deref().map(read_subnet).transpose()?,
                start: ip(&self.range_start)?,
                end: ip(&self.range_end)?,
                gateway: ip(&self.gateway)?,
                exclude: self.exclude.iter().map(|text| read_network(text)).collect::<Result<_, _>>()?,
            })
        };
        read().map_err(|msg: String| CniError::invalid_config(msg))
    }
}

/// Reads an address, or a network without host bits.
fn read_network(text: &str) -> Result<IpNetwork, String> {
    let network = match text.contains('/') {
        true => parse_cidr(text).ok().filter(|network| network.ip() == network.network()),
        false => parse_ip(text).ok().map(IpNetwork::from),
    };
    network.ok_or_else(|| format!("exclude {text:?} is neither an address nor a network"))
}

/// Reads a subnet. An IPv4-mapped one is not a syntax error; [`super::range::Range::new`] refuses it.
fn read_subnet(text: &str) -> Result<SubnetSpec, String> {
    let is_mapped = |text: &str| {
        let ip = text.split_once('/').and_then(|(ip, _)| ip.parse::<IpAddr>().ok());
        ip.is_some_and(|ip| ip.to_canonical() != ip)
    };
    match parse_cidr(text) {
        Err(msg) if msg.starts_with("invalid CIDR") => Err(msg),
        Ok(network) if !is_mapped(text) => Ok(SubnetSpec::Network(network)),
        _ => Ok(SubnetSpec::Mapped),
    }
}

fn read_ranges(ranges: Vec<Option<WireRange>>) -> Result<Vec<RangeSpec>, CniError> {
    ranges.into_iter().map(|range| range.unwrap_or_default().read()).collect()
}

/// One element of `runtimeConfig.ipRanges`: a range set, or a single range as go-cni sends it.
fn range_set_of(json: &Option<Json>) -> Result<Vec<RangeSpec>, CniError> {
    let Some(json) = json else { return Ok(Vec::new()) };
    let ranges = if json.is_object() { json.decode().map(|range| vec![range]) } else { json.decode() };
    let ranges = ranges.map_err(|error| {
        CniError::new(Code::Decode, format!("failed to load netconf: runtimeConfig.ipRanges: {error}"))
    })?;
    read_ranges(ranges)
}

/// The requested addresses without duplicates. CNI_ARGS counts only if `args` has no addresses
/// (CONVENTIONS.md); `runtimeConfig.ips` is added to both.
fn requested(
    cni_args: &str,
    args: Vec<Option<String>>,
    runtime: Vec<Option<String>>,
) -> Result<Vec<IpAddr>, CniError> {
    let has_args = !args.is_empty();
    let mut listed = Vec::new();
    for text in args.into_iter().chain(runtime) {
        let text = text.filter(|text| !text.is_empty());
        let text =
            text.ok_or_else(|| CniError::invalid_config("cannot understand ip: IP <nil> not v4 nor v6"))?;
        listed.push(parse_ip_or_cidr(&text).map_err(CniError::invalid_config)?);
    }
    let cni_args = CniArgs::parse(cni_args, &["IP"])?;
    let from_cni_args = cni_args
        .get("IP")
        .map(|text| parse_ip_or_cidr(text).map_err(|why| bad_pair(&format!("IP={text}"), &why)));
    let mut requested = Vec::new();
    for ip in from_cni_args.transpose()?.filter(|_| !has_args).into_iter().chain(listed) {
        if !requested.contains(&ip) {
            requested.push(ip);
        }
    }
    Ok(requested)
}

fn check_sets(
    specs: &[Vec<RangeSpec>],
    conf: &NetConf,
    version: SpecVersion,
) -> Result<Vec<RangeSet>, CniError> {
    if specs.is_empty() {
        return Err(CniError::invalid_config("no IP ranges specified"));
    }
    let mut sets: Vec<RangeSet> = Vec::with_capacity(specs.len());
    for (i, specs) in specs.iter().enumerate() {
        let set = RangeSet::new(specs)
            .map_err(|error| CniError::invalid_config(format!("invalid range set {i}: {error}")))?;
        sets.push(set);
    }
    refuse_several_of_a_family(conf, version, sets.iter().map(RangeSet::is_ipv4))?;
    for (i, one) in sets.iter().enumerate() {
        if let Some(j) = (i + 1..sets.len()).find(|j| one.overlaps(&sets[*j])) {
            return Err(CniError::invalid_config(format!("range set {i} overlaps with {j}")));
        }
    }
    Ok(sets)
}

/// `ip` with the prefix length of `subnet`, as the result reports it.
pub fn with_prefix(ip: IpAddr, subnet: IpNetwork) -> IpNetwork {
    // This cannot fail: the subnet contains the address, so both have the same family.
    IpNetwork::new(ip, subnet.prefix()).unwrap_or_else(|_| ip.into())
}
