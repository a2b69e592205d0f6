//! Encoding and decoding of results in JSON, with one layout for each group of versions.
//!
//! The encoder omits every field that the target version does not define. The decoder ignores unknown keys,
//! and reads the 1.1.0 attributes of routes in results of older versions too, because the reference's IPAM
//! plugins write them.
//!
//! # References
//! CNI specification 0.2.0, 0.4.0, 1.0.0 and 1.1.0, section "Result".

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::addr::{parse_cidr, parse_ip};
use super::error::{CniError, Code};
use super::json::Json;
use super::result::{AddResult, Dns, Interface, IpConfig, Route};
use super::version::{Layout, SpecVersion};

impl AddResult {
    /// The result in the layout of `version`.
    ///
    /// # Errors
    /// 0.1.0 and 0.2.0 have no layout for a result without an address.
    pub fn to_json(&self, version: SpecVersion) -> Result<Value, CniError> {
        let has_attributes = version >= SpecVersion::V1_1_0;
        let with_version = version.layout() == Layout::VersionedIps;
        let interfaces = self.interfaces.iter().map(|interface| write_interface(interface, has_attributes));
        let dns = if with_version || !self.dns.is_empty() { write_dns(&self.dns) } else { Value::Null };
        let version_text = ("cniVersion", version.as_str().into());
        if version.layout() != Layout::PerFamily {
            return Ok(object([
                version_text,
                ("interfaces", list(interfaces)),
                ("ips", list(self.ips.iter().map(|ip| write_ip(ip, with_version)))),
                ("routes", list(self.routes.iter().map(|route| write_route(route, has_attributes)))),
                ("dns", dns),
            ]));
        }
        let [ip4, ip6] = [true, false].map(|is_ipv4| self.write_family(is_ipv4));
        if ip4.is_null() && ip6.is_null() {
            return Err(CniError::internal("cannot convert: no valid IP addresses"));
        }
        Ok(object([version_text, ("ip4", ip4), ("ip6", ip6), ("dns", write_dns(&self.dns))]))
    }

    /// `ip4` or `ip6`: the first address of the family, and its routes. Null if it has no address.
    fn write_family(&self, is_ipv4: bool) -> Value {
        let ip = self.ips.iter().find(|ip| ip.address.is_ipv4() == is_ipv4);
        let routes = self.routes.iter().filter(|route| route.dst.is_ipv4() == is_ipv4);
        ip.map_or(Value::Null, |ip| {
            object([
                ("ip", ip.address.to_string().into()),
                ("gateway", ip.gateway.map(|gw| gw.to_string()).into()),
                ("routes", list(routes.map(|route| write_route(route, false)))),
            ])
        })
    }

    /// Decodes the output of a delegate. A result without `cniVersion` has version `assumed`; `null` is an
    /// empty result.
    ///
    /// # Errors
    /// A message that names the invalid part.
    pub fn from_json(json: &Json, assumed: SpecVersion) -> Result<Self, String> {
        let wire: WireResult = json.decode().map_err(|error| error.to_string())?;
        let version = wire.version(assumed)?;
        wire.into_result(version)
    }

    /// Decodes `prevResult` of a configuration of version `config`. Both versions must have the same layout.
    ///
    /// # Errors
    /// Code 7 with the reference's text, `could not parse prevResult: ...`.
    pub fn from_prev_result(json: &Json, config: SpecVersion) -> Result<Self, CniError> {
        let read = || -> Result<Self, String> {
            let wire: WireResult = json.decode().map_err(|error| error.to_string())?;
            let of_family = |version: &SpecVersion| version.layout() == config.layout();
            let Some(version) = wire.version(config).ok().filter(of_family) else {
                let family: Vec<&str> =
                    SpecVersion::ALL.iter().filter(|v| of_family(v)).map(|v| v.as_str()).collect();
                return Err(format!(
                    "result type supports [{}] but unmarshalled CNIVersion is {:?}",
                    family.join(" "),
                    wire.cni_version
                ));
            };
            wire.into_result(version)
        };
        read().map_err(|why| CniError::new(Code::InvalidConfig, format!("could not parse prevResult: {why}")))
    }
}

/// An object of those fields that are not null.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let mut object = Map::new();
    // Not `collect`, whose sort adds 3 kB to the program.
    object.extend(
        fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.to_owned(), value)),
    );
    Value::Object(object)
}

/// Null if it is empty.
fn text(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { text.into() }
}

/// Null if it is 0.
fn number(number: u32) -> Value {
    if number == 0 { Value::Null } else { number.into() }
}

/// Null if it is empty.
fn list(values: impl Iterator<Item = Value>) -> Value {
    let values: Vec<Value> = values.collect();
    if values.is_empty() { Value::Null } else { values.into() }
}

