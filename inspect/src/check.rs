//! `ferrule check`: CHECK for every live attachment of libcni's cache, as libcni calls it.
//!
//! Each call is a process of the plugin folder. A chain may contain other projects' plugins, an enforced panic or a plugin
//! that hangs stays one attachment's matter, and the call tests the program that the runtime will start.
//!
//! # References
//! CheckNetworkList in libcni/api.go.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice;
use std::thread;
use std::time::Duration;

use cni_common::spec::SpecVersion;
use serde_json::{Map, Value};

use crate::cache::{Cache, Entry};
use crate::model::Owner;
use crate::node::NOT_WHOLE;
use crate::process::{self, PAUSE, Process};
use crate::scene::{Sandbox, cpus, lacks};
use crate::sight::Sight;

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

/// What the calls have found.
#[derive(Debug, Default)]
pub struct Checked {
    /// The outcomes in the order of the cache.
    pub outcomes: Vec<(Owner, Outcome)>,
    /// What could not be read.
    pub failures: Vec<String>,
}

impl Checked {
    /// Whether all cached results could be read and no plugin failed.
    pub fn is_sound(&self) -> bool {
        self.failures.is_empty()
            && !self.outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
    }
}

/// A running plugin.
struct Call<'c> {
    /// The position of the attachment in the cache.
    at: usize,
    /// The plugins that come after this one.
    rest: slice::Iter<'c, &'c Value>,
    /// The plugin.
    name: &'c str,
    process: Process,
}

/// Makes the calls, one for each CPU at once; without `all` not for attachments of `lo`. `init` is the node's first process, if
/// it is not 1.
pub fn run(results: &Path, init: Option<u32>, path: &[PathBuf], limit: Duration, all: bool) -> Checked {
    let sight = Sight::of_check(init, results);
    let mut cache = Cache::read(results, &sight);
    cache.entries.retain(|entry| all || !entry.is_loopback());
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let (at_once, lacks) = (cpus(&status), lacks(&status));
    let plugins: Vec<Vec<&Value>> = cache.entries.iter().map(Entry::plugins).collect();
    let mut outcomes = vec![Outcome::Sound; cache.entries.len()];
    let mut waiting = cache.entries.iter().zip(&plugins).enumerate();
    let mut running: Vec<Call<'_>> = Vec::new();
    loop {
        while running.len() < at_once
            && let Some((at, (entry, plugins))) = waiting.next()
        {
            match reason_to_skip(entry, &sight, lacks) {
                Some(why) => outcomes[at] = Outcome::Skipped(why),
                None => advance(&cache, path, at, plugins.iter(), &mut running, &mut outcomes),
            }
        }
        if running.is_empty() {
            break;
        }
        let before = running.len();
        for index in (0..before).rev() {
            let Some(outcome) = running[index].process.outcome(limit) else { continue };
            let Call { at, rest, name, .. } = running.swap_remove(index);
            match outcome {
                Ok(_) => advance(&cache, path, at, rest, &mut running, &mut outcomes),
                Err(why) => outcomes[at] = Outcome::Failed(format!("{name}: {why}")),
            }
        }
        thread::sleep(PAUSE);
    }
    let mut failures: Vec<String> = sight.partial.iter().map(|why| format!("{NOT_WHOLE}: {why}")).collect();
    failures.extend(lacks.map(|right| format!("plugins need {right}, which this process lacks")));
    if !cache.is_readable {
        failures.push(format!("cannot read the cached results in {}", results.display()));
    }
    failures.append(&mut cache.failures);
    let owners = cache.entries.iter().map(|entry| entry.owner.clone());
    Checked { outcomes: owners.zip(outcomes).collect(), failures }
}

/// Starts the next plugin of an attachment.
fn advance<'c>(
    cache: &'c Cache,
    path: &[PathBuf],
    at: usize,
    mut rest: slice::Iter<'c, &'c Value>,
    running: &mut Vec<Call<'c>>,
    outcomes: &mut [Outcome],
) {
    let Some(plugin) = rest.next() else { return };
    let name = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
    match start(&cache.entries[at], plugin, name, path) {
        Ok(process) => running.push(Call { at, rest, name, process }),
        Err(error) => outcomes[at] = Outcome::Failed(format!("{name}: {error}")),
    }
}

fn reason_to_skip(entry: &Entry, sight: &Sight, lacks: Option<&str>) -> Option<String> {
    // The host's ends, bridges and rules are not here.
    if sight.is_elsewhere {
        return Some("this is not the node's network namespace".to_owned());
    }
    if let Some(right) = lacks {
        return Some(format!("no {right}"));
    }
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
    let mut values = Map::new();
    for (name, value) in entry.capabilities.iter().filter(|(name, _)| wants(name)) {
        values.insert(name.clone(), value.clone());
    }
    if !values.is_empty() {
        config.insert("runtimeConfig".to_owned(), Value::Object(values));
    }
    Value::Object(config)
}

fn start(entry: &Entry, plugin: &Value, name: &str, path: &[PathBuf]) -> Result<Process, String> {
    let args: Vec<String> = entry.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let variables = [
        ("CNI_COMMAND", "CHECK".to_owned()),
        ("CNI_CONTAINERID", entry.owner.container.clone().unwrap_or_default()),
        ("CNI_IFNAME", entry.owner.ifname.clone().unwrap_or_default()),
        ("CNI_NETNS", entry.netns.clone()),
        ("CNI_ARGS", args.join(";")),
        ("CNI_PATH", process::join(path)),
    ];
    Process::start(&process::find(path, name)?, &variables, &stdin(entry, plugin).to_string())
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

    fn sight() -> Sight {
        Sight { own: 0, partial: None, is_within: false, is_elsewhere: false }
    }

    #[test]
    fn what_cannot_be_checked_is_skipped() {
        let why = |config: Value| reason_to_skip(&entry(config), &sight(), None);
        assert!(why(json!({"cniVersion": "0.3.1"})).is_some() && why(json!({})).is_some());
        assert_eq!(why(json!({"cniVersion": "1.0.0", "disableCheck": "true"})).unwrap(), "disableCheck");
        assert_eq!(why(json!({"cniVersion": "0.4.0", "disableCheck": false})), None);
        let elsewhere = Sight { is_elsewhere: true, ..sight() };
        assert!(reason_to_skip(&entry(json!({"cniVersion": "1.0.0"})), &elsewhere, None).is_some());
        assert_eq!(reason_to_skip(&entry(json!({})), &sight(), Some("x")).as_deref(), Some("no x"));
        let gone = Entry { sandbox: Sandbox::Gone("gone".into()), ..entry(json!({"cniVersion": "1.0.0"})) };
        assert_eq!(reason_to_skip(&gone, &sight(), None), Some("gone".into()));
    }
}
