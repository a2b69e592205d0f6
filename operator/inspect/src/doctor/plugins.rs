//! The installed plugins: whether they can serve each network, as they exist, support its CNI version and say so by STATUS; and
//! whether they are of one version.

use std::collections::BTreeMap;

use cni_common::spec::SpecVersion;
use serde_json::Value;

use super::networks::{Network, type_of};
use super::{Finding, Places, Subject};
use crate::process::call;

/// The version that has STATUS.
const STATUS_VERSION: &str = "1.1.0";

/// What helps if the error of a plugin names no remedy: the configuration is wrong.
const CORRECT: &str = "correct the configuration, or make what it names";

/// The CNI versions that each plugin supports, or why this is not known.
type Versions<'n> = BTreeMap<&'n str, Result<Vec<String>, String>>;

/// Looks at each network. Each program answers VERSION once.
pub fn judge(networks: &[Network], places: &Places, ours: &[&str]) -> Vec<Subject> {
    let mut versions = Versions::new();
    for name in networks.iter().flat_map(Network::types) {
        versions.entry(name).or_insert_with(|| supported(name, places));
    }
    networks.iter().map(|network| judge_one(network, &versions, places, ours)).collect()
}

fn judge_one(network: &Network, versions: &Versions<'_>, places: &Places, ours: &[&str]) -> Subject {
    let failed = |name: &str, why: &str, remedy: String| {
        Finding::of_text(network.subject(), &format!("{name}: {why}"), remedy)
    };
    let judge = |name: &str| match &versions[name] {
        Ok(versions) => unsupported(network, name, versions),
        Err(why) if ours.contains(&name) => {
            Some(failed(name, why, format!("ferrule install --plugins {name}")))
        }
        Err(why) => Some(failed(name, why, format!("install the plugin {name}; it is not one of Ferrule's"))),
    };
    let mut findings: Vec<Finding> = network.types().filter_map(judge).collect();
    let has_status =
        |name: &str| versions[name].as_ref().is_ok_and(|all| all.iter().any(|one| one == STATUS_VERSION));
    let mut ready = Vec::new();
    for plugin in &network.plugins {
        let name = type_of(plugin).unwrap_or_default();
        // A missing IPAM plugin is a finding already.
        let has_ipam = type_of(&plugin["ipam"]).is_none_or(|ipam| versions[ipam].is_ok());
        if has_status(name) && has_ipam {
            ready.push(name);
            findings.extend(
                status(network, plugin, places).err().map(|why| failed(name, &why, CORRECT.to_owned())),
            );
        }
    }
    let all: Vec<&str> = network.types().collect();
    let asked =
        if ready.is_empty() { "none has STATUS".to_owned() } else { format!("ready: {}", ready.join(", ")) };
    let seen = format!("{} support CNI {}; {asked}", all.join(", "), network.version);
    Subject::new(network.subject(), seen, findings)
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
fn status(network: &Network, plugin: &Value, places: &Places) -> Result<(), String> {
    let mut config = plugin.clone();
    config["name"] = network.name.clone().into();
    config["cniVersion"] = STATUS_VERSION.into();
    let name = type_of(plugin).unwrap_or_default();
    let variables = [("CNI_COMMAND", "STATUS")];
    call(&places.path, name, &variables, &config.to_string(), places.limit).map(drop)
}

/// The CNI versions that a plugin supports, by its answer to VERSION.
fn supported(name: &str, places: &Places) -> Result<Vec<String>, String> {
    let (variables, stdin) = ([("CNI_COMMAND", "VERSION")], r#"{"cniVersion":"1.0.0"}"#);
    let answer = call(&places.path, name, &variables, stdin, places.limit)?.stdout;
    let json: Value = serde_json::from_str(&answer).unwrap_or_default();
    let versions = json["supportedVersions"].as_array();
    let versions = versions.ok_or_else(|| format!("the answer to VERSION is {answer:?}"))?;
    Ok(versions.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// The plugins of Ferrule's names in the folders, grouped by the version that they report: ours, or the reference's.
pub fn installed(places: &Places, plugins: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in plugins {
        // Without a verb, a plugin prints its version and ends.
        let ended = call(&places.path, name, &[], "", places.limit).ok();
        if let Some(version) = ended.and_then(|ended| version(name, &(ended.stderr + &ended.stdout))) {
            groups.entry(version).or_default().push((*name).to_owned());
        }
    }
    groups
}

/// The version in `CNI NAME plugin VERSION`.
fn version(name: &str, written: &str) -> Option<String> {
    let start = format!("CNI {name} plugin ");
    written.lines().find_map(|line| line.strip_prefix(&start)).map(|version| version.trim().to_owned())
}

/// Several versions are a finding.
pub fn judge_versions(groups: &BTreeMap<String, Vec<String>>) -> Subject {
    let listed: Vec<String> =
        groups.iter().map(|(version, names)| format!("{version}: {}", names.join(", "))).collect();
    let seen = groups.iter().map(|(version, names)| format!("{}, all {version}", names.len())).next();
    let problem = format!("their versions differ ({})", listed.join("; "));
    let remedy = "ferrule install; ferrule status tells which files are Ferrule's";
    let finding = (groups.len() > 1).then(|| Finding::warning("plugins", problem, remedy));
    let seen = seen.unwrap_or_else(|| "none of Ferrule's names".to_owned());
    Subject::new("plugins", seen, finding.into_iter().collect())
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
        assert_eq!(
            (seen.outcome().as_str(), seen.seen.as_str()),
            ("ok", "good, old support CNI 1.0.0; ready: good")
        );
    }

    #[test]
    fn versions() {
        let about = |written: &str| version("bridge", written);
        assert_eq!(
            about("CNI bridge plugin v1.1.1\nCNI protocol versions supported: 1.0.0\n").unwrap(),
            "v1.1.1"
        );
        assert_eq!(about("usage: bridge\n"), None);
        let groups = |list: &[(&str, &str)]| {
            let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (version, name) in list {
                groups.entry((*version).to_owned()).or_default().push((*name).to_owned());
            }
            judge_versions(&groups)
        };
        let sound = groups(&[("v1", "bridge"), ("v1", "portmap")]);
        assert_eq!((sound.outcome().as_str(), sound.seen.as_str()), ("ok", "2, all v1"));
        let found = groups(&[("v1", "bridge"), ("v2", "portmap"), ("v1", "ptp")]);
        assert_eq!(found.findings[0].problem, "their versions differ (v1: bridge, ptp; v2: portmap)");
    }
}
