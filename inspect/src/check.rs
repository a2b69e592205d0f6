//! `ferrule check`: CHECK for every live attachment of libcni's cache, as libcni calls it.
//!
//! Each call is a process of the plugin folder. A chain may contain other projects' plugins, an enforced panic or a plugin
//! that hangs stays one attachment's matter, and the call tests the program that the runtime will start.
//!
//! # References
//! CheckNetworkList in libcni/api.go.

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use cni_common::spec::SpecVersion;
use serde_json::{Map, Value};

use crate::cache::{Cache, Entry};
use crate::model::Owner;
use crate::scene::{Identity, Sandbox};

/// The outcome for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All plugins agree.
    Sound,
    /// CHECK was not made, for this reason.
    Skipped(String),
    /// The plugin that failed, and its error.
    Failed(String),
}

/// A running call.
struct Call<'c> {
    /// The position of the attachment in the cache.
    at: usize,
    /// The plugins that come after this one.
    rest: Vec<&'c Value>,
    /// The plugin.
    name: &'c str,
    child: Child,
}

/// Makes the calls, several attachments at once, and returns the outcomes in the order of the cache.
pub fn run(results: &Path, path: &[PathBuf]) -> Vec<(Owner, Outcome)> {
    let cache = Cache::read(results, &Identity::current());
    let mut outcomes = vec![Outcome::Sound; cache.entries.len()];
    let at_once = thread::available_parallelism().map_or(2, |number| 2 * number.get());
    let mut calls: VecDeque<Call<'_>> = VecDeque::new();
    for (at, entry) in cache.entries.iter().enumerate() {
        if let Some(why) = reason_to_skip(entry) {
            outcomes[at] = Outcome::Skipped(why);
            continue;
        }
        advance(&cache, path, at, entry.plugins(), &mut calls, &mut outcomes);
        while calls.len() >= at_once {
            end_oldest(&cache, path, &mut calls, &mut outcomes);
        }
    }
    while !calls.is_empty() {
        end_oldest(&cache, path, &mut calls, &mut outcomes);
    }
    cache.entries.iter().map(|entry| entry.owner.clone()).zip(outcomes).collect()
}

/// Starts the next plugin of an attachment.
fn advance<'c>(
    cache: &'c Cache,
    path: &[PathBuf],
    at: usize,
    mut rest: Vec<&'c Value>,
    calls: &mut VecDeque<Call<'c>>,
    outcomes: &mut [Outcome],
) {
    if rest.is_empty() {
        return;
    }
    let plugin = rest.remove(0);
    let name = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
    match start(&cache.entries[at], plugin, name, path) {
        Ok(child) => calls.push_back(Call { at, rest, name, child }),
        Err(error) => outcomes[at] = Outcome::Failed(format!("{name}: {error}")),
    }
}

/// Waits for the call that has run longest, and goes on with its attachment.
fn end_oldest<'c>(
    cache: &'c Cache,
    path: &[PathBuf],
    calls: &mut VecDeque<Call<'c>>,
    outcomes: &mut [Outcome],
) {
    let Some(Call { at, rest, name, child }) = calls.pop_front() else { return };
    match end(child) {
        Ok(()) => advance(cache, path, at, rest, calls, outcomes),
        Err(error) => outcomes[at] = Outcome::Failed(format!("{name}: {error}")),
    }
}

fn reason_to_skip(entry: &Entry) -> Option<String> {
    match &entry.sandbox {
        Sandbox::Live(_) => {}
        Sandbox::Gone(why) => return Some(why.clone()),
        Sandbox::Unknown => return Some(format!("the state of namespace {:?} is not known", entry.netns)),
    }
    let version = entry.version();
    if SpecVersion::parse(version).is_none_or(|version| version < SpecVersion::V0_4_0) {
        return Some(format!("CNI version {version:?} has no CHECK"));
    }
    let disabled = entry.config.get("disableCheck");
    let is_disabled = disabled.is_some_and(|value| *value == Value::Bool(true) || *value == "true");
    is_disabled.then(|| "disableCheck".to_owned())
}

