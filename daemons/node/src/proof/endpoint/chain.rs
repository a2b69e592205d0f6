//! Runs the plugins of a conflist, as a runtime does.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{self, Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::Value;

use crate::arguments::CHILD;

/// How long a plugin may take. host-local waits 10 seconds for its lock.
const LIMIT: Duration = Duration::from_secs(20);
/// How often is looked for its end.
const LOOK: Duration = Duration::from_millis(1);
/// The most bytes of a result.
const MOST: u64 = 1 << 20;

/// One attachment to a network.
pub(super) struct Attachment<'a> {
    pub(super) plugins: &'a Path,
    pub(super) container: &'a str,
    pub(super) netns: &'a Path,
    pub(super) conflist: &'a Value,
}

/// The interface in the namespace.
pub(super) const IFNAME: &str = "eth0";

impl Attachment<'_> {
    /// Returns the result of the last plugin.
    pub(super) fn add(&self) -> Result<Value> {
        let mut result = None;
        for plugin in self.chain()? {
            let output = self.call("ADD", plugin, result.as_ref())?;
            result = Some(
                serde_json::from_str(&output).with_context(|| format!("the result of {}", plugin["type"]))?,
            );
        }
        result.context("the conflist has no plugin")
    }

    /// Fails if a plugin finds that something is missing or wrong. Versions before 0.4.0 have no such call.
    pub(super) fn check(&self, result: &Value) -> Result<()> {
        let version = self.conflist["cniVersion"].as_str().unwrap_or_default();
        if ["0.1.", "0.2.", "0.3."].iter().any(|old| version.starts_with(old)) {
            return Ok(());
        }
        self.chain()?.iter().try_for_each(|plugin| self.call("CHECK", plugin, Some(result)).map(drop))
    }

    /// Goes on after an error, and returns the first one.
    pub(super) fn del(&self, result: Option<&Value>) -> Result<()> {
        let calls = self.chain()?.iter().rev().map(|plugin| self.call("DEL", plugin, result).map(drop));
        calls.fold(Ok(()), Result::and)
    }

    fn chain(&self) -> Result<&Vec<Value>> {
        self.conflist["plugins"].as_array().context("the conflist has no plugins")
    }

    fn call(&self, verb: &str, plugin: &Value, previous: Option<&Value>) -> Result<String> {
        let kind = plugin["type"].as_str().filter(|kind| !kind.contains('/')).unwrap_or_default();
        let mut input = plugin.clone();
        for (key, value) in [
            ("name", Some(&self.conflist["name"])),
            ("cniVersion", Some(&self.conflist["cniVersion"])),
            ("prevResult", previous),
        ] {
            if let Some(value) = value {
                input[key] = value.clone();
            }
        }
        // The plugin ends with this process.
        let mut command = Command::new("/proc/self/exe");
        command
            .args([CHILD, &process::id().to_string()])
            .arg(self.plugins.join(kind))
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", self.container)
            .env("CNI_NETNS", self.netns)
            .env("CNI_IFNAME", IFNAME)
            .env("CNI_PATH", self.plugins)
            .env_remove("CNI_ARGS");
        run(command, input.to_string(), LIMIT).with_context(|| format!("{kind} {verb}"))
    }
}

/// Runs a plugin with its input, and kills it if it takes too long.
fn run(mut command: Command, input: String, limit: Duration) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("start the plugin")?;
    if let Some(mut pipe) = child.stdin.take() {
        // It may end, or hang, without reading.
        spawn(move || pipe.write_all(input.as_bytes()));
    }
    let (sender, output) = mpsc::channel();
    if let Some(pipe) = child.stdout.take() {
        spawn(move || {
            let mut text = String::new();
            let _ = pipe.take(MOST).read_to_string(&mut text);
            sender.send(text)
        });
    }
    let is_well = wait(&mut child, limit)?;
    // A child of the plugin may keep the pipe open.
    let text = output.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
    match is_well {
        true => Ok(text),
        false => Err(error(&text)),
    }
}

fn wait(child: &mut Child, limit: Duration) -> Result<bool> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            bail!("no end within {limit:?}");
        }
        sleep(LOOK);
    }
}

/// The error document of a plugin.
fn error(text: &str) -> anyhow::Error {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let words = ["msg", "details"].map(|key| value[key].as_str().unwrap_or_default());
    match words {
        ["", ""] => anyhow!("it failed without an error document"),
        [message, ""] => anyhow!("{message}"),
        [message, details] => anyhow!("{message}: {details}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<String, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, "x".repeat(1 << 17), limit).map_err(|error| error.to_string())
    }

    #[test]
    fn a_plugin_that_hangs_or_fails_is_named_and_ends() {
        let long = Duration::from_secs(60);
        assert_eq!(sh("cat >/dev/null; echo ok", long).unwrap(), "ok\n");
        // It reads nothing, and a child keeps the pipe open.
        assert_eq!(sh("sleep 3 & echo ok", long).unwrap(), "");
        assert!(sh("exec sleep 60", Duration::from_millis(50)).unwrap_err().contains("no end within"));
        for (script, said) in [
            ("exit 1", "it failed without an error document"),
            ("echo '{\"code\":7,\"msg\":\"no\"}'; exit 1", "no"),
            ("echo '{\"msg\":\"no\",\"details\":\"why\"}'; exit 1", "no: why"),
        ] {
            assert_eq!(sh(script, long).unwrap_err(), said);
        }
    }
}
