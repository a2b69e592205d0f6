//! Which network configurations a claim may bring along. Pure.
//!
//! Users who make claims write them, and plugins run as root on the node. So only plugins that change nothing but the claimed device
//! and the pod's namespace may run, without the keys that name links, files or sockets of the node.

use cni_common::spec::Json;

use super::Object;

/// The plugins that make the interface: the first of the list.
pub const INTERFACE: [&str; 4] = ["host-device", "macvlan", "ipvlan", "vlan"];
/// The plugins that may follow: they change only the pod's namespace.
pub const CHAINED: [&str; 3] = ["tuning", "sbr", "vrf"];
/// The IPAM plugins.
pub const IPAM: [&str; 3] = ["host-local", "static", "dhcp"];
/// The most plugins of a list.
const MAX_PLUGINS: usize = 8;

/// The keys of a plugin that a claim must not have: ADD sets those that name the device, and the others lead to the node.
const REFUSED: [&str; 19] = [
    "name",
    "cniVersion",
    "prevResult",
    "runtimeConfig",
    "capabilities",
    "args",
    "device",
    "hwaddr",
    "kernelpath",
    "pciBusID",
    "deviceID",
    "resourceName",
    "podResourcesSocket",
    "checkpoint",
    "master",
    "linkInContainer",
    "dataDir",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
];
/// As [`REFUSED`], of `host-device`: the settings of a virtual function by its physical one, which other virtual functions share.
const REFUSED_VF: [&str; 8] =
    ["vlan", "vlanQoS", "vlanProto", "spoofchk", "trust", "link_state", "min_tx_rate", "max_tx_rate"];
/// As [`REFUSED`], in `ipam`.
const REFUSED_IPAM: [&str; 3] = ["dataDir", "resolvConf", "daemonSocketPath"];

/// Checks a network configuration: a list with `plugins`, or a single plugin with `type`.
///
/// # Errors
/// The refused plugin or key, and why.
pub fn check(config: &Object) -> Result<(), String> {
    if config.get("name").is_some_and(|name| !name.as_str().is_some_and(is_name)) {
        return Err(format!("invalid name {}", config["name"]));
    }
    let plugins = plugins(config)?;
    for (index, plugin) in plugins.iter().enumerate() {
        let (position, allowed): (_, &[&str]) =
            if index == 0 { ("first", &INTERFACE) } else { ("next", &CHAINED) };
        let name = kind(plugin)?;
        if !allowed.contains(&name) {
            return Err(format!("the {position} plugin is {name:?} (must be one of {})", allowed.join(", ")));
        }
        refuse(plugin, &REFUSED)?;
        if name == "host-device" {
            refuse(plugin, &REFUSED_VF)?;
        }
        let ipam = plugin.iter().filter(|(key, _)| key.eq_ignore_ascii_case("ipam"));
        for (_, ipam) in ipam {
            let ipam = ipam.as_object().ok_or("ipam is not an object")?;
            if !ipam.is_empty() {
                check_ipam(ipam).map_err(|why| format!("ipam: {why}"))?;
            }
        }
    }
    Ok(())
}

/// Checks the section `ipam`.
///
/// # Errors
/// The refused plugin or key, and why.
pub fn check_ipam(ipam: &Object) -> Result<(), String> {
    let name = kind(ipam)?;
    if !IPAM.contains(&name) {
        return Err(format!("the type is {name:?} (must be one of {})", IPAM.join(", ")));
    }
    refuse(ipam, &REFUSED_IPAM)
}

/// The plugins of a configuration, without the keys of the whole.
///
/// # Errors
/// The list is empty, too long or malformed.
pub fn plugins(config: &Object) -> Result<Vec<Object>, String> {
    let Some(plugins) = config.get("plugins") else {
        let mut single = config.clone();
        single.retain(|key, _| !["name", "cniVersion"].contains(&key.as_str()));
        return Ok(vec![single]);
    };
    if let Some(key) = config.keys().find(|key| !["name", "cniVersion", "plugins"].contains(&key.as_str())) {
        return Err(format!("the key {key:?} is not known beside plugins"));
    }
    let objects = plugins.as_array().map(|all| all.iter().map(|one| one.as_object().cloned()).collect());
    let objects: Option<Vec<Object>> = objects.flatten();
    let objects = objects.ok_or("plugins is not a list of objects")?;
    match objects.len() {
        1..=MAX_PLUGINS => Ok(objects),
        count => Err(format!("{count} plugins (must be 1 to {MAX_PLUGINS})")),
    }
}

