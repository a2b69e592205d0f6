//! Result layouts: one until 0.2.0, one until 0.4.0, one for 1.0.0 and one for 1.1.0.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use cni_runner::Version;

/// The kind of plugin that printed a result; an IPAM plugin's result has no interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// A plugin that makes or changes interfaces.
    Interface,
    /// An IPAM plugin.
    Ipam,
}

/// Converts a result to the layout of a version and adds `cniVersion`. The model has the layout of 1.1.0.
pub fn render(model: &Value, version: Version) -> Value {
    let mut result = if version < Version::V0_3_0 { oldest(model) } else { listed(model, version) };
    result.insert("cniVersion".to_owned(), version.to_string().into());
    Value::Object(result)
}

/// The layout of 0.1.0 and 0.2.0: the first address of each family, with that family's routes.
fn oldest(model: &Value) -> Map<String, Value> {
    let mut result = Map::new();
    for (key, v6) in [("ip4", false), ("ip6", true)] {
        let Some(ip) = list(model, "ips").find(|ip| looks_v6(&ip["address"]) == v6) else { continue };
        let mut family = Map::from_iter([("ip".to_owned(), ip["address"].clone())]);
        if let Some(gateway) = ip.get("gateway") {
            family.insert("gateway".to_owned(), gateway.clone());
        }
        let routes: Vec<Value> = list(model, "routes")
            .filter(|route| looks_v6(&route["dst"]) == v6)
            .map(|route| picked(route, &["dst", "gw"]))
            .collect();
        if !routes.is_empty() {
            family.insert("routes".to_owned(), routes.into());
        }
        result.insert(key.to_owned(), family.into());
    }
    copy(model, &mut result, &["dns"]);
    result
}

fn listed(model: &Value, version: Version) -> Map<String, Value> {
    let mut result = Map::new();
    let layout = Keys::of(version);
    for (key, keys) in [("interfaces", layout.interface), ("ips", layout.ip), ("routes", layout.route)] {
        let mut items: Vec<Value> = list(model, key).map(|item| picked(item, keys)).collect();
        if items.is_empty() {
            continue;
        }
        if key == "ips" && version < Version::V1_0_0 {
            for item in &mut items {
                let family = if looks_v6(&item["address"]) { "6" } else { "4" };
                item["version"] = family.into();
            }
        }
        result.insert(key.to_owned(), items.into());
    }
    copy(model, &mut result, &["dns"]);
    result
}

/// The keys that each part of a result may have from 0.3.0 on.
struct Keys {
    interface: &'static [&'static str],
    ip: &'static [&'static str],
    route: &'static [&'static str],
}

impl Keys {
    fn of(version: Version) -> Keys {
        let old = Keys {
            interface: &["name", "mac", "sandbox"],
            ip: &["version", "address", "gateway", "interface"],
            route: &["dst", "gw"],
        };
        match version {
            version if version < Version::V1_0_0 => old,
            Version::V1_0_0 => Keys { ip: &["address", "gateway", "interface"], ..old },
            _ => Keys {
                interface: &["name", "mac", "mtu", "sandbox", "socketPath", "pciID"],
                ip: &["address", "gateway", "interface"],
                route: &["dst", "gw", "mtu", "advmss", "priority", "table", "scope"],
            },
        }
    }
}

/// Violations of a version's result layout, one sentence each; empty if the result is valid.
pub fn problems(result: &Value, version: Version, of: Of) -> Vec<String> {
    let mut problems = Vec::new();
    if result["cniVersion"] != version.to_string() {
        problems.push(format!("cniVersion is {}, not {version}", result["cniVersion"]));
    }
    let top: &[&str] = match (version < Version::V0_3_0, of) {
        (true, _) => &["cniVersion", "ip4", "ip6", "dns"],
        (false, Of::Interface) => &["cniVersion", "interfaces", "ips", "routes", "dns"],
        (false, Of::Ipam) => &["cniVersion", "ips", "routes", "dns"],
    };
    only(result, top, "the result", &mut problems);
    dns_problems(&result["dns"], &mut problems);
    if version < Version::V0_3_0 {
        oldest_problems(result, &mut problems)
    } else {
        listed_problems(result, version, of, &mut problems)
    }
    problems
}

