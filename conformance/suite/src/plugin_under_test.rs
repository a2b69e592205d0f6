//! The plugins that the suite judges, and their descriptions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use cni_lab::{Node, Place as _};
use cni_runner::{Exec, Version};

/// The descriptions of the plugins that the suite knows.
const KNOWN: &str = include_str!("known-plugins.json");
/// The name of the list of a folder's plugins: bridge and host-local, with portmap, bandwidth and loopback
/// if present.
pub const LIST: &str = "list";

/// The role of a plugin in a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Brings up `lo`.
    Loopback,
    /// Makes an interface; the first plugin of a chain.
    Interface,
    /// Assigns addresses; called by other plugins.
    Ipam,
    /// Comes after other plugins and works on their interface.
    Chained,
    /// Not described: only the test cases run that apply to every plugin.
    Unknown,
    /// Not one plugin but the chain of the folder's plugins, as callers use it.
    Chain,
}

/// The roles of all single plugins that are described.
pub const PLUGINS: &[Role] = &[Role::Loopback, Role::Interface, Role::Ipam, Role::Chained];
/// The roles of all single plugins.
pub const ANY: &[Role] = &[Role::Loopback, Role::Interface, Role::Ipam, Role::Chained, Role::Unknown];
/// The roles of plugins that leave state which another call can find.
pub const STATEFUL: &[Role] = &[Role::Interface, Role::Ipam, Role::Chained];

/// What the suite needs to know about a plugin, from its own list or from the user's file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Its role.
    pub role: Role,
    /// Its keys in the network configuration, without `type`.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// Whether it calls an IPAM plugin. If so, the suite adds `ipam` to the configuration, or to the first of its `plugins`.
    #[serde(default)]
    pub delegates: bool,
    /// Whether it makes the configuration of its delegates itself.
    #[serde(default)]
    pub rewrites: bool,
    /// Shell commands that prepare a node for it.
    #[serde(default)]
    pub setup: Vec<String>,
    /// The processes that run on a node beside it.
    #[serde(default)]
    pub daemons: Vec<Daemon>,
    /// A shell command that makes the interface `@IFNAME@` in the namespace `@NETNS@`, for an IPAM plugin that uses
    /// the interface.
    pub interface: Option<String>,
    /// Programs of the machine that these commands need.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Link types, as in `ip link add type`, that it needs.
    #[serde(default)]
    pub links: Vec<String>,
    /// Queueing disciplines, as in `tc qdisc add`, that it needs.
    #[serde(default)]
    pub qdiscs: Vec<String>,
    /// The user's file, if it is from there.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

/// A process that runs on a node as long as the test case.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// The shell command; `@DIR@` is the folder of the plugin.
    pub run: String,
    /// A shell command that succeeds once the process is ready.
    pub ready: String,
}

/// A plugin that the suite judges.
#[derive(Debug, Clone)]
pub struct PluginUnderTest {
    /// Its file name, which is also its `type`.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its description.
    pub description: Description,
    /// Whether it calls an IPAM plugin.
    pub delegates: bool,
    /// Its folder.
    pub dir: PathBuf,
    /// The published versions that it declares; all if its answer to VERSION cannot be read.
    pub versions: Vec<Version>,
}

impl PluginUnderTest {
    /// The path of its program.
    pub fn binary(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Another plugin of the same folder, if it is there.
    pub fn neighbour(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.join(name)).filter(|file| file.is_file())
    }
}