/// The key `type` in this spelling: another one would be read too.
fn kind(plugin: &Object) -> Result<&str, String> {
    let others = plugin.keys().filter(|key| key.to_lowercase() == "type").count();
    let name = plugin.get("type").and_then(|name| name.as_str()).filter(|_| others == 1);
    name.ok_or_else(|| "there must be one key \"type\" with a text".to_owned())
}

/// Plugins read keys by Go's rules, so these rules decide here too.
fn refuse(object: &Object, refused: &[&str]) -> Result<(), String> {
    let text = serde_json::to_vec(object).map_err(|error| error.to_string())?;
    let json = Json::parse(&text).map_err(|error| error.to_string())?;
    match refused.iter().find(|key| json.has_key(key)) {
        Some(key) => Err(format!("a claim must not have the key {key:?}")),
        None => Ok(()),
    }
}

/// A name of a network, with room for what ADD appends.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str) -> Result<(), String> {
        check(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn configurations_of_a_claim() {
        for good in [
            r#"{"type":"macvlan","mode":"bridge","ipam":{}}"#,
            r#"{"cniVersion":"1.0.0","name":"mv","type":"vlan","vlanId":5,"ipam":{"type":"static"}}"#,
            r#"{"name":"mv","plugins":[{"type":"host-device"},{"type":"tuning","mtu":1400},{"type":"vrf","vrfname":"red"}]}"#,
        ] {
            assert_eq!(judge(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("{}", r#"there must be one key "type""#),
            (r#"{"type":"bridge"}"#, r#"the first plugin is "bridge" (must be one of host-device, macvlan,"#),
            (r#"{"type":"macvlan","Type":"bridge"}"#, r#"there must be one key "type""#),
            (r#"{"Type":"macvlan"}"#, r#"there must be one key "type""#),
            (r#"{"name":"../x","type":"macvlan"}"#, r#"invalid name "../x""#),
            (r#"{"plugins":[]}"#, "0 plugins (must be 1 to 8)"),
            (r#"{"plugins":[7]}"#, "plugins is not a list of objects"),
            (r#"{"plugins":{},"x":1}"#, r#"the key "x" is not known beside plugins"#),
            (r#"{"plugins":[{"type":"tuning"}]}"#, r#"the first plugin is "tuning""#),
            (
                r#"{"plugins":[{"type":"vlan"},{"type":"portmap"}]}"#,
                r#"the next plugin is "portmap" (must be one of tuning"#,
            ),
            (r#"{"type":"macvlan","MASTER":"eth0"}"#, r#"a claim must not have the key "master""#),
            (r#"{"type":"host-device","device":"eth0"}"#, r#"a claim must not have the key "device""#),
            (r#"{"type":"host-device","Trust":"on"}"#, r#"a claim must not have the key "trust""#),
            (r#"{"type":"host-device","max_tx_rate":0}"#, r#"a claim must not have the key "max_tx_rate""#),
            (r#"{"type":"host-device","min_tx_rate":9}"#, r#"a claim must not have the key "min_tx_rate""#),
            (
                r#"{"type":"host-device","link_state":"enable"}"#,
                r#"a claim must not have the key "link_state""#,
            ),
            // The letter that Go takes for a k.
            (
                "{\"type\":\"host-device\",\"\u{212a}ernelpath\":\"/x\"}",
                r#"a claim must not have the key "kernelpath""#,
            ),
            (
                r#"{"plugins":[{"type":"vlan"},{"type":"tuning","datadir":"/etc"}]}"#,
                r#"a claim must not have the key "dataDir""#,
            ),
            (
                r#"{"type":"macvlan","ipam":{"type":"host-local","dataDir":"/etc"}}"#,
                r#"ipam: a claim must not have the key "dataDir""#,
            ),
            (
                r#"{"type":"macvlan","IPAM":{"type":"x"}}"#,
                r#"ipam: the type is "x" (must be one of host-local"#,
            ),
            (r#"{"type":"macvlan","ipam":7}"#, "ipam is not an object"),
        ] {
            let error = judge(bad).unwrap_err();
            assert!(error.starts_with(why), "{bad}: {error}");
        }
    }
}
