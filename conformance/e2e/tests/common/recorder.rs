//! Plugins that record how a runtime calls them, and that can be held in the middle of an ADD.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::{Context as _, ensure};
use cni_lab::{Node, Place as _, TIMEOUT, eventually};
use tempfile::TempDir;

/// A folder with links to all plugins of a folder; each of `recorded` is a script that runs the plugin.
pub(crate) fn recording(plugins: &Path, recorded: &[&str]) -> anyhow::Result<TempDir> {
    let dir = tempfile::tempdir()?;
    let script = include_str!("recorder.sh").replace("PLUGINS", plugins.to_str().context("not UTF-8")?);
    for entry in fs::read_dir(plugins)? {
        let name = entry?.file_name();
        let (plugin, file) = (plugins.join(&name), dir.path().join(&name));
        if name.to_str().is_some_and(|name| recorded.contains(&name)) {
            fs::write(&file, &script)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        } else {
            symlink(plugin, file)?;
        }
    }
    Ok(dir)
}

/// The calls of a recorded plugin, each as `VERB CONTAINERID NETNS`.
pub(crate) fn calls(node: &Node, plugin: &str) -> anyhow::Result<Vec<String>> {
    let lines = node.read_file(format!("/run/{plugin}.calls"))?;
    Ok(lines.lines().map(|line| line.trim_end().to_owned()).collect())
}

/// Makes the next ADD of a recorded plugin wait.
pub(crate) fn hold(node: &Node, plugin: &str) -> anyhow::Result<()> {
    node.write_file(format!("/run/{plugin}.hold"), "")
}

/// Waits until an ADD waits. Returns its container ID.
pub(crate) fn held(node: &Node, plugin: &str) -> anyhow::Result<String> {
    ensure!(
        eventually(TIMEOUT, || node.read_file(format!("/run/{plugin}.held")).is_ok()),
        "no ADD of {plugin}"
    );
    let add = calls(node, plugin)?.pop();
    add.and_then(|call| Some(call.split(' ').nth(1)?.to_owned())).context("a call without container ID")
}

/// Lets the waiting ADD go on, and waits until it has ended.
pub(crate) fn release(node: &Node, plugin: &str) -> anyhow::Result<()> {
    node.sh(&format!("rm /run/{plugin}.hold"))?;
    let has_ended =
        || calls(node, plugin).is_ok_and(|calls| calls.last().is_some_and(|call| call == "ended"));
    ensure!(eventually(TIMEOUT, has_ended), "the ADD of {plugin} does not end");
    Ok(())
}
