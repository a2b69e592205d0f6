//! The plugins that are judged, and what the suite has to know of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::fixture::{Node, Place as _};
use crate::runner::{Exec, Version};

/// What the suite knows of plugins by itself.
const KNOWN: &str = include_str!("known-plugins.json");
/// The name of the chain that is made of a folder's bridge, host-local and what else of a usual chain is there.
pub const CHAIN: &str = "chain";

/// The part that a plugin plays in a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Brings up `lo`.
    Loopback,
    /// Makes an interface; comes first.
    Interface,
    /// Gives addresses, called by other plugins.
    Ipam,
    /// Comes after others and works on what they made.
    Chained,
    /// Not known: nothing is tried but what holds for every program that claims to be a plugin.
    Unknown,
    /// Not one plugin but a whole chain of the folder's, as callers use it.
    Chain,
}

/// Every role of a single plugin whose configuration is known.
pub const PLUGINS: &[Role] = &[Role::Loopback, Role::Interface, Role::Ipam, Role::Chained];
/// Every single plugin.
pub const ANY: &[Role] = &[Role::Loopback, Role::Interface, Role::Ipam, Role::Chained, Role::Unknown];
/// Those that leave something behind that another call can find.
pub const STATEFUL: &[Role] = &[Role::Interface, Role::Ipam, Role::Chained];

/// What the suite has to be told of a plugin, by its own list or by the user's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Its part.
    pub role: Role,
    /// Its keys in a network's configuration, without `type`.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// Whether it calls an IPAM plugin. The suite puts `ipam` into the configuration then.
    #[serde(default)]
    pub delegates: bool,
    /// Shell commands that prepare a node for it.
    #[serde(default)]
    pub setup: Vec<String>,
    /// Kinds of links, of `ip link add type`, that the kernel has to know.
    #[serde(default)]
    pub links: Vec<String>,
    /// Queueing disciplines, of `tc qdisc add`, that the kernel has to know.
    #[serde(default)]
    pub qdiscs: Vec<String>,
}

/// A plugin to judge.
#[derive(Debug, Clone)]
pub struct PluginUnderTest {
    /// Its file's name, which is its `type`.
    pub name: String,
    /// Its part.
    pub role: Role,
    /// What is known of it.
    pub description: Description,
    /// Whether it calls an IPAM plugin.
    pub delegates: bool,
    /// The folder that it is in.
    pub dir: PathBuf,
    /// The versions that it declares; all if it declares none that can be read.
    pub versions: Vec<Version>,
}

impl PluginUnderTest {
    /// Its program.
    pub fn binary(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Another plugin of the same folder, if it is there.
    pub fn neighbour(&self, name: &str) -> Option<PathBuf> {
        Some(self.dir.join(name)).filter(|file| file.is_file())
    }
}

/// The plugins of a folder, in the order of their names, and the chain that they make. `names` chooses some, if any are
/// given. Each program is asked for its versions, on a node of its own if there may be one: nobody knows yet what it is.
///
/// # Errors
/// If the folder or the user's descriptions cannot be read, a chosen plugin is not there, or the node cannot be made.
pub fn plugins_under_test(
    dir: &Path,
    names: &[String],
    descriptions: Option<&Path>,
    with_node: bool,
) -> anyhow::Result<Vec<PluginUnderTest>> {
    let mut known: BTreeMap<String, Description> =
        serde_json::from_str(KNOWN).context("the suite's list of known plugins")?;
    if let Some(file) = descriptions {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let more: BTreeMap<String, Description> =
            serde_json::from_str(&text).with_context(|| format!("read {}", file.display()))?;
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
        found.push(CHAIN.to_owned());
    }
    if let Some(missing) = names.iter().find(|name| !found.contains(name)) {
        anyhow::bail!("there is no plugin {missing} in {}", dir.display());
    }
    found.retain(|name| names.is_empty() || names.contains(name));
    let inquiry = Inquiry { dir: &dir, node: with_node.then(Node::new).transpose()? };
    Ok(found.into_iter().filter_map(|name| inquiry.plugin(name, &known, !names.is_empty())).collect())
}

/// Asks the programs of a folder.
struct Inquiry<'a> {
    dir: &'a Path,
    node: Option<Node>,
}

impl Inquiry<'_> {
    /// A plugin of the folder. A program that is not known and does not answer VERSION is no plugin, unless it was `chosen`.
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
            setup: Vec::new(),
            links: Vec::new(),
            qdiscs: Vec::new(),
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

    /// What a plugin answers to VERSION, as far as the suite knows these versions.
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

    /// The versions that all of a chain's plugins have.
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
    fn the_list_of_known_plugins_can_be_read() {
        let known: BTreeMap<String, Description> = serde_json::from_str(KNOWN).unwrap();
        assert_eq!(known["bridge"].role, Role::Interface);
        assert!(known["bridge"].delegates);
        assert_eq!(known[CHAIN].role, Role::Chain);
    }
}
