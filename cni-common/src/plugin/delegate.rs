//! Delegation: an interface plugin calls an IPAM plugin to get addresses.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use super::Plugin;
use super::call_log;
use super::child::write_and_wait;
use super::dispatch::perform;
use super::env::{Environment, Verb};
use super::own_program::is_own_program;
use super::repair::{Repair, look, repair};
use crate::remark;
use crate::spec::{AddResult, CniError, Code, Context as _, Json, NetConf, SpecVersion};

/// Number of retries, and the pause between them, while the delegate's file is open for writing (ETXTBSY).
const BUSY_RETRIES: (u32, Duration) = (100, Duration::from_millis(50));

/// How host-local, ours and the reference's, says that the attachment has an address already. It has changed nothing then. The
/// specification has no code for it. Usually the calling plugin finds the interface before it asks; not if the container has renamed it,
/// or if a device has no interface.
const DUPLICATE: &str = "duplicate allocation is not allowed";

/// A plugin that this plugin calls. It receives the same environment, except for CNI_COMMAND, and the same
/// configuration.
///
/// A delegate runs as a child process. If the file in CNI_PATH is the executable of this process under
/// another name (a link or a copy), the delegate is a plugin of this program and runs as a function call.
pub struct Delegate<'a> {
    program: PathBuf,
    sibling: Option<&'static Plugin>,
    env: &'a Environment,
    config: &'a NetConf,
    is_member: bool,
}

impl<'a> Delegate<'a> {
    /// The IPAM plugin of the configuration. `None` if the network has no IPAM.
    ///
    /// # Errors
    /// As [`Delegate::find`], and code 6 if `ipam` cannot be decoded.
    pub fn ipam(env: &'a Environment, config: &'a NetConf) -> Result<Option<Self>, CniError> {
        config.ipam_type()?.map(|name| Delegate::find(&name, env, config)).transpose()
    }

    /// Finds the first regular file with this name in the directories of CNI_PATH.
    ///
    /// # Errors
    /// Code 7 if the name is empty or contains `/`. Code 4 if CNI_PATH is empty. Code 999 with the searched
    /// directories if there is no such file.
    pub fn find(name: &str, env: &'a Environment, config: &'a NetConf) -> Result<Self, CniError> {
        if name.is_empty() {
            return Err(CniError::invalid_config("no plugin name provided"));
        }
        if name.contains('/') {
            return Err(CniError::invalid_config(format!("invalid plugin name: {name}")));
        }
        let folders: Vec<&str> = env.path.split(':').filter(|folder| !folder.is_empty()).collect();
        if folders.is_empty() {
            return Err(CniError::new(Code::InvalidEnvironment, "no paths provided")
                .with_details(format!("CNI_PATH is empty, so plugin {name:?} cannot be found")));
        }
        for folder in &folders {
            let program = PathBuf::from(folder).join(name);
            if let Ok(meta) = fs::metadata(&program)
                && meta.is_file()
            {
                let sibling = sibling(name, &program, &meta, env);
                return Ok(Delegate { program, sibling, env, config, is_member: false });
            }
        }
        Err(CniError::internal(format!("failed to find plugin {name:?} in path [{}]", folders.join(" "))))
    }

    /// The delegate as a plugin of a list that this plugin runs: the log has a line for it, as if the runtime had called it.
    #[must_use]
    pub fn as_member(self) -> Self {
        Delegate { is_member: true, ..self }
    }

    /// Whether the delegate is a plugin of this program, which undoes what a failed ADD of it has done.
    pub fn is_function(&self) -> bool {
        self.sibling.is_some()
    }

    /// Runs ADD. If it fails, runs the delegate's DEL and then returns the error, unless the delegate says that an earlier ADD of the
    /// attachment has got an address: DEL would release that one, which the container uses.
    ///
    /// # Errors
    /// The delegate's unchanged error object. Code 999 if it failed without one, or if its result cannot be
    /// decoded.
    pub fn add(&self, version: SpecVersion) -> Result<AddResult, CniError> {
        self.add_or_leave(version).inspect_err(|error| {
            if !error.msg.contains(DUPLICATE) {
                self.undo();
            }
        })
    }

