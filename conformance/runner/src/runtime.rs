//! The CNI operations on a whole network.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::version::{WITH_CHECK, WITH_GC, result_version_is_known};
use super::{
    Attachment, Cache, Error, Exec, Extra, Failure, Network, Output, PluginError, find_plugin, plugin_input,
};

/// The part of a container runtime that CNI needs: the folders of plugins and the cache of results.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// Folders with plugins; also the value of `CNI_PATH`.
    pub path: Vec<PathBuf>,
    /// Results of earlier ADDs.
    pub cache: Cache,
    /// Variables for the plugins, in addition to the inherited environment.
    pub env: Vec<(String, String)>,
    /// Time limit for one plugin call; if `None`, no limit.
    pub timeout: Option<Duration>,
}

impl Runtime {
    /// A runtime with plugins in the folders `path` and a cache below `cache_dir`.
    pub fn new<P: Into<PathBuf>>(path: impl IntoIterator<Item = P>, cache_dir: impl AsRef<Path>) -> Runtime {
        let path = path.into_iter().map(Into::into).collect();
        Runtime { path, cache: Cache::new(cache_dir), env: Vec::new(), timeout: None }
    }

    /// Calls ADD on the plugins in order, each with the result of the plugin before it, and caches the last
    /// result. The first error stops it. It undoes nothing; for that the caller calls [`Runtime::del`].
    pub fn add(&self, network: &Network, attachment: &Attachment) -> Result<Value, Error> {
        attachment.validate(&network.name)?;
        let mut result = None;
        for plugin in &network.plugins {
            let output = self.call_attachment("ADD", network, plugin, attachment, result.as_ref())?;
            let read = read_result(&output, &network.version);
            result = Some(read.map_err(|failure| failed(plugin, "ADD", failure))?);
        }
        let result = result.unwrap_or_else(|| json!({}));
        self.cache.store(network, attachment, &result)?;
        Ok(result)
    }

    /// Calls CHECK on the plugins in order, each with the cached result.
    pub fn check(&self, network: &Network, attachment: &Attachment) -> Result<(), Error> {
        if network.version() < WITH_CHECK {
            let message = format!("network {:?} has version {:?}", network.name, network.version);
            return Err(Error::runner(format!("{message}, and CHECK exists from 0.4.0")));
        }
        if network.disable_check {
            return Ok(());
        }
        let previous = self.cache.result(&network.name, attachment);
        for plugin in &network.plugins {
            self.call_attachment("CHECK", network, plugin, attachment, previous.as_ref())?;
        }
        Ok(())
    }

    /// Calls DEL on the plugins in reverse order, from 0.4.0 on with the cached result. The first error stops
    /// it; the cached result is removed only if all plugins have succeeded.
    pub fn del(&self, network: &Network, attachment: &Attachment) -> Result<(), Error> {
        let previous = match network.version() {
            version if version >= WITH_CHECK => self.cache.result(&network.name, attachment),
            _ => None,
        };
        for plugin in network.plugins.iter().rev() {
            self.call_attachment("DEL", network, plugin, attachment, previous.as_ref())?;
        }
        Ok(self.cache.remove(&network.name, attachment)?)
    }

    /// Calls STATUS on the plugins in order; below 1.1.0, which has no STATUS, it succeeds without a call.
    pub fn status(&self, network: &Network) -> Result<(), Error> {
        if network.version() < WITH_GC {
            return Ok(());
        }
        for plugin in &network.plugins {
            let input = plugin_input(network, plugin, Extra::Status);
            self.call(plugin, "STATUS", |exec| exec.stdin(input))?;
        }
        Ok(())
    }

    /// Asks one plugin for its supported versions and returns the whole answer.
    pub fn version(&self, plugin: &str) -> Result<Value, Error> {
        let config = Map::from_iter([("type".to_owned(), Value::from(plugin))]);
        // libcni sets "dummy" where the specification leaves the value open.
        let dummy = Attachment::new("", "dummy", "dummy");
        let output = self.call(&config, "VERSION", |exec| {
            exec.attachment(&dummy).path("dummy").stdin(json!({"cniVersion": "1.1.0"}).to_string())
        })?;
        let unreadable = |why| failed(&config, "VERSION", Failure::unreadable(format!("{why:#}"), &output));
        output.document().map_err(unreadable)
    }

    fn call_attachment(
        &self,
        verb: &str,
        network: &Network,
        plugin: &Map<String, Value>,
        attachment: &Attachment,
        previous: Option<&Value>,
    ) -> Result<Output, Error> {
        let input = plugin_input(network, plugin, Extra::Attachment(attachment, previous));
        self.call(plugin, verb, |exec| exec.attachment(attachment).stdin(input))
    }

    pub(super) fn call(
        &self,
        plugin: &Map<String, Value>,
        verb: &str,
        prepare: impl FnOnce(Exec) -> Exec,
    ) -> Result<Output, Error> {
        let name = type_of(plugin);
        let not_run = |error| failed(plugin, verb, Failure::NotRun(error));
        let binary = find_plugin(name, &self.path).map_err(not_run)?;
        let dirs: Vec<_> = self.path.iter().map(|dir| dir.display().to_string()).collect();
        let mut exec = prepare(Exec::new(binary, verb).path(dirs.join(":")));
        exec.env.extend(self.env.iter().cloned());
        exec.timeout = self.timeout;
        let output = exec.run().map_err(not_run)?;
        if output.success() { Ok(output) } else { Err(failed(plugin, verb, Failure::from_output(&output))) }
    }
}

/// Reads the result that a successful ADD printed.
fn read_result(output: &Output, version: &str) -> Result<Value, Failure> {
    let unreadable = |why: String| Failure::unreadable(why, output);
    let mut result = match output.document().map_err(|why| unreadable(format!("{why:#}")))? {
        Value::Object(result) => result,
        Value::Null => Map::new(),
        _ => return Err(unreadable("the result is not a JSON object".to_owned())),
    };
    match result.get("cniVersion").unwrap_or(&Value::Null) {
        Value::String(own) if !result_version_is_known(own) => {
            return Err(unreadable(format!("the result has the unknown version {own:?}")));
        }
        Value::String(own) if !own.is_empty() => {}
        Value::Null | Value::String(_) => {
            result.insert("cniVersion".to_owned(), version.into());
        }
        _ => return Err(unreadable("the result's cniVersion is not a string".to_owned())),
    }
    Ok(Value::Object(result))
}

fn type_of(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn failed(plugin: &Map<String, Value>, verb: &str, failure: Failure) -> Error {
    let plugin = type_of(plugin).to_owned();
    Error::Plugin(Box::new(PluginError { plugin, verb: verb.to_owned(), failure }))
}
