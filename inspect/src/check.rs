//! `ferrule check`: CHECK for every live attachment of libcni's cache, as libcni calls it.
//!
//! Each call is a process of the plugin folder. A chain may contain other projects' plugins, an enforced panic or a plugin
//! that hangs stays one attachment's matter, and the call tests the program that the runtime will start. Its streams are
//! files in memory, so no write or read waits for a plugin.
//!
//! # References
//! CheckNetworkList in libcni/api.go.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::spec::SpecVersion;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value};

use crate::cache::{Cache, Entry, parse};
use crate::model::Owner;
use crate::scene::{Identity, Sandbox, cpus};

/// The time between two looks at the running plugins.
const PAUSE: Duration = Duration::from_micros(500);

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
    child: Child,
    output: File,
    started: Instant,
}

impl Call<'_> {
    /// The outcome, if the plugin has ended or exceeds the limit. Then it is stopped together with the plugins that it has
    /// started.
    fn outcome(&mut self, limit: Duration) -> Option<Result<(), String>> {
        match self.child.try_wait() {
            Ok(Some(status)) if status.success() => Some(Ok(())),
            Ok(Some(status)) => {
                Some(Err(error_in(&mut self.output)
                    .unwrap_or_else(|| format!("{status} without an error document"))))
            }
            Ok(None) if self.started.elapsed() < limit => None,
            Ok(None) => {
                if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = self.child.wait();
                Some(Err(format!("no answer within {} s", limit.as_secs())))
            }
            Err(error) => Some(Err(error.to_string())),
        }
    }
}

/// Makes the calls, one for each CPU at once.
pub fn run(results: &Path, path: &[PathBuf], limit: Duration) -> Checked {
    let cache = Cache::read(results, &Identity::current());
    let at_once = cpus(&fs::read_to_string("/proc/thread-self/status").unwrap_or_default());
    let plugins: Vec<Vec<&Value>> = cache.entries.iter().map(Entry::plugins).collect();
    let mut outcomes = vec![Outcome::Sound; cache.entries.len()];
    let mut waiting = cache.entries.iter().zip(&plugins).enumerate();
    let mut running: Vec<Call<'_>> = Vec::new();
    loop {
        while running.len() < at_once
            && let Some((at, (entry, plugins))) = waiting.next()
        {
            match reason_to_skip(entry) {
                Some(why) => outcomes[at] = Outcome::Skipped(why),
                None => advance(&cache, path, at, plugins.iter(), &mut running, &mut outcomes),
            }
        }
        if running.is_empty() {
            break;
        }
        let before = running.len();
        for index in (0..before).rev() {
            let Some(outcome) = running[index].outcome(limit) else { continue };
            let Call { at, rest, name, .. } = running.swap_remove(index);
            match outcome {
                Ok(()) => advance(&cache, path, at, rest, &mut running, &mut outcomes),
                Err(why) => outcomes[at] = Outcome::Failed(format!("{name}: {why}")),
            }
        }
        thread::sleep(PAUSE);
    }
    let mut failures: Vec<String> = Vec::new();
    if !cache.is_readable {
        failures.push(format!("cannot read the cached results in {}", results.display()));
    }
    failures.extend(cache.unknown.iter().map(|file| format!("cannot decode the cached result {file}")));
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
        Ok((child, output)) => running.push(Call { at, rest, name, child, output, started: Instant::now() }),
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
    let mut values = Map::new();
    for (name, value) in entry.capabilities.iter().filter(|(name, _)| wants(name)) {
        values.insert(name.clone(), value.clone());
    }
    if !values.is_empty() {
        config.insert("runtimeConfig".to_owned(), Value::Object(values));
    }
    Value::Object(config)
}

fn start(entry: &Entry, plugin: &Value, name: &str, path: &[PathBuf]) -> Result<(Child, File), String> {
    if name.is_empty() || name.contains('/') {
        return Err("the configuration has no valid type".to_owned());
    }
    let program = path.iter().map(|folder| folder.join(name)).find(|program| program.is_file());
    let program = program.ok_or_else(|| format!("no such program in {}", join(path)))?;
    let args: Vec<String> = entry.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let spawn = || -> io::Result<(Child, File)> {
        let (mut input, output) = (memory()?, memory()?);
        input.write_all(stdin(entry, plugin).to_string().as_bytes())?;
        input.rewind()?;
        let child = Command::new(&program)
            .env("CNI_COMMAND", "CHECK")
            .env("CNI_CONTAINERID", entry.owner.container.as_deref().unwrap_or_default())
            .env("CNI_IFNAME", entry.owner.ifname.as_deref().unwrap_or_default())
            .env("CNI_NETNS", &entry.netns)
            .env("CNI_ARGS", args.join(";"))
            .env("CNI_PATH", join(path))
            .stdin(input)
            .stdout(output.try_clone()?)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok((child, output))
    };
    spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))
}

/// A file in memory.
fn memory() -> io::Result<File> {
    Ok(memfd_create("cni", MemfdFlags::CLOEXEC)?.into())
}

/// The text of an error document.
fn error_in(output: &mut File) -> Option<String> {
    let mut bytes = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut bytes)).ok()?;
    let json = parse(&bytes)?;
    let text = |key: &str| json.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let message = text("msg")?;
    Some(text("details").map_or(message.to_owned(), |details| format!("{message}; {details}")))
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

    #[test]
    fn an_error_document_is_one_line() {
        let says = |text: &str| {
            let mut file = memory().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            error_in(&mut file)
        };
        assert_eq!(says(r#"{"code":7,"msg":"wrong","details":"x is 1"}"#).unwrap(), "wrong; x is 1");
        assert_eq!(says(r#"{"code":7,"msg":"wrong"}"#).unwrap(), "wrong");
        assert_eq!((says("panic"), says("{}")), (None, None));
    }
}