fn oldest_problems(result: &Value, problems: &mut Vec<String>) {
    if result["ip4"].is_null() && result["ip6"].is_null() {
        problems.push("the result has neither ip4 nor ip6".to_owned());
    }
    for (key, v6) in [("ip4", false), ("ip6", true)] {
        let family = &result[key];
        if family.is_null() {
            continue;
        }
        only(family, &["ip", "gateway", "routes"], key, problems);
        if is_v6(&family["ip"]) != Some(v6) || !is_cidr(&family["ip"]) {
            problems
                .push(format!("{key}.ip is not an address of its family in CIDR notation: {}", family["ip"]));
        }
        for route in list(family, "routes") {
            route_problems(route, &["dst", "gw"], problems);
        }
    }
}

fn listed_problems(result: &Value, version: Version, of: Of, problems: &mut Vec<String>) {
    let keys = Keys::of(version);
    for key in ["interfaces", "ips", "routes"] {
        if !matches!(result[key], Value::Null | Value::Array(_)) {
            problems.push(format!("{key} is not a list: {}", result[key]));
        }
    }
    for interface in list(result, "interfaces") {
        only(interface, keys.interface, "an interface", problems);
        if interface["name"].as_str().is_none_or(str::is_empty) {
            problems.push(format!("an interface without a name: {interface}"));
        }
        for key in ["mac", "sandbox"] {
            text_or_absent(interface, key, problems);
        }
    }
    let interfaces = list(result, "interfaces").count() as u64;
    for ip in list(result, "ips") {
        let allowed: Vec<&str> =
            keys.ip.iter().copied().filter(|key| of == Of::Interface || *key != "interface").collect();
        only(ip, &allowed, "an address", problems);
        ip_problems(ip, version, problems);
        match &ip["interface"] {
            Value::Null => {}
            index if index.as_u64().is_some_and(|index| index < interfaces) => {}
            index => problems
                .push(format!("interface index {index}, but the result has {interfaces} interfaces: {ip}")),
        }
    }
    for route in list(result, "routes") {
        route_problems(route, keys.route, problems);
    }
}

fn ip_problems(ip: &Value, version: Version, problems: &mut Vec<String>) {
    if !is_cidr(&ip["address"]) {
        problems.push(format!("the address is not in CIDR notation: {ip}"));
    }
    let family = is_v6(&ip["address"]);
    if !ip["gateway"].is_null() && is_v6(&ip["gateway"]) != family {
        problems.push(format!("the gateway is invalid or of the other family: {ip}"));
    }
    let wanted = if family == Some(true) { "6" } else { "4" };
    if version < Version::V1_0_0 && ip["version"] != wanted {
        problems.push(format!("the address's version is {}, not \"{wanted}\": {ip}", ip["version"]));
    }
}

fn route_problems(route: &Value, keys: &[&str], problems: &mut Vec<String>) {
    only(route, keys, "a route", problems);
    if !is_cidr(&route["dst"]) {
        problems.push(format!("the route's dst is not in CIDR notation: {route}"));
    }
    if !route["gw"].is_null() && is_v6(&route["gw"]) != is_v6(&route["dst"]) {
        problems.push(format!("the gateway is invalid or of the other family: {route}"));
    }
    for key in ["mtu", "advmss", "priority", "table", "scope"] {
        if !route[key].is_null() && route[key].as_u64().is_none() {
            problems.push(format!("{key} is not an unsigned number: {route}"));
        }
    }
}

fn dns_problems(dns: &Value, problems: &mut Vec<String>) {
    if dns.is_null() {
        return;
    }
    only(dns, &["nameservers", "domain", "search", "options"], "dns", problems);
    for key in ["nameservers", "search", "options"] {
        let is_texts = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
        if !dns[key].is_null() && !is_texts(&dns[key]) {
            problems.push(format!("dns.{key} is not a list of strings: {}", dns[key]));
        }
    }
    text_or_absent(dns, "domain", problems);
}

fn text_or_absent(object: &Value, key: &str, problems: &mut Vec<String>) {
    if !matches!(object[key], Value::Null | Value::String(_)) {
        problems.push(format!("{key} is not a string: {object}"));
    }
}

fn only(object: &Value, keys: &[&str], what: &str, problems: &mut Vec<String>) {
    let Some(members) = object.as_object() else {
        problems.push(format!("{what} is not an object: {object}"));
        return;
    };
    for key in members.keys().filter(|key| !keys.contains(&key.as_str())) {
        problems.push(format!("{what} has the key {key:?}, which this version does not have"));
    }
}

