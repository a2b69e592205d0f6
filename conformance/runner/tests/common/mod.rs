//! Fake plugins that record their calls.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cni_runner::{Network, Runtime};
use serde_json::{Value, json};
use tempfile::TempDir;

const SCRIPT: &str = r#"#!/bin/sh
name=${0##*/}
dir=${0%/*}
echo "$name $CNI_COMMAND $CNI_CONTAINERID" >> "$dir/calls"
cat > "$dir/$name.$CNI_COMMAND.stdin"
env | grep '^CNI_' | sort > "$dir/$name.$CNI_COMMAND.env"
if [ -f "$dir/$name.$CNI_COMMAND.answer" ]; then . "$dir/$name.$CNI_COMMAND.answer"; fi
"#;

/// A folder with fake plugins and the cache of their runtime.
pub(crate) struct Fakes {
    dir: TempDir,
}

impl Fakes {
    pub(crate) fn new(names: &[&str]) -> anyhow::Result<Fakes> {
        let dir = TempDir::new()?;
        for name in names {
            let path = dir.path().join(name);
            fs::write(&path, SCRIPT)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Fakes { dir })
    }

    pub(crate) fn runtime(&self) -> Runtime {
        Runtime::new([self.dir.path()], self.cache_dir())
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn cache_dir(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// Sets the shell code that a plugin runs at a verb.
    pub(crate) fn answer(&self, plugin: &str, verb: &str, script: &str) -> anyhow::Result<()> {
        Ok(fs::write(self.dir.path().join(format!("{plugin}.{verb}.answer")), script)?)
    }

    /// The calls since the last call of this function, as `plugin VERB container`.
    pub(crate) fn calls(&self) -> Vec<String> {
        let path = self.dir.path().join("calls");
        let calls = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        calls.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    pub(crate) fn stdin(&self, plugin: &str, verb: &str) -> anyhow::Result<Value> {
        let text = fs::read(self.dir.path().join(format!("{plugin}.{verb}.stdin")))?;
        Ok(serde_json::from_slice(&text)?)
    }

    pub(crate) fn env(&self, plugin: &str, verb: &str) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.dir.path().join(format!("{plugin}.{verb}.env")))?)
    }
}

/// A network of these fake plugins.
pub(crate) fn network(version: &str, plugins: &[&str]) -> Network {
    let plugins: Vec<Value> = plugins.iter().map(|name| json!({"type": name})).collect();
    let list = json!({"name": "net", "cniVersion": version, "plugins": plugins});
    Network::from_value(&list).unwrap_or_else(|error| panic!("{error}"))
}
