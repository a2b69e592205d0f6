//! Running another plugin: how an interface plugin gets its addresses from an IPAM plugin.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use super::Plugin;
use super::dispatch::perform;
use super::env::{Environment, Verb};
use crate::spec::{AddResult, CniError, Code, Json, NetConf, SpecVersion};

/// How often, and how far apart, a delegate is tried again that is being replaced at this moment (ETXTBSY).
const BUSY_RETRIES: (u32, Duration) = (100, Duration::from_millis(50));

/// What a pipe takes without a reader even where the kernel is short of memory for pipes: one page.
const PIPE_CAPACITY: usize = 4096;

/// A plugin that this one calls. It gets this one's environment and configuration unchanged but for CNI_COMMAND.
///
/// It is a process of its own, unless the file that CNI_PATH leads to is the very file that this process runs (another name
/// of it, a link): then the plugin is here already, and is called.
pub struct Delegate<'a> {
    program: PathBuf,
    sibling: Option<&'static dyn Plugin>,
    env: &'a Environment,
    config: &'a NetConf,
}

impl<'a> Delegate<'a> {
    /// The IPAM plugin that the configuration names, `None` if it names none.
    ///
    /// # Errors
    /// As [`Delegate::find`], and code 6 if `ipam` cannot be read.
    pub fn ipam(env: &'a Environment, config: &'a NetConf) -> Result<Option<Self>, CniError> {
        config.ipam_type()?.map(|name| Delegate::find(&name, env, config)).transpose()
    }

    /// The first regular file called `name` in the folders of CNI_PATH.
    ///
    /// # Errors
    /// Code 7 if the name is empty or holds a `/`, code 4 if CNI_PATH is empty, else 999 with the folders that were searched.
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
                return Ok(Delegate { program, sibling: sibling(name, &meta, env), env, config });
            }
        }
        Err(CniError::internal(format!("failed to find plugin {name:?} in path [{}]", folders.join(" "))))
    }

    /// ADD. If it fails, the delegate's DEL is run before the error comes back.
    ///
    /// # Errors
    /// The delegate's own, unchanged, or code 999 if it printed none or no result.
    pub fn add(&self, version: SpecVersion) -> Result<AddResult, CniError> {
        let added = match self.sibling {
            Some(plugin) => perform(plugin, Verb::Add, self.env, self.config).map(Option::unwrap_or_default),
            None => self.execute(Verb::Add).and_then(|stdout| self.read_result(&stdout, version)),
        };
        added.inspect_err(|_| self.undo())
    }

    /// DEL after a failure: its outcome is of no more interest.
    pub fn undo(&self) {
        if let Err(error) = self.call(Verb::Del) {
            eprintln!("undoing the ADD of {}: {error}", self.program.display());
        }
    }

    /// CHECK, DEL, GC or STATUS.
    ///
    /// # Errors
    /// The delegate's own, unchanged, or code 999 if it printed none.
    pub fn call(&self, verb: Verb) -> Result<(), CniError> {
        match self.sibling {
            Some(plugin) => perform(plugin, verb, self.env, self.config).map(drop),
            None => self.execute(verb).map(drop),
        }
    }

    fn read_result(&self, stdout: &[u8], version: SpecVersion) -> Result<AddResult, CniError> {
        Json::parse(stdout)
            .map_err(|error| error.to_string())
            .and_then(|json| AddResult::from_json(&json, version))
            .map_err(|why| CniError::internal(format!("result of {}: {why}", self.program.display())))
    }

    fn execute(&self, verb: Verb) -> Result<Vec<u8>, CniError> {
        let failed = |error: io::Error| {
            CniError::internal(format!("could not run {}: {error}", self.program.display()))
        };
        let child = self.spawn(verb).map_err(failed)?;
        let output = converse(child, self.config.raw()).map_err(failed)?;
        // Whatever it logged is the caller's to see, even if it failed.
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

/// The plugin of that name in this program, if `found` is this program's file.
fn sibling(name: &str, found: &fs::Metadata, env: &Environment) -> Option<&'static dyn Plugin> {
    let plugin = env.siblings.iter().find(|plugin| plugin.name() == name)?;
    let own = fs::metadata("/proc/self/exe").ok()?;
    ((found.dev(), found.ino()) == (own.dev(), own.ino())).then_some(*plugin)
}

/// Writes the input and reads the output, until the child has ended. A long input needs a thread of its own: a child that
/// prints much before it reads would wait for us, and we for it.
fn converse(mut child: Child, input: &[u8]) -> io::Result<Output> {
    let stdin = child.stdin.take();
    let feed = || {
        if let Some(mut stdin) = stdin {
            // A delegate that does not read its configuration says why itself; a broken pipe would only hide that.
            let _ = stdin.write_all(input);
        }
    };
    if input.len() <= PIPE_CAPACITY {
        feed();
        return child.wait_with_output();
    }
    thread::scope(|scope| {
        thread::Builder::new().spawn_scoped(scope, feed)?;
        child.wait_with_output()
    })
}

/// The error of a delegate that failed: the object it printed, else what there is to say about it.
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
    match (text(stdout), text(stderr)) {
        (stdout, stderr) if stdout.is_empty() && stderr.is_empty() => CniError::internal(no_message()),
        (stdout, stderr) if stdout.is_empty() => {
            CniError::internal(format!("netplugin failed: {stderr:?}: {status}"))
        }
        (stdout, _) => CniError::internal(format!(
            "netplugin failed but error parsing its diagnostic message {stdout:?}: {status}"
        )),
    }
}
