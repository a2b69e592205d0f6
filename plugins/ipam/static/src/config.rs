//! Decodes and checks the configuration and the addresses of all sources.
//!
//! | source | effect |
//! |---|---|
//! | `ipam.addresses` | the base list |
//! | CNI_ARGS `IP` | appended to the base list |
//! | CNI_ARGS `GATEWAY` | the gateway of each address that has none and whose subnet contains it |
//! | `args.cni.ips`, then `runtimeConfig.ips` | a list that is not empty replaces all addresses so far |

use std::net::IpAddr;

use cni_common::remark;
use cni_common::spec::addr::{parse_cidr, parse_ip};
use cni_common::spec::wire::WireRoute;
use cni_common::spec::{CniArgs, CniError, Code, Dns, IpConfig, NetConf, Route, SpecVersion};
use ferrule_kit::ipam::refuse_several_of_a_family;
use serde::Deserialize;

/// The addresses, routes and DNS settings of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The addresses in their order; may be empty.
    pub ips: Vec<IpConfig>,
    /// `ipam.routes`. Several routes to one destination keep their order.
    pub routes: Vec<Route>,
    /// `ipam.dns`.
    pub dns: Dns,
}

impl Config {
    /// Reads and checks the configuration. `args` is CNI_ARGS. An address that another source replaces is not
    /// checked, as in the reference.
    ///
    /// # Errors
    /// Code 6 for a value of the wrong type, 4 for CNI_ARGS, 7 for all other errors, with the reference's
    /// texts.
    pub fn load(conf: &NetConf, version: SpecVersion, args: &str) -> Result<Self, CniError> {
        let wire: WireConf = conf.decode()?;
        let ipam = wire.ipam.ok_or_else(|| CniError::invalid_config("IPAM config missing 'ipam' key"))?;
        let requested = CniArgs::parse(args, &["IP", "GATEWAY"])?;
        let appended =
            items(requested.get("IP")).map(|text| read(text, "the 'ip' field is expected to be in"));
        let appended = appended.collect::<Result<Vec<_>, _>>().map_err(in_cni_args)?;
        let gateways = items(requested.get("GATEWAY"))
            .map(|text| parse_ip(text).map_err(|_| invalid(format!("invalid gateway address: {text}"))))
            .collect::<Result<Vec<_>, _>>()
            .map_err(in_cni_args)?;
        let [args, runtime] = [wire.args.cni.ips, wire.runtime_config.ips].map(|list| {
            let read_entry = |text: Option<String>| {
                read(&text.unwrap_or_default(), "an entry in the 'ips' field is NOT in")
            };
            list.into_iter().map(read_entry).collect::<Result<Vec<_>, _>>()
        });
        let (args, runtime) = (args?, runtime?);
        let ips = if !runtime.is_empty() {
            runtime
        } else if !args.is_empty() {
            args
        } else {
            let configured = ipam.addresses.into_iter().map(WireAddress::read);
            let mut ips = configured.collect::<Result<Vec<_>, _>>()?;
            ips.extend(appended);
            give_gateways(&mut ips, &gateways);
            ips
        };
        refuse_several_of_a_family(conf, version, ips.iter().map(|ip| ip.address.is_ipv4()))?;
        let routes = ipam.routes.into_iter().map(WireRoute::into_route).collect::<Result<_, _>>();
        Ok(Config { ips, routes: routes.map_err(invalid)?, dns: ipam.dns })
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireConf {
    ipam: Option<WireIpam>,
    runtime_config: WithIps,
    args: WireArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireIpam {
    addresses: Vec<WireAddress>,
    routes: Vec<WireRoute>,
    dns: Dns,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireAddress {
    address: String,
    gateway: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireArgs {
    cni: WithIps,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WithIps {
    ips: Vec<Option<String>>,
}

impl WireAddress {
    fn read(self) -> Result<IpConfig, CniError> {
        let ip = read(&self.address, "the 'address' field is expected to be in")?;
        let gateway = (!self.gateway.is_empty()).then(|| parse_ip(&self.gateway)).transpose();
        Ok(IpConfig { gateway: gateway.map_err(invalid)?, ..ip })
    }
}

/// The trimmed items of a list in CNI_ARGS.
fn items(list: Option<&str>) -> impl Iterator<Item = &str> {
    list.into_iter().flat_map(|list| list.split(',')).map(str::trim)
}

/// Reads an address with its prefix length. `expected` is the beginning of the reference's text. The reference's tests
/// compare the whole text, so the remark on a missing prefix length goes to standard error.
fn read(text: &str, expected: &str) -> Result<IpConfig, CniError> {
    let address = parse_cidr(text).map_err(|_| {
        if parse_ip(text).is_ok() {
            remark!("static: {text} has no prefix length, such as /24");
        }
        invalid(format!("{expected} CIDR notation, got: '{text}'"))
    })?;
    Ok(IpConfig { address, gateway: None, interface: None })
}

/// Gives each address without a gateway the last one that its subnet contains. The reference skips the
/// addresses of `ipam.addresses`.
fn give_gateways(ips: &mut [IpConfig], gateways: &[IpAddr]) {
    for ip in ips {
        ip.gateway =
            ip.gateway.or_else(|| gateways.iter().rev().copied().find(|gw| ip.address.contains(*gw)));
    }
}

fn invalid(msg: String) -> CniError {
    CniError::invalid_config(msg)
}

fn in_cni_args(error: CniError) -> CniError {
    CniError { code: Code::InvalidEnvironment, ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = r#"{"type":"static","addresses":[{"address":"10.1.0.5/24","gateway":"10.1.0.1"},
        {"address":"10.2.0.5/24"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","gw":"10.1.0.2"},
        {"dst":"10.9.0.0/16","gw":"10.1.0.3","priority":5}],"dns":{"nameservers":["10.1.0.1"]}}"#;

    fn load_as(version: &str, ipam: &str, more: &str, args: &str) -> Result<Config, CniError> {
        let text = format!(r#"{{"cniVersion":"{version}","name":"n","type":"bridge","ipam":{ipam}{more}}}"#);
        Config::load(&NetConf::parse(text.into_bytes())?, SpecVersion::parse(version).unwrap(), args)
    }

    fn load(ipam: &str, more: &str, args: &str) -> Result<Config, CniError> {
        load_as("1.0.0", ipam, more, args)
    }

    /// Each address, and its gateway if it has one.
    fn ips(config: &Config) -> Vec<String> {
        let text = |ip: &IpConfig| {
            ip.gateway.map_or(ip.address.to_string(), |gw| format!("{} via {gw}", ip.address))
        };
        config.ips.iter().map(text).collect()
    }

    #[test]
    fn configured_values() {
        let config = load(BASE, "", "").unwrap();
        assert_eq!(ips(&config), ["10.1.0.5/24 via 10.1.0.1", "10.2.0.5/24"]);
        let next_hops: Vec<_> = config.routes.iter().map(|route| route.gw.map(|gw| gw.to_string())).collect();
        assert_eq!(next_hops, [None, Some("10.1.0.2".to_owned()), Some("10.1.0.3".to_owned())]);
        assert_eq!((config.routes[2].priority, config.dns.nameservers[0].as_str()), (5, "10.1.0.1"));
        assert_eq!(load("{}", "", "").unwrap(), Config::default());
        let unusual = r#"{"addresses":[{"Address":"::ffff:10.0.0.1/120","Version":"4"},
            {"address":"3ffe:ffff:0:01ff::1/64"},{"address":"10.0.0.1/24"}]}"#;
        let unusual = load(unusual, "", "").unwrap();
        assert_eq!(ips(&unusual), ["10.0.0.1/24", "3ffe:ffff:0:1ff::1/64", "10.0.0.1/24"]);
    }

    #[test]
    fn sources_append_and_replace() {
        let args = "IgnoreUnknown=1;K8S_POD_NAME=x;IP=10.3.0.5/24, fd00::5/64;GATEWAY=10.2.0.1,10.3.0.9,10.3.0.1, fd00::1";
        let all = ["10.1.0.5/24 via 10.1.0.1", "10.2.0.5/24 via 10.2.0.1", "10.3.0.5/24 via 10.3.0.1"];
        let loaded = ips(&load(BASE, "", args).unwrap());
        assert_eq!(
            (&loaded[..3], loaded[3].as_str()),
            (&all.map(str::to_owned)[..], "fd00::5/64 via fd00::1")
        );
        let cni = r#","args":{"cni":{"ips":["10.4.0.5/24"]}}"#;
        assert_eq!(ips(&load(BASE, cni, args).unwrap()), ["10.4.0.5/24"]);
        let both = format!(r#"{cni},"RuntimeConfig":{{"ips":["10.5.0.5/24","fd00::6/64"]}}"#);
        assert_eq!(ips(&load(BASE, &both, args).unwrap()), ["10.5.0.5/24", "fd00::6/64"]);
        let empty = r#","args":{"cni":{"ips":[]}},"runtimeConfig":{"ips":null}"#;
        assert_eq!(load(BASE, empty, args).unwrap().ips.len(), 4);
    }

    #[test]
    fn errors_have_the_references_texts() {
        let config = |ipam: &'static str, more: &'static str, msg: &'static str| (ipam, more, "", 7, msg);
        let args = |args: &'static str, msg: &'static str| (BASE, "", args, 4, msg);
        for (ipam, more, args, code, msg) in [
            config("null", "", "IPAM config missing 'ipam' key"),
            config("null", r#","args":{"cni":{"ips":["10.0.0.1/24"]}}"#, "IPAM config missing 'ipam' key"),
            config(
                r#"{"addresses":[{"address":"10.0.0.1"}]}"#,
                "",
                "the 'address' field is expected to be in CIDR notation, got: '10.0.0.1'",
            ),
            config(r#"{"addresses":[{"address":"10.0.0.1/24","gateway":"x"}]}"#, "", "invalid IP address: x"),
            config(r#"{"routes":[{"dst":"bad"}]}"#, "", "invalid CIDR address: bad"),
            config(
                BASE,
                r#","args":{"cni":{"ips":["10.0.0.1"]}}"#,
                "an entry in the 'ips' field is NOT in CIDR notation, got: '10.0.0.1'",
            ),
            config(
                BASE,
                r#","runtimeConfig":{"ips":[null]}"#,
                "an entry in the 'ips' field is NOT in CIDR notation, got: ''",
            ),
            args("IP=10.0.0.1", "the 'ip' field is expected to be in CIDR notation, got: '10.0.0.1'"),
            args("IP=10.0.0.1/24,", "the 'ip' field is expected to be in CIDR notation, got: ''"),
            args("GATEWAY=x", "invalid gateway address: x"),
            args("MAC=x", r#"ARGS: unknown args ["MAC=x"]"#),
        ] {
            let error = load(ipam, more, args).unwrap_err();
            assert_eq!((error.code.number(), error.msg.as_str()), (code, msg), "{ipam} {more} {args}");
            assert!(error.details.is_empty() || args == "MAC=x", "{error}");
        }
        assert_eq!(load(r#"{"addresses":"10.0.0.1/24"}"#, "", "").unwrap_err().code, Code::Decode);
    }

    #[test]
    fn replaced_addresses_are_not_checked() {
        let runtime = r#","runtimeConfig":{"ips":["10.5.0.5/24"]}"#;
        assert!(load(r#"{"addresses":[{"address":"x"}]}"#, runtime, "").is_ok());
    }

    #[test]
    fn old_versions_have_one_address_for_each_family() {
        let one = r#"{"addresses":[{"address":"10.0.0.1/24"},{"address":"fd00::1/64"}]}"#;
        for version in ["0.1.0", "0.2.0"] {
            assert!(load_as(version, one, "", "").is_ok());
            let error = load_as(version, one, "", "IP=fd00::2/64").unwrap_err();
            let msg = format!("CNI version {version} does not support more than 1 address per family");
            assert_eq!((error.code, error.msg), (Code::InvalidConfig, msg));
        }
        assert_eq!(load_as("0.3.0", one, "", "IP=fd00::2/64").unwrap().ips.len(), 3);
    }
}
