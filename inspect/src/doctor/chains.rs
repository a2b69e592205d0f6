//! Whether the installed plugins can serve each network: they exist, support its CNI version, and say so by STATUS.

use std::collections::BTreeMap;

use cni_common::spec::SpecVersion;
use serde_json::{Map, Value};

use super::networks::{Network, type_of};
use super::{Finding, Places, programs};
use crate::process::{Process, find, join};

/// The version that has STATUS.
const STATUS_VERSION: &str = "1.1.0";

/// What helps if STATUS of a plugin fails; else the message itself says what to change.
const REMEDIES: [(&str, &str); 8] = [
    ("bandwidth", "modprobe -a ifb sch_tbf sch_ingress cls_u32 act_mirred, or use a kernel that has them"),
    ("dhcp", "start the daemon: systemctl enable --now cni-dhcp.socket"),
    ("dummy", "modprobe dummy, or use a kernel that has it"),
    ("firewall", "modprobe nf_tables, or install iptables"),
    ("host-local", "make the folder of dataDir writable for root, and correct the ranges"),
    ("portmap", "modprobe -a nf_tables nft_chain_nat nft_nat, or install iptables"),
    ("vlan", "modprobe 8021q, and make the link of \"master\""),
    ("vrf", "modprobe vrf, or use a kernel that has it"),
];

/// Looks at all networks. Each program answers VERSION once.
pub fn judge(networks: &[Network], places: &Places, ours: &[&str]) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, Result<Vec<String>, String>> = BTreeMap::new();
    let ask =
        |name: &&str| find(&places.path, name).and_then(|program| programs::supported(&program, places));
    for name in networks.iter().flat_map(Network::types) {
        versions.entry(name).or_insert_with_key(ask);
    }
    let mut findings = Vec::new();
    for network in networks {
        for name in network.types() {
            let found = match &versions[name] {
                Ok(versions) => unsupported(network, name, versions),
                Err(why) => {
                    Some(Finding::error(network.subject(), format!("{name}: {why}"), missing(name, ours)))
                }
            };
            findings.extend(found);
        }
        for plugin in &network.plugins {
            let name = type_of(plugin).unwrap_or_default();
            let has_status = |name: &str| {
                versions[name].as_ref().is_ok_and(|all| all.iter().any(|one| one == STATUS_VERSION))
            };
            if has_status(name)
                && let Err(why) = status(network, plugin, places)
            {
                findings.push(Finding::error(network.subject(), format!("{name}: {why}"), remedy(plugin)));
            }
        }
    }
    findings
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

fn remedy(plugin: &Map<String, Value>) -> String {
    let name = type_of(plugin).unwrap_or_default();
    let ipam = super::networks::ipam(plugin).and_then(type_of);
    let of = |wanted: &str| REMEDIES.iter().find(|(name, _)| *name == wanted).map(|(_, remedy)| *remedy);
    let known: Vec<&str> = [Some(name), ipam].into_iter().flatten().filter_map(of).collect();
    match known.is_empty() {
        true => "correct the configuration, or make what it names".to_owned(),
        false => known.join("; "),
    }
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
        let failing = r#"echo '{"code":50,"msg":"no daemon"}'; exit 1"#;
        plugin(&places, "good", "1.1.0", "cat >/dev/null");
        plugin(&places, "old", "0.4.0", failing);
        plugin(&places, "dhcp", "1.1.0", failing);
        let text = r#"[{"type":"good"},{"type":"old"},{"type":"portmap"},{"type":"other"},{"type":"dhcp"}]"#;
        let mut asked = network("pods", text);
        let problems = |network: &Network| -> Vec<(String, String)> {
            let found = judge(std::slice::from_ref(network), &places, &["portmap"]);
            found.into_iter().map(|one| (one.problem, one.remedy)).collect()
        };
        let none = format!("no such program in {}", dir.path().display());
        let expected = [
            (format!("portmap: {none}"), "ferrule install --plugins portmap"),
            (format!("other: {none}"), "install the plugin other; it is not one of Ferrule's"),
            ("dhcp: no daemon".to_owned(), REMEDIES[1].1),
        ];
        assert_eq!(problems(&asked), expected.map(|(problem, remedy)| (problem, remedy.to_owned())));
        asked.version = "1.1.0".to_owned();
        let old = &problems(&asked)[0];
        assert_eq!(old.0, "old does not support CNI 1.1.0; its newest version is 1.0.0");
        assert_eq!(old.1, "set cniVersion to 1.0.0, or install a newer old");
    }
}