    /// As [`add`](Self::add), but calls no DEL after a failed ADD. For a delegate that makes the interface: it fails if an earlier ADD has
    /// made one, and its DEL would remove that.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_or_leave(&self, version: SpecVersion) -> Result<AddResult, CniError> {
        self.step(|| match self.sibling {
            Some(plugin) => self.perform(plugin, Verb::Add).map(Option::unwrap_or_default),
            None => self.execute(Verb::Add).and_then(|stdout| self.read_result(&stdout, version)),
        })
    }

    /// Runs DEL after a failed ADD. Only logs an error of DEL, because the plugin returns the error of ADD.
    pub fn undo(&self) {
        if let Err(error) = self.call(Verb::Del) {
            remark!("DEL of {} after the failed ADD failed: {error}", self.program.display());
        }
    }

    /// Runs CHECK, DEL, GC or STATUS.
    ///
    /// # Errors
    /// The delegate's unchanged error object. Code 999 if it failed without one.
    pub fn call(&self, verb: Verb) -> Result<(), CniError> {
        self.step(|| match self.sibling {
            Some(plugin) => self.perform(plugin, verb).map(drop),
            None => self.execute(verb).map(drop),
        })
    }

    /// CHECK for `ferrule repair`: a function call, never a process.
    pub fn look(&self) -> Repair {
        self.sibling.map_or(Repair::Foreign, |plugin| look(plugin, self.env, self.config))
    }

    /// Repairs what [`Delegate::look`] has found: [`Repair::Possible`] has the error of CHECK. Then CHECK again.
    pub fn repair(&self, why: &CniError) -> Repair {
        self.sibling.map_or(Repair::Foreign, |plugin| repair(plugin, self.env, self.config, why))
    }

    fn perform(&self, plugin: &'static Plugin, verb: Verb) -> Result<Option<AddResult>, CniError> {
        let is_logged = self.is_member && call_log::begin_member(plugin.name, verb);
        let outcome = perform(plugin, verb, self.env, self.config);
        if is_logged {
            let version = SpecVersion::parse(self.config.version_text()).unwrap_or(SpecVersion::NEWEST);
            let result = outcome.as_ref().map(|result| result.as_ref()?.to_json(version).ok());
            call_log::end_member(result.as_ref().map(Option::as_ref).map_err(|error| *error));
        }
        outcome
    }

    /// Measures the delegate for the log.
    fn step<T>(&self, work: impl FnOnce() -> T) -> T {
        call_log::step(&self.program.to_string_lossy(), work)
    }

    fn read_result(&self, stdout: &[u8], version: SpecVersion) -> Result<AddResult, CniError> {
        Json::parse(stdout)
            .map_err(|error| error.to_string())
            .and_then(|json| AddResult::from_json(&json, version))
            .context(|| format!("failed to decode the result of {}", self.program.display()))
    }

    fn execute(&self, verb: Verb) -> Result<Vec<u8>, CniError> {
        let output = self.spawn(verb).and_then(|child| write_and_wait(child, self.config.raw()));
        let output = output.context(|| format!("failed to run plugin {}", self.program.display()))?;
        // Forward the delegate's log, even if the delegate failed.
        let _ = io::stderr().write_all(&output.stderr);
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(read_error(&output.stdout, &output.stderr, output.status))
    }

    fn spawn(&self, verb: Verb) -> io::Result<Child> {
        let (mut tries, pause) = BUSY_RETRIES;
        loop {
            let spawned = Command::new(&self.program)
                .env("CNI_COMMAND", verb.as_str())
                .env("CNI_CONTAINERID", &self.env.container_id)
                .env("CNI_NETNS", &self.env.netns)
                .env("CNI_IFNAME", &self.env.ifname)
                .env("CNI_ARGS", &self.env.args)
                .env("CNI_PATH", &self.env.path)
                .envs(call_log::traceparent())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            match spawned {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries > 0 => {
                    tries -= 1;
                    thread::sleep(pause);
                }
                outcome => return outcome,
            }
        }
    }
}

/// The plugin `name` of this program, if the file is this program's executable.
fn sibling(name: &str, file: &Path, found: &fs::Metadata, env: &Environment) -> Option<&'static Plugin> {
    let plugin = env.siblings.iter().find(|plugin| plugin.name == name)?;
    is_own_program(file, found).then_some(*plugin)
}

/// The error of a failed delegate: the error object that it printed, or the reference's text with output and
/// exit status.
fn read_error(stdout: &[u8], stderr: &[u8], status: ExitStatus) -> CniError {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ErrorObject {
        code: u32,
        msg: String,
        details: String,
    }
    let no_message = || format!("netplugin failed with no error message: {status}");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if let Ok(object) = Json::parse(stdout).and_then(|json| json.decode::<ErrorObject>())
        && (object.code != 0 || !object.msg.is_empty())
    {
        let msg = if object.msg.is_empty() { no_message() } else { object.msg };
        return CniError { code: Code::from(object.code), msg, details: object.details };
    }
    let (stdout, stderr) = (text(stdout), text(stderr));
    CniError::internal(if !stdout.is_empty() {
        format!("netplugin failed but error parsing its diagnostic message {stdout:?}: {status}")
    } else if !stderr.is_empty() {
        format!("netplugin failed: {stderr:?}: {status}")
    } else {
        no_message()
    })
}
