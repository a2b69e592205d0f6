//! A plugin as a process, with a time limit.
//!
//! Its streams are files in memory, so no write or read waits for the plugin.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::cache::parse;

/// The time between two looks at running plugins.
pub const PAUSE: Duration = Duration::from_micros(500);

/// A running plugin.
pub struct Process {
    child: Child,
    output: File,
    errors: File,
    started: Instant,
}

/// What a plugin that succeeded has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// On standard output.
    pub output: String,
    /// On standard error.
    pub errors: String,
}

impl Process {
    /// Starts a plugin with only these variables in addition to the environment.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: &Path, variables: &[(&str, String)], stdin: &str) -> Result<Process, String> {
        let spawn = || -> io::Result<Process> {
            let (mut input, output, errors) = (memory()?, memory()?, memory()?);
            input.write_all(stdin.as_bytes())?;
            input.rewind()?;
            let child = Command::new(program)
                .env_remove("CNI_COMMAND")
                .envs(variables.iter().map(|(name, value)| (name, value)))
                .stdin(input)
                .stdout(output.try_clone()?)
                .stderr(errors.try_clone()?)
                .process_group(0)
                .spawn()?;
            Ok(Process { child, output, errors, started: Instant::now() })
        };
        spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))
    }

    /// The outcome, if the plugin has ended or exceeds the limit. Then it is stopped together with the programs that it has
    /// started. An error is the text of the plugin's error document.
    pub fn outcome(&mut self, limit: Duration) -> Option<Result<Written, String>> {
        match self.child.try_wait() {
            Ok(Some(status)) if status.success() => {
                Some(Ok(Written { output: text(&mut self.output), errors: text(&mut self.errors) }))
            }
            Ok(Some(status)) => Some(Err(error_in(&text(&mut self.output))
                .unwrap_or_else(|| format!("{status} without an error document")))),
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

    /// Waits for the outcome.
    ///
    /// # Errors
    /// As [`Process::outcome`].
    pub fn wait(mut self, limit: Duration) -> Result<Written, String> {
        loop {
            match self.outcome(limit) {
                Some(outcome) => return outcome,
                None => thread::sleep(PAUSE),
            }
        }
    }
}

/// The plugin's program in the first of the folders that has it.
///
/// # Errors
/// The name is not valid, or no folder has the program.
pub fn find(path: &[PathBuf], plugin: &str) -> Result<PathBuf, String> {
    if plugin.is_empty() || plugin.contains('/') {
        return Err("the configuration has no valid type".to_owned());
    }
    let program = path.iter().map(|folder| folder.join(plugin)).find(|program| program.is_file());
    program.ok_or_else(|| format!("no such program in {}", join(path)))
}

/// The folders as in CNI_PATH.
pub fn join(path: &[PathBuf]) -> String {
    path.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
}

/// A file in memory.
fn memory() -> io::Result<File> {
    Ok(memfd_create("cni", MemfdFlags::CLOEXEC)?.into())
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The text of an error document.
fn error_in(output: &str) -> Option<String> {
    let json = parse(output.as_bytes())?;
    let text = |key: &str| json.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let message = text("msg")?;
    Some(text("details").map_or(message.to_owned(), |details| format!("{message}; {details}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Written, String> {
        let variables = [("SCRIPT", script.to_owned())];
        Process::start(Path::new("/bin/sh"), &variables, r#"eval "$SCRIPT""#)
            .unwrap()
            .wait(Duration::from_secs(60))
    }

    #[test]
    fn outcomes() {
        let both = Written { output: "out".to_owned(), errors: "err".to_owned() };
        assert_eq!(shell("printf out; printf err >&2"), Ok(both));
        assert_eq!(shell("exit 3").unwrap_err(), "exit status: 3 without an error document");
        assert_eq!(shell(r#"echo '{"code":7,"msg":"wrong"}'; exit 1"#).unwrap_err(), "wrong");
        let hangs = Process::start(Path::new("/bin/sh"), &[], "sleep 1000").unwrap();
        assert_eq!(hangs.wait(Duration::ZERO).unwrap_err(), "no answer within 0 s");
    }

    #[test]
    fn an_error_document_is_one_line() {
        assert_eq!(error_in(r#"{"code":7,"msg":"wrong","details":"x is 1"}"#).unwrap(), "wrong; x is 1");
        assert_eq!(error_in(r#"{"code":7,"msg":"wrong"}"#).unwrap(), "wrong");
        assert_eq!((error_in("panic"), error_in("{}")), (None, None));
    }

    #[test]
    fn a_program_is_found_by_its_name_only() {
        assert_eq!(find(&["/bin".into()], "sh").unwrap(), PathBuf::from("/bin/sh"));
        assert_eq!(find(&["/nowhere".into()], "sh").unwrap_err(), "no such program in /nowhere");
        assert!(find(&["/bin".into()], "").is_err() && find(&["/".into()], "bin/sh").is_err());
    }
}
