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
        let mut object = Map::new();
        object.insert("cniVersion".to_owned(), version.as_str().into());
        match version.layout() {
            Layout::PerFamily => self.write_families(&mut object)?,
            Layout::VersionedIps | Layout::Ips => self.write_lists(&mut object, version),
        }
        Ok(Value::Object(object))
    }

    /// `ip4` and `ip6`: the first address of each family, and the routes of that family.
    fn write_families(&self, object: &mut Map<String, Value>) -> Result<(), CniError> {
        for (key, is_ipv4) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.is_ipv4() == is_ipv4) else { continue };
            let mut family = Map::new();
            family.insert("ip".to_owned(), ip.address.to_string().into());
            put(&mut family, "gateway", ip.gateway.map(|gw| gw.to_string()));
            let routes = self.routes.iter().filter(|route| route.dst.is_ipv4() == is_ipv4);
            put_list(&mut family, "routes", routes.map(|route| write_route(route, false)).collect());
            object.insert(key.to_owned(), Value::Object(family));
        }
        if object.len() == 1 {
            return Err(CniError::internal("cannot convert: no valid IP addresses"));
        }
        object.insert("dns".to_owned(), write_dns(&self.dns));
        Ok(())
    }

    fn write_lists(&self, object: &mut Map<String, Value>, version: SpecVersion) {
        let attributes = version.has_attributes();
        let interfaces = self.interfaces.iter().map(|interface| write_interface(interface, attributes));
        put_list(object, "interfaces", interfaces.collect());
        let with_version = version.layout() == Layout::VersionedIps;
        put_list(object, "ips", self.ips.iter().map(|ip| write_ip(ip, with_version)).collect());
        put_list(object, "routes", self.routes.iter().map(|route| write_route(route, attributes)).collect());
        if with_version || !self.dns.is_empty() {
            object.insert("dns".to_owned(), write_dns(&self.dns));
        }
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

fn put<V: Into<Value>>(object: &mut Map<String, Value>, key: &str, value: Option<V>) {
    if let Some(value) = value {
        object.insert(key.to_owned(), value.into());
    }
}

fn put_text(object: &mut Map<String, Value>, key: &str, text: &str) {
    put(object, key, (!text.is_empty()).then_some(text));
}

fn put_number(object: &mut Map<String, Value>, key: &str, number: u32) {
    put(object, key, (number != 0).then_some(number));
}

fn put_list(object: &mut Map<String, Value>, key: &str, list: Vec<Value>) {
    put(object, key, (!list.is_empty()).then_some(list));
}

fn write_interface(interface: &Interface, attributes: bool) -> Value {
    let mut object = Map::new();
    object.insert("name".to_owned(), interface.name.as_str().into());
    put_text(&mut object, "mac", &interface.mac);
    put_text(&mut object, "sandbox", &interface.sandbox);
    if attributes {
        put_number(&mut object, "mtu", interface.mtu);
        put_text(&mut object, "socketPath", &interface.socket_path);
        put_text(&mut object, "pciID", &interface.pci_id);
    }
    Value::Object(object)
}

fn write_ip(ip: &IpConfig, with_version: bool) -> Value {
    let mut object = Map::new();
    if with_version {
        object.insert("version".to_owned(), if ip.address.is_ipv4() { "4" } else { "6" }.into());
    }
    object.insert("address".to_owned(), ip.address.to_string().into());
    put(&mut object, "gateway", ip.gateway.map(|gw| gw.to_string()));
    put(&mut object, "interface", ip.interface);
    Value::Object(object)
}

fn write_route(route: &Route, attributes: bool) -> Value {
    let mut object = Map::new();
    object.insert("dst".to_owned(), route.dst.to_string().into());
    put(&mut object, "gw", route.gw.map(|gw| gw.to_string()));
    if attributes {
        put_number(&mut object, "mtu", route.mtu);
        put_number(&mut object, "advmss", route.advmss);
        put_number(&mut object, "priority", route.priority);
        put(&mut object, "table", route.table);
        put(&mut object, "scope", route.scope);
    }
    Value::Object(object)
}

fn write_dns(dns: &Dns) -> Value {
    let mut object = Map::new();
    let list = |list: &[String]| list.iter().map(|text| Value::from(text.as_str())).collect();
    put_list(&mut object, "nameservers", list(&dns.nameservers));
    put_text(&mut object, "domain", &dns.domain);
    put_list(&mut object, "search", list(&dns.search));
    put_list(&mut object, "options", list(&dns.options));
    Value::Object(object)
}

/// The fields of all layouts. The version decides which of them are used.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireResult {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    interfaces: Vec<WireInterface>,
    ips: Vec<WireIp>,
    routes: Vec<WireRoute>,
    dns: Dns,
    ip4: Option<WireFamily>,
    ip6: Option<WireFamily>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireInterface {
    name: String,
    mac: String,
    mtu: u32,
    sandbox: String,
    #[serde(rename = "socketPath")]
    socket_path: String,
    #[serde(rename = "pciID")]
    pci_id: String,
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
            interfaces: self.interfaces.into_iter().map(WireInterface::into_interface).collect(),
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

impl WireInterface {
    fn into_interface(self) -> Interface {
        Interface {
            name: self.name,
            mac: self.mac,
            mtu: self.mtu,
            sandbox: self.sandbox,
            socket_path: self.socket_path,
            pci_id: self.pci_id,
        }
    }
}