/// The items of a list in a result; none if the key is missing.
pub fn list<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    object.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// The addresses of a result of any version, in CIDR notation.
pub fn addresses(result: &Value) -> Vec<String> {
    let old = ["ip4", "ip6"].into_iter().filter_map(|key| result[key]["ip"].as_str());
    let new = list(result, "ips").filter_map(|ip| ip["address"].as_str());
    old.chain(new).map(str::to_owned).collect()
}

/// A result without keys that have no meaning: `null`, empty lists and an empty `dns`.
pub fn normalised(result: &Value) -> Value {
    let mut result = result.clone();
    if let Some(members) = result.as_object_mut() {
        members.retain(|_, value| {
            !(value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Map::is_empty))
        });
    }
    result
}

/// Whether an address, with or without prefix length, is IPv6; `None` if it is invalid. A stub's `@N@` counts
/// as a number.
pub fn is_v6(text: &Value) -> Option<bool> {
    let text = text.as_str()?.replace("@N@", "2");
    let address: IpAddr = text.split('/').next()?.parse().ok()?;
    Some(address.is_ipv6())
}

/// Whether an address in a model, which may contain a stub's `@N@`, is IPv6.
fn looks_v6(text: &Value) -> bool {
    text.as_str().is_some_and(|text| text.contains(':'))
}

fn is_cidr(text: &Value) -> bool {
    let Some((address, prefix)) = text.as_str().and_then(|text| text.split_once('/')) else { return false };
    let limit = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    prefix.parse::<u8>().is_ok_and(|prefix| prefix <= limit)
}

fn picked(object: &Value, keys: &[&str]) -> Value {
    let members = object.as_object().into_iter().flatten();
    let kept = members.filter(|(key, _)| keys.contains(&key.as_str()));
    Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
}

fn copy(from: &Value, to: &mut Map<String, Value>, keys: &[&str]) {
    for key in keys {
        if let Some(value) = from.get(key) {
            to.insert((*key).to_owned(), value.clone());
        }
    }
}

/// An IPAM plugin's result in the layout of 1.1.0: one address, its gateway and a default route. A stub
/// replaces `@N@` by the number of the call.
pub fn one_address() -> Value {
    json!({"ips": [{"address": "10.77.0.@N@/24", "gateway": "10.77.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]})
}

/// A result in the layout of 1.1.0 with all kinds of entries, for test cases of conversions.
pub fn full(interface: &str, sandbox: &str) -> Value {
    json!({
        "interfaces": [
            {"name": "host9", "mac": "02:00:00:00:00:01"},
            {"name": interface, "mac": "02:00:00:00:00:02", "sandbox": sandbox}],
        "ips": [
            {"address": "10.76.9.2/24", "gateway": "10.76.9.1", "interface": 1},
            {"address": "fd00:76:9::2/64", "gateway": "fd00:76:9::1", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24", "gw": "10.76.9.1"}, {"dst": "::/0"}],
        "dns": {"nameservers": ["10.76.9.1"], "domain": "trial.example", "search": ["example"], "options": ["ndots:5"]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_results_are_valid_in_every_version() {
        for version in Version::PUBLISHED {
            let result = render(&full("eth0", "/x"), version);
            assert_eq!(problems(&result, version, Of::Interface), Vec::<String>::new(), "{version}");
        }
    }

    #[test]
    fn a_layout_of_another_version_is_found() {
        for version in Version::PUBLISHED {
            for other in Version::PUBLISHED {
                let mut result = render(&full("eth0", "/x"), other);
                result["cniVersion"] = version.to_string().into();
                let family = |version: Version| (version >= Version::V0_3_0, version >= Version::V1_0_0);
                let is_right = problems(&result, version, Of::Interface).is_empty();
                assert_eq!(is_right, family(version) == family(other), "{other} as {version}");
            }
        }
    }

    #[test]
    fn each_problem_is_found() {
        let version = Version::V1_1_0;
        for (pointer, value) in [
            ("/cniVersion", json!("1.0.0")),
            ("/interfaces/0/name", json!("")),
            ("/interfaces/0/color", json!("blue")),
            ("/ips/0/address", json!("10.76.9.2")),
            ("/ips/0/interface", json!(2)),
            ("/ips/1/gateway", json!("10.76.9.1")),
            ("/routes/0/dst", json!("default")),
            ("/routes/0/mtu", json!("1500")),
            ("/dns/search", json!("example")),
        ] {
            let mut result = render(&full("eth0", "/x"), version);
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            result.pointer_mut(parent).unwrap()[key] = value;
            assert_eq!(problems(&result, version, Of::Interface).len(), 1, "{pointer}");
        }
    }
}
