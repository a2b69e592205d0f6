//! Checks that a result has the layout of its specification version.

use serde_json::Value;

/// All versions of the specification, oldest first.
pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Whether results of this version have `ip4` and `ip6` and no interfaces.
pub fn is_per_family(version: &str) -> bool {
    version < "0.3.0"
}

/// Whether this version has the verb CHECK.
pub fn has_check(version: &str) -> bool {
    version >= "0.4.0"
}

const DNS: [&str; 4] = ["nameservers", "domain", "search", "options"];

/// Panics if the result does not have the version's layout: unknown members, missing ones, or inconsistent
/// values.
pub fn assert_layout(version: &str, result: &Value) {
    assert_eq!(result["cniVersion"], version, "{result}");
    if let Some(dns) = result.get("dns") {
        members(dns, &[], &DNS);
    }
    if is_per_family(version) {
        per_family(result);
    } else {
        lists(version, result);
    }
}

fn per_family(result: &Value) {
    members(result, &["cniVersion", "dns"], &["ip4", "ip6"]);
    assert!(result.get("ip4").or(result.get("ip6")).is_some(), "no address: {result}");
    for (key, family) in [("ip4", false), ("ip6", true)] {
        let Some(part) = result.get(key) else { continue };
        members(part, &["ip"], &["gateway", "routes"]);
        assert_eq!(text(part, "ip").contains(':'), family, "{result}");
        for route in each(part, "routes") {
            members(route, &["dst"], &["gw"]);
            assert_eq!(text(route, "dst").contains(':'), family, "{result}");
        }
    }
}

fn lists(version: &str, result: &Value) {
    let is_newest = version == "1.1.0";
    // Before 1.0.0 the reference prints an empty dns, since then it does not.
    let dns: &[&str] = if version < "1.0.0" { &["dns"] } else { &[] };
    members(result, &[&["cniVersion", "interfaces"], dns].concat(), &["ips", "routes", "dns"]);
    let interfaces = each(result, "interfaces");
    for interface in &interfaces {
        members(interface, &["name", "mac"], if is_newest { &["sandbox", "mtu"] } else { &["sandbox"] });
    }
    for ip in each(result, "ips") {
        let (needed, optional): (&[&str], &[&str]) = match version {
            "0.3.0" | "0.3.1" | "0.4.0" => (&["version", "address"], &["gateway", "interface"]),
            _ => (&["address"], &["gateway", "interface"]),
        };
        members(ip, needed, optional);
        let address = text(ip, "address");
        assert!(address.contains('/'), "{result}");
        let family = if address.contains(':') { "6" } else { "4" };
        assert!(ip.get("version").is_none_or(|version| version == family), "{result}");
        let index = ip.get("interface").map(|index| index.as_u64().unwrap());
        assert!(index.is_none_or(|index| index < interfaces.len() as u64), "{result}");
    }
    let attributes: &[&str] =
        if is_newest { &["gw", "mtu", "advmss", "priority", "table", "scope"] } else { &["gw"] };
    for route in each(result, "routes") {
        members(route, &["dst"], attributes);
    }
}

fn members(object: &Value, needed: &[&str], optional: &[&str]) {
    let keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    for key in needed {
        assert!(keys.contains(key), "{key} is missing in {object}");
    }
    for key in keys {
        assert!(needed.contains(&key) || optional.contains(&key), "{key} does not belong in {object}");
    }
}

fn each<'a>(object: &'a Value, key: &str) -> Vec<&'a Value> {
    object.get(key).map(|list| list.as_array().unwrap().iter().collect()).unwrap_or_default()
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap()
}