/// The plugin's configuration as libcni sends it.
fn stdin(entry: &Entry, plugin: &Value) -> Value {
    let mut config = plugin.as_object().cloned().unwrap_or_default();
    config.insert("name".to_owned(), entry.owner.network.clone().into());
    config.insert("cniVersion".to_owned(), entry.version().into());
    if let Some(result) = &entry.result {
        config.insert("prevResult".to_owned(), result.clone());
    }
    let declared = plugin.get("capabilities").and_then(Value::as_object);
    let wants =
        |name: &String| declared.is_some_and(|declared| declared.get(name) == Some(&Value::Bool(true)));
    let values: Map<String, Value> = entry
        .capabilities
        .iter()
        .filter(|(name, _)| wants(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if !values.is_empty() {
        config.insert("runtimeConfig".to_owned(), Value::Object(values));
    }
    Value::Object(config)
}

fn start(entry: &Entry, plugin: &Value, name: &str, path: &[PathBuf]) -> Result<Child, String> {
    if name.is_empty() || name.contains('/') {
        return Err("the configuration has no valid type".to_owned());
    }
    let program = path.iter().map(|folder| folder.join(name)).find(|program| program.is_file());
    let program = program.ok_or_else(|| format!("no such program in {}", join(path)))?;
    let args: Vec<String> = entry.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", "CHECK")
        .env("CNI_CONTAINERID", entry.owner.container.as_deref().unwrap_or_default())
        .env("CNI_IFNAME", entry.owner.ifname.as_deref().unwrap_or_default())
        .env("CNI_NETNS", &entry.netns)
        .env("CNI_ARGS", args.join(";"))
        .env("CNI_PATH", join(path))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    if let Some(mut pipe) = child.stdin.take() {
        // A plugin that ends before it has read everything says why.
        let _ = pipe.write_all(stdin(entry, plugin).to_string().as_bytes());
    }
    Ok(child)
}

fn end(child: Child) -> Result<(), String> {
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text =
        |key: &str| json.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    let message = text("msg").unwrap_or_else(|| format!("{} without an error document", output.status));
    Err(text("details").map_or(message.clone(), |details| format!("{message}; {details}")))
}

fn join(path: &[PathBuf]) -> String {
    path.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(config: Value) -> Entry {
        let owner = Owner { ifname: Some("eth0".into()), ..Owner::container("c1").on("net") };
        let capabilities = json!({"portMappings": [1], "bandwidth": {}}).as_object().cloned().unwrap();
        let result = Some(json!({"cniVersion": "1.0.0"}));
        Entry {
            owner,
            config: config.into(),
            capabilities,
            result,
            sandbox: Sandbox::Live(1),
            ..Entry::default()
        }
    }

    #[test]
    fn a_plugin_gets_the_result_and_the_capabilities_that_it_declares() {
        let entry = entry(json!({"cniVersion": "1.0.0"}));
        let plugin = json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true, "bandwidth": false}});
        let expected = json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true, "bandwidth": false},
            "name": "net", "cniVersion": "1.0.0", "prevResult": {"cniVersion": "1.0.0"}, "runtimeConfig": {"portMappings": [1]}});
        assert_eq!(stdin(&entry, &plugin), expected);
        assert!(stdin(&entry, &json!({"type": "x"})).get("runtimeConfig").is_none());
    }

    #[test]
    fn what_cannot_be_checked_is_skipped_and_a_missing_plugin_fails() {
        let why = |config: Value| reason_to_skip(&entry(config));
        assert!(why(json!({"cniVersion": "0.3.1"})).is_some() && why(json!({})).is_some());
        assert_eq!(why(json!({"cniVersion": "1.0.0", "disableCheck": "true"})).unwrap(), "disableCheck");
        assert_eq!(why(json!({"cniVersion": "0.4.0", "disableCheck": false})), None);
        let gone = Entry { sandbox: Sandbox::Gone("gone".into()), ..entry(json!({"cniVersion": "1.0.0"})) };
        assert_eq!(reason_to_skip(&gone), Some("gone".into()));
        let missing = start(&entry(json!({})), &json!({}), "no-such-plugin", &["/nowhere".into()]);
        assert_eq!(missing.unwrap_err(), "no such program in /nowhere");
    }
}
