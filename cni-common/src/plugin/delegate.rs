//! Running another plugin: how an interface plugin gets its addresses from an IPAM plugin.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use super::env::{Environment, Verb};
use crate::spec::{AddResult, CniError, Code, Json, NetConf, SpecVersion};

/// How often, and how far apart, a delegate is tried again that is being replaced at this moment (ETXTBSY).
const BUSY_RETRIES: (u32, Duration) = (20, Duration::from_millis(50));

/// A plugin that this one calls. It gets this one's environment and configuration unchanged but for CNI_COMMAND.
pub struct Delegate<'a> {
    program: PathBuf,
    env: &'a Environment,
    config: &'a NetConf,
}

impl<'a> Delegate<'a> {
    /// The IPAM plugin that the configuration names, `None` if it names none.
    ///
    /// # Errors
    /// As [`Delegate::find`].
    pub fn ipam(env: &'a Environment, config: &'a NetConf) -> Result<Option<Self>, CniError> {
        config.ipam_type().map(|name| Delegate::find(&name, env, config)).transpose()
    }

    /// The first regular file called `name` in the folders of CNI_PATH.
    ///
    /// # Errors
    /// Code 7 if the name holds a `/`, code 4 if CNI_PATH is empty, else 999 with the folders that were searched.
    pub fn find(name: &str, env: &'a Environment, config: &'a NetConf) -> Result<Self, CniError> {
        if name.contains('/') {
            return Err(CniError::invalid_config(format!("invalid plugin name: {name}")));
        }
        let folders: Vec<&str> = env.path.split(':').filter(|folder| !folder.is_empty()).collect();
        if folders.is_empty() {
            return Err(CniError::new(Code::InvalidEnvironment, "no paths provided")
                .with_details(format!("CNI_PATH is empty, so plugin {name:?} cannot be found")));
        }
        folders
            .iter()
            .map(|folder| PathBuf::from(folder).join(name))
            .find(|program| fs::metadata(program).is_ok_and(|meta| meta.is_file()))
            .map(|program| Delegate { program, env, config })
            .ok_or_else(|| {
                CniError::internal(format!("failed to find plugin {name:?} in path [{}]", folders.join(" ")))
            })
    }

    /// ADD. If it fails, the delegate's DEL is run before the error comes back.
    ///
    /// # Errors
    /// The delegate's own, unchanged, or code 999 if it printed none or no result.
    pub fn add(&self, version: SpecVersion) -> Result<AddResult, CniError> {
        let added = self.run(Verb::Add).and_then(|stdout| self.read_result(&stdout, version));
        added.inspect_err(|_| self.undo())
    }

    /// DEL after a failure: its outcome is of no more interest.
    pub fn undo(&self) {
        if let Err(error) = self.run(Verb::Del) {
            eprintln!("undoing the ADD of {}: {error}", self.program.display());
        }
    }

    /// CHECK, DEL, GC or STATUS.
    ///
    /// # Errors
    /// The delegate's own, unchanged, or code 999 if it printed none.
    pub fn call(&self, verb: Verb) -> Result<(), CniError> {
        self.run(verb).map(drop)
    }

    fn read_result(&self, stdout: &[u8], version: SpecVersion) -> Result<AddResult, CniError> {
        Json::parse(stdout)
            .map_err(|error| error.to_string())
            .and_then(|json| AddResult::from_json(&json, version))
            .map_err(|why| CniError::internal(format!("result of {}: {why}", self.program.display())))
    }

    fn run(&self, verb: Verb) -> Result<Vec<u8>, CniError> {
        let failed = |error: std::io::Error| {
            CniError::internal(format!("could not run {}: {error}", self.program.display()))
        };
        let mut child = self.spawn(verb).map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A delegate that does not read its configuration says why itself; a broken pipe would only hide that.
            let _ = stdin.write_all(self.config.raw());
        }
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            // Whatever it logged is the caller's to see.
            let _ = std::io::stderr().write_all(&output.stderr);
            return Ok(output.stdout);
        }
        Err(read_error(&output.stdout, &output.stderr, output.status))
    }

    fn spawn(&self, verb: Verb) -> std::io::Result<std::process::Child> {
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
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy && tries > 0 => {
                    tries -= 1;
                    thread::sleep(pause);
                }
                outcome => return outcome,
            }
        }
    }
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
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if let Ok(object) = Json::parse(stdout).and_then(|json| json.decode::<ErrorObject>())
        && !object.msg.is_empty()
    {
        return CniError { code: Code::from(object.code), msg: object.msg, details: object.details };
    }
    match (text(stdout), text(stderr)) {
        (stdout, stderr) if stdout.is_empty() && stderr.is_empty() => {
            CniError::internal(format!("netplugin failed with no error message: {status}"))
        }
        (stdout, stderr) if stdout.is_empty() => {
            CniError::internal(format!("netplugin failed: {stderr:?}: {status}"))
        }
        (stdout, _) => CniError::internal(format!(
            "netplugin failed but error parsing its diagnostic message {stdout:?}: {status}"
        )),
    }
}