fn write_interface(interface: &Interface, has_attributes: bool) -> Value {
    let attribute = |value| if has_attributes { value } else { Value::Null };
    object([
        ("name", interface.name.as_str().into()),
        ("mac", text(&interface.mac)),
        ("sandbox", text(&interface.sandbox)),
        ("mtu", attribute(number(interface.mtu))),
        ("socketPath", attribute(text(&interface.socket_path))),
        ("pciID", attribute(text(&interface.pci_id))),
    ])
}

fn write_ip(ip: &IpConfig, with_version: bool) -> Value {
    let version = if ip.address.is_ipv4() { "4" } else { "6" };
    object([
        ("version", text(if with_version { version } else { "" })),
        ("address", ip.address.to_string().into()),
        ("gateway", ip.gateway.map(|gw| gw.to_string()).into()),
        ("interface", ip.interface.into()),
    ])
}

fn write_route(route: &Route, has_attributes: bool) -> Value {
    let attribute = |value| if has_attributes { value } else { Value::Null };
    object([
        ("dst", route.dst.to_string().into()),
        ("gw", route.gw.map(|gw| gw.to_string()).into()),
        ("mtu", attribute(number(route.mtu))),
        ("advmss", attribute(number(route.advmss))),
        ("priority", attribute(number(route.priority))),
        ("table", attribute(route.table.into())),
        ("scope", attribute(route.scope.into())),
    ])
}

fn write_dns(dns: &Dns) -> Value {
    let texts = |texts: &[String]| list(texts.iter().map(|text| text.as_str().into()));
    object([
        ("nameservers", texts(&dns.nameservers)),
        ("domain", text(&dns.domain)),
        ("search", texts(&dns.search)),
        ("options", texts(&dns.options)),
    ])
}

/// The fields of all layouts. The version decides which of them are used.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireResult {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    interfaces: Vec<Interface>,
    ips: Vec<WireIp>,
    routes: Vec<WireRoute>,
    dns: Dns,
    ip4: Option<WireFamily>,
    ip6: Option<WireFamily>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireIp {
    address: String,
    gateway: String,
    interface: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireFamily {
    ip: String,
    gateway: String,
    routes: Vec<WireRoute>,
}

/// A route in the JSON of results and IPAM configurations. An absent or empty `gw` means that there is no
/// next hop.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WireRoute {
    dst: String,
    gw: String,
    mtu: u32,
    advmss: u32,
    priority: u32,
    table: Option<u32>,
    scope: Option<u32>,
}

impl WireRoute {
    /// Converts to [`Route`].
    ///
    /// # Errors
    /// `invalid CIDR address: X` or `invalid IP address: X`.
    pub fn into_route(self) -> Result<Route, String> {
        Ok(Route {
            dst: parse_cidr(&self.dst)?,
            gw: (!self.gw.is_empty()).then(|| parse_ip(&self.gw)).transpose()?,
            mtu: self.mtu,
            advmss: self.advmss,
            priority: self.priority,
            table: self.table,
            scope: self.scope,
        })
    }
}

fn read_ip(address: &str, gateway: &str, interface: Option<i64>) -> Result<IpConfig, String> {
    let address: IpNetwork = parse_cidr(address)?;
    let gateway = (!gateway.is_empty()).then(|| parse_ip(gateway)).transpose()?;
    Ok(IpConfig { address, gateway, interface })
}

impl WireResult {
    fn version(&self, assumed: SpecVersion) -> Result<SpecVersion, String> {
        if self.cni_version.is_empty() {
            return Ok(assumed);
        }
        SpecVersion::parse(&self.cni_version)
            .ok_or_else(|| format!("unsupported CNI result version {:?}", self.cni_version))
    }

    fn into_result(self, version: SpecVersion) -> Result<AddResult, String> {
        if version.layout() == Layout::PerFamily {
            return self.into_result_of_families();
        }
        Ok(AddResult {
            interfaces: self.interfaces,
            ips: self
                .ips
                .iter()
                .map(|ip| read_ip(&ip.address, &ip.gateway, ip.interface))
                .collect::<Result<_, _>>()?,
            routes: self.routes.into_iter().map(WireRoute::into_route).collect::<Result<_, _>>()?,
            dns: self.dns,
        })
    }

    fn into_result_of_families(self) -> Result<AddResult, String> {
        let mut result = AddResult { dns: self.dns, ..AddResult::default() };
        for family in [self.ip4, self.ip6].into_iter().flatten() {
            result.ips.push(read_ip(&family.ip, &family.gateway, None)?);
            for route in family.routes {
                result.routes.push(route.into_route()?);
            }
        }
        Ok(result)
    }
}
