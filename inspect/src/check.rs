//! `ferrule check`: CHECK for every live attachment of libcni's cache, as libcni calls it.
//!
//! Each call is a process of the plugin folder. A chain may contain other projects' plugins, an enforced panic or a plugin
//! that hangs stays one attachment's matter, and what is tested is what the runtime will start.
//!
//! # References
//! CheckNetworkList in libcni/api.go.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// Makes the calls, several at once, and returns the outcomes in the order of the cache.
pub fn run(results: &Path, path: &[PathBuf]) -> Vec<(Owner, Outcome)> {
    let cache = Cache::read(results, &Identity::current());
    let entries = &cache.entries;
    let workers = thread::available_parallelism().map_or(2, |number| 2 * number.get()).min(entries.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, entry)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, entries.get(at)?)))
        {
            done.push((index, check(entry, path)));
        }
        done
    };
    let mut outcomes: Vec<(usize, Outcome)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(index, outcome)| (entries[index].owner.clone(), outcome)).collect()
}

fn check(entry: &Entry, path: &[PathBuf]) -> Outcome {
    match &entry.sandbox {
        Sandbox::Live(_) => {}
        Sandbox::Gone(why) => return Outcome::Skipped(why.clone()),
        Sandbox::Unknown => {
            return Outcome::Skipped(format!("the state of namespace {:?} is not known", entry.netns));
        }
    }
    let version = entry.config.get("cniVersion").and_then(Value::as_str).unwrap_or_default();
    if SpecVersion::parse(version).is_none_or(|version| version < SpecVersion::V0_4_0) {
        return Outcome::Skipped(format!("CNI version {version:?} has no CHECK"));
    }
    if matches!(entry.config.get("disableCheck"), Some(Value::Bool(true)))
        || entry.config.get("disableCheck") == Some(&"true".into())
    {
        return Outcome::Skipped("disableCheck".to_owned());
    }
    for plugin in entry.plugins() {
        let name = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
        if let Err(error) = call(entry, plugin, name, version, path) {
            return Outcome::Failed(format!("{name}: {error}"));
        }
    }
    Outcome::Sound
}

/// The plugin's configuration as libcni sends it.
fn stdin(entry: &Entry, plugin: &Value, version: &str) -> Value {
    let mut config = plugin.as_object().cloned().unwrap_or_default();
    config.insert("name".to_owned(), entry.owner.network.clone().into());
    config.insert("cniVersion".to_owned(), version.into());
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

fn call(entry: &Entry, plugin: &Value, name: &str, version: &str, path: &[PathBuf]) -> Result<(), String> {
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
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut pipe| pipe.write_all(stdin(entry, plugin, version).to_string().as_bytes()));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return written.map_err(|error| error.to_string());
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
        Entry { owner, config, capabilities, result, sandbox: Sandbox::Live(1), ..Entry::default() }
    }

    #[test]
    fn a_plugin_gets_the_result_and_the_capabilities_that_it_declares() {
        let entry = entry(json!({}));
        let plugin = json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true, "bandwidth": false}});
        let expected = json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true, "bandwidth": false},
            "name": "net", "cniVersion": "1.0.0", "prevResult": {"cniVersion": "1.0.0"}, "runtimeConfig": {"portMappings": [1]}});
        assert_eq!(stdin(&entry, &plugin, "1.0.0"), expected);
        assert!(stdin(&entry, &json!({"type": "x"}), "1.0.0").get("runtimeConfig").is_none());
    }

    #[test]
    fn what_cannot_be_checked_is_skipped_and_a_missing_plugin_fails() {
        let plugins = json!([{"type": "no-such-plugin"}]);
        let skipped =
            |config: Value| matches!(check(&entry(config), &["/nowhere".into()]), Outcome::Skipped(_));
        assert!(skipped(json!({"cniVersion": "0.3.1", "plugins": plugins})));
        assert!(skipped(json!({"cniVersion": "1.0.0", "disableCheck": true, "plugins": plugins})));
        let gone = Entry { sandbox: Sandbox::Gone("gone".into()), ..entry(json!({"cniVersion": "1.0.0"})) };
        assert_eq!(check(&gone, &[]), Outcome::Skipped("gone".into()));
        let outcome = check(&entry(json!({"cniVersion": "1.0.0", "plugins": plugins})), &["/nowhere".into()]);
        assert_eq!(outcome, Outcome::Failed("no-such-plugin: no such program in /nowhere".into()));
    }
}
