//! Whether the installed plugins can serve each network: they exist, support its CNI version, and say so by STATUS.

use std::collections::BTreeMap;

use cni_common::spec::SpecVersion;
use serde_json::{Map, Value};

use super::networks::{Network, ipam, type_of};
use super::{Finding, Places, Subject, programs};
use crate::process::{Process, find, join};

/// The version that has STATUS.
const STATUS_VERSION: &str = "1.1.0";

/// What helps if the error of a plugin names no remedy: the configuration is wrong.
const CORRECT: &str = "correct the configuration, or make what it names";

/// Looks at each network. Each program answers VERSION once.
pub fn judge(networks: &[Network], places: &Places, ours: &[&str]) -> Vec<Subject> {
    let mut versions: BTreeMap<&str, Result<Vec<String>, String>> = BTreeMap::new();
    let ask =
        |name: &&str| find(&places.path, name).and_then(|program| programs::supported(&program, places));
    for name in networks.iter().flat_map(Network::types) {
        versions.entry(name).or_insert_with_key(ask);
    }
    networks.iter().map(|network| judge_one(network, &versions, places, ours)).collect()
}

fn judge_one(
    network: &Network,
    versions: &BTreeMap<&str, Result<Vec<String>, String>>,
    places: &Places,
    ours: &[&str],
) -> Subject {
    let mut findings = Vec::new();
    for name in network.types() {
        let found = match &versions[name] {
            Ok(versions) => unsupported(network, name, versions),
            Err(why) => {
                Some(Finding::of_text(network.subject(), &format!("{name}: {why}"), missing(name, ours)))
            }
        };
        findings.extend(found);
    }
    let has_status =
        |name: &str| versions[name].as_ref().is_ok_and(|all| all.iter().any(|one| one == STATUS_VERSION));
    let mut ready = Vec::new();
    for plugin in &network.plugins {
        let name = type_of(plugin).unwrap_or_default();
        // A missing IPAM plugin is a finding already.
        let has_ipam = ipam(plugin).and_then(type_of).is_none_or(|ipam| versions[ipam].is_ok());
        if !has_status(name) || !has_ipam {
            continue;
        }
        ready.push(name);
        if let Err(why) = status(network, plugin, places) {
            findings.push(Finding::of_text(network.subject(), &format!("{name}: {why}"), CORRECT));
        }
    }
    let all: Vec<&str> = network.types().collect();
    let asked =
        if ready.is_empty() { "none has STATUS".to_owned() } else { format!("ready: {}", ready.join(", ")) };
    let seen = format!("{} support CNI {}; {asked}", all.join(", "), network.version);
    Subject::new(network.subject(), seen, findings)
}

fn missing(name: &str, ours: &[&str]) -> String {
    match ours.contains(&name) {
        true => format!("ferrule install --plugins {name}"),
        false => format!("install the plugin {name}; it is not one of Ferrule's"),
    }
}

/// A runtime uses the network's version with every plugin.
fn unsupported(network: &Network, name: &str, versions: &[String]) -> Option<Finding> {
    if versions.contains(&network.version) {
        return None;
    }
    let newest = versions.iter().max_by_key(|version| SpecVersion::parse(version));
    let newest = newest.map_or("none", String::as_str);
    Some(Finding::error(
        network.subject(),
        format!("{name} does not support CNI {}; its newest version is {newest}", network.version),
        format!("set cniVersion to {newest}, or install a newer {name}"),
    ))
}

/// A plugin with IPAM asks its IPAM plugin.
fn status(network: &Network, plugin: &Map<String, Value>, places: &Places) -> Result<(), String> {
    let name = type_of(plugin).unwrap_or_default();
    let mut config = plugin.clone();
    config.insert("name".to_owned(), network.name.clone().into());
    config.insert("cniVersion".to_owned(), STATUS_VERSION.into());
    let variables = [("CNI_COMMAND", "STATUS".to_owned()), ("CNI_PATH", join(&places.path))];
    let process = Process::start(&find(&places.path, name)?, &variables, &Value::Object(config).to_string())?;
    process.wait(places.limit).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::super::networks::tests::network;
    use super::*;

    /// A folder with a script `NAME` that supports a version and answers STATUS with `status`.
    fn plugin(places: &Places, name: &str, version: &str, status: &str) {
        let file = places.path[0].join(name);
        let script = format!(
            "#!/bin/sh\n[ $CNI_COMMAND = VERSION ] || {{ {status}; }}\necho '{{\"supportedVersions\":[\"1.0.0\",\"{version}\"]}}'\n"
        );
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn every_reason_why_a_network_cannot_be_served() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places {
            conf_dir: "/n".into(),
            path: vec![dir.path().to_owned()],
            limit: Duration::from_secs(60),
            init: None,
        };
        let failing = r#"echo '{"code":50,"msg":"no daemon","details":"remedy: start it"}'; exit 1"#;
        plugin(&places, "good", "1.1.0", "cat >/dev/null");
        plugin(&places, "bare", "1.1.0", r#"echo '{"code":7,"msg":"no key"}'; exit 1"#);
        plugin(&places, "old", "0.4.0", failing);
        plugin(&places, "dhcp", "1.1.0", failing);
        let text = r#"[{"type":"good"},{"type":"old"},{"type":"portmap"},{"type":"other"},{"type":"dhcp"},{"type":"bare"},
            {"type":"good","ipam":{"type":"other"}}]"#;
        let mut asked = network("pods", text);
        let problems = |network: &Network| -> Vec<(String, String)> {
            let found = judge(std::slice::from_ref(network), &places, &["portmap"]).remove(0);
            found.findings.into_iter().map(|one| (one.problem, one.remedy)).collect()
        };
        let none = format!("no such program in {}", dir.path().display());
        let expected = [
            (format!("portmap: {none}"), "ferrule install --plugins portmap"),
            (format!("other: {none}"), "install the plugin other; it is not one of Ferrule's"),
            (format!("other: {none}"), "install the plugin other; it is not one of Ferrule's"),
            ("dhcp: no daemon".to_owned(), "start it"),
            ("bare: no key".to_owned(), CORRECT),
        ];
        assert_eq!(problems(&asked), expected.map(|(problem, remedy)| (problem, remedy.to_owned())));
        asked.version = "1.1.0".to_owned();
        let old = &problems(&asked)[0];
        assert_eq!(old.0, "old does not support CNI 1.1.0; its newest version is 1.0.0");
        assert_eq!(old.1, "set cniVersion to 1.0.0, or install a newer old");
        let sound = network("pods", r#"[{"type":"good"},{"type":"old"}]"#);
        let seen = judge(&[sound], &places, &[]).remove(0);
        assert_eq!((seen.outcome(), seen.seen.as_str()), ("ok", "good, old support CNI 1.0.0; ready: good"));
    }
}