/// The plugins of a folder, sorted by name, and the chain that they form; only those in `names` unless that
/// is empty. Each program is asked for its versions, on a node if `with_node`: an unknown program may change
/// something.
pub fn plugins_under_test(
    dir: &Path,
    names: &[String],
    descriptions: Option<&Path>,
    with_node: bool,
) -> anyhow::Result<Vec<PluginUnderTest>> {
    let mut known: BTreeMap<String, Description> =
        serde_json::from_str(KNOWN).context("parse the suite's list of known plugins")?;
    if let Some(file) = descriptions {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let mut more: BTreeMap<String, Description> =
            serde_json::from_str(&text).with_context(|| format!("parse {}", file.display()))?;
        let path = file.canonicalize().with_context(|| format!("find {}", file.display()))?;
        more.values_mut().for_each(|description| description.file = Some(path.clone()));
        known.extend(more);
    }
    let dir = dir.canonicalize().with_context(|| format!("find the folder {}", dir.display()))?;
    let files = std::fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
    let mut found = Vec::new();
    for file in files {
        let file = file.with_context(|| format!("list {}", dir.display()))?;
        let name = file.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && is_program(&file.path()) {
            found.push(name);
        }
    }
    found.sort();
    if ["bridge", "host-local"].iter().all(|part| found.iter().any(|name| name == part)) {
        found.push(LIST.to_owned());
    }
    if let Some(missing) = names.iter().find(|name| !found.contains(name)) {
        anyhow::bail!("the folder {} has no plugin {missing}", dir.display());
    }
    found.retain(|name| names.is_empty() || names.contains(name));
    let discovery = Discovery { dir: &dir, node: with_node.then(Node::new).transpose()? };
    Ok(found.into_iter().filter_map(|name| discovery.plugin(name, &known, !names.is_empty())).collect())
}

/// Asks the programs of a folder for their versions.
struct Discovery<'a> {
    dir: &'a Path,
    node: Option<Node>,
}

impl Discovery<'_> {
    /// A plugin of the folder. `None` for a program that has no description and does not answer VERSION,
    /// unless it was `chosen`.
    fn plugin(
        &self,
        name: String,
        known: &BTreeMap<String, Description>,
        chosen: bool,
    ) -> Option<PluginUnderTest> {
        let unknown = Description {
            role: Role::Unknown,
            config: Map::new(),
            delegates: false,
            rewrites: false,
            setup: Vec::new(),
            daemons: Vec::new(),
            interface: None,
            tools: Vec::new(),
            links: Vec::new(),
            qdiscs: Vec::new(),
            file: None,
        };
        let description = known.get(&name).cloned().unwrap_or(unknown);
        let versions = match description.role {
            Role::Chain => Some(self.chain_versions()),
            _ => self.declared_versions(&name),
        };
        if versions.is_none() && description.role == Role::Unknown && !chosen {
            return None;
        }
        Some(PluginUnderTest {
            role: description.role,
            delegates: description.delegates,
            description,
            dir: self.dir.to_owned(),
            versions: versions.unwrap_or_else(|| Version::PUBLISHED.to_vec()),
            name,
        })
    }

    /// The published versions in a plugin's answer to VERSION.
    fn declared_versions(&self, name: &str) -> Option<Vec<Version>> {
        let newest = Version::V1_1_0.to_string();
        let exec = Exec::new(self.dir.join(name), "VERSION")
            .stdin(json!({"cniVersion": newest}).to_string())
            .timeout(Duration::from_secs(5));
        let output = self.node.as_ref().map_or_else(|| exec.run(), |node| node.call(&exec));
        let answer = output.ok()?.document().ok()?;
        let texts = answer.get("supportedVersions")?.as_array()?.iter().filter_map(Value::as_str);
        let versions: Vec<Version> =
            texts.filter_map(Version::parse).filter(|version| Version::PUBLISHED.contains(version)).collect();
        (!versions.is_empty()).then_some(versions)
    }

    /// The versions that both bridge and host-local declare.
    fn chain_versions(&self) -> Vec<Version> {
        let parts = ["bridge", "host-local"].map(|name| self.declared_versions(name).unwrap_or_default());
        let mut versions = Version::PUBLISHED.to_vec();
        versions.retain(|version| parts.iter().all(|declared| declared.contains(version)));
        versions
    }
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_known_plugins_is_valid() {
        let known: BTreeMap<String, Description> = serde_json::from_str(KNOWN).unwrap();
        assert_eq!(known["bridge"].role, Role::Interface);
        assert!(known["bridge"].delegates);
        assert_eq!(known[LIST].role, Role::Chain);
    }
}
