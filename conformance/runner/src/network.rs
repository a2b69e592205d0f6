//! Network configurations, read from a folder, a file or JSON text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::{Error, LATEST, Version};

/// A validated network configuration list with its version chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// The network's name.
    pub name: String,
    /// The version that the plugins are called with.
    pub version: String,
    /// Whether CHECK is skipped (`disableCheck`).
    pub disable_check: bool,
    /// Whether GC is skipped (`disableGC`).
    pub disable_gc: bool,
    /// The plugins' objects as configured.
    pub plugins: Vec<Map<String, Value>>,
    /// The JSON text of the list, for the cache.
    pub(super) source: Vec<u8>,
}

impl Network {
    /// Finds the network of this name in a folder: first in `*.conflist`, then in `*.conf` and `*.json`, each
    /// sorted by name. A single plugin becomes a list of one. A file that cannot be loaded is an error if it
    /// comes before the right one.
    pub fn load(dir: impl AsRef<Path>, name: &str) -> Result<Network, Error> {
        let dir = dir.as_ref();
        for file in files_with(dir, &["conflist"])? {
            let network = Network::from_file(&file)?;
            if network.name == name {
                return Ok(network);
            }
        }
        for file in files_with(dir, &["conf", "json"])? {
            let network = Network::from_file(&file)?;
            if network.name == name {
                return Ok(network);
            }
        }
        Err(Error::runner(format!("no network {name:?} in {}", dir.display())))
    }

    /// Reads one file, a list or a single plugin. Further plugins of a list are read from the folder beside
    /// the file that is named after the network, unless `loadOnlyInlinedPlugins` is set.
    pub fn from_file(file: impl AsRef<Path>) -> Result<Network, Error> {
        let file = file.as_ref();
        let read = || -> anyhow::Result<Network> {
            let source = fs::read(file)?;
            let value: Value = serde_json::from_slice(&source)?;
            parse(source, value, file.parent())
        };
        read().with_context(|| format!("load {}", file.display())).map_err(Error::Runner)
    }

    /// Reads a list or a single plugin from a value.
    pub fn from_value(value: &Value) -> Result<Network, Error> {
        parse(value.to_string().into_bytes(), value.clone(), None).map_err(Error::Runner)
    }

    /// The version as a number; it was validated when the network was loaded.
    pub fn version(&self) -> Version {
        Version::parse(&self.version).unwrap_or(Version(0, 1, 0))
    }
}

fn parse(source: Vec<u8>, value: Value, dir: Option<&Path>) -> anyhow::Result<Network> {
    let Value::Object(list) = value else { bail!("the configuration is not a JSON object") };
    let is_single = !list.contains_key("plugins") && list.contains_key("type");
    let (source, list) = if is_single { list_of_one(list) } else { (source, list) };

    let name = list.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        bail!("the network has no name");
    }
    let mut plugins = match list.get("plugins") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(plugins)) => {
            plugins.iter().map(plugin).collect::<anyhow::Result<_>>().context("plugins")?
        }
        Some(_) => bail!("plugins is not a list"),
    };
    if !flag(&list, "loadOnlyInlinedPlugins")? {
        if let (Some(dir), false) = (dir, is_single) {
            plugins.extend(folder(&dir.join(name))?);
        }
    } else if !list.contains_key("plugins") {
        bail!("loadOnlyInlinedPlugins is set but there is no plugins key");
    }
    if plugins.is_empty() {
        bail!("the network {name:?} has no plugins");
    }
    Ok(Network {
        name: name.to_owned(),
        version: choose_version(&list)?,
        disable_check: flag(&list, "disableCheck")?,
        disable_gc: flag(&list, "disableGC")?,
        plugins,
        source,
    })
}

fn list_of_one(plugin: Map<String, Value>) -> (Vec<u8>, Map<String, Value>) {
    let mut list = Map::new();
    for key in ["name", "cniVersion"] {
        if let Some(value) = plugin.get(key) {
            list.insert(key.to_owned(), value.clone());
        }
    }
    list.insert("plugins".to_owned(), json!([plugin]));
    (Value::Object(list.clone()).to_string().into_bytes(), list)
}

fn plugin(value: &Value) -> anyhow::Result<Map<String, Value>> {
    let Some(plugin) = value.as_object() else { bail!("the plugin is not a JSON object: {value}") };
    match plugin.get("type").and_then(Value::as_str) {
        None | Some("") => bail!("the plugin has no type: {value}"),
        Some(_) => Ok(plugin.clone()),
    }
}

fn folder(dir: &Path) -> anyhow::Result<Vec<Map<String, Value>>> {
    let load = |file: &PathBuf| -> anyhow::Result<_> { plugin(&serde_json::from_slice(&fs::read(file)?)?) };
    let files = files_with(dir, &["conf"])?;
    files.iter().map(|file| load(file).with_context(|| format!("load {}", file.display()))).collect()
}

fn flag(list: &Map<String, Value>, key: &str) -> anyhow::Result<bool> {
    match list.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => bail!("{key} is neither true nor false: {text:?}"),
        },
        Some(other) => bail!("{key} is neither true nor false: {other}"),
    }
}

/// The highest of `cniVersions` and `cniVersion` that we support. Without `cniVersions`, `cniVersion` even if
/// unsupported.
fn choose_version(list: &Map<String, Value>) -> anyhow::Result<String> {
    let single = match list.get("cniVersion") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text,
        Some(other) => bail!("cniVersion is not a string: {other}"),
    };
    let parse = |text: &str| Version::parse(text).with_context(|| format!("invalid version {text:?}"));
    parse(single)?;
    let Some(Value::Array(several)) = list.get("cniVersions") else { return Ok(single.to_owned()) };
    let mut known = Vec::new();
    for entry in several {
        let Some(text) = entry.as_str() else {
            bail!("cniVersions has an entry that is not a string: {entry}")
        };
        known.push((parse(text)?, text));
    }
    known.push((parse(single)?, single));
    known.retain(|(version, _)| *version <= LATEST);
    let highest = known.into_iter().max_by_key(|(version, _)| *version);
    Ok(highest.map_or(single, |(_, text)| text).to_owned())
}

/// The files of a folder with one of these extensions, sorted; an empty list if there is no such folder.
fn files_with(dir: &Path, extensions: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("list {}", dir.display()))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if extensions.contains(&extension) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
