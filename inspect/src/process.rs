//! A plugin as a process, with a time limit.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use cni_common::captured::Captured;
use cni_common::spec::REMEDY;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::cache::parse;

/// The time between two looks at running plugins.
pub const PAUSE: Duration = Duration::from_micros(500);

/// What helps if a plugin does not answer.
const WAITS: &str = "end what the plugin waits for, or raise --timeout";
/// What helps if a plugin ends without an answer.
const BROKEN: &str = "install the plugin again";

/// A running plugin.
pub struct Process {
    program: Captured,
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
        let mut command = Command::new(program);
        command.env_remove("CNI_COMMAND").process_group(0);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        match Captured::start(&mut command, stdin) {
            Ok(program) => Ok(Process { program, started: Instant::now() }),
            Err(error) => Err(format!("cannot start {}: {error}", program.display())),
        }
    }

    /// The outcome, if the plugin has ended or exceeds the limit. Then it is stopped together with the programs that it has
    /// started. An error is the text of the plugin's error document.
    pub fn outcome(&mut self, limit: Duration) -> Option<Result<Written, String>> {
        match self.program.child.try_wait() {
            Ok(Some(status)) => Some(self.finish(status)),
            Ok(None) if self.started.elapsed() < limit => None,
            Ok(None) => {
                if let Some(group) = Pid::from_raw(self.program.child.id().cast_signed()) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = self.program.child.wait();
                Some(Err(format!("no answer within {} s; {REMEDY}{WAITS}", limit.as_secs())))
            }
            Err(error) => Some(Err(error.to_string())),
        }
    }

    fn finish(&mut self, status: ExitStatus) -> Result<Written, String> {
        let cannot = |error: io::Error| format!("cannot read its output: {error}");
        let output = self.program.stdout().map_err(cannot)?;
        let errors = self.program.stderr().map_err(cannot)?;
        match status.success() {
            true => Ok(Written { output, errors }),
            false => Err(error_in(&output)
                .unwrap_or_else(|| format!("{status} without an error document; {REMEDY}{BROKEN}"))),
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
        let broken = "exit status: 3 without an error document; remedy: install the plugin again";
        assert_eq!(shell("exit 3").unwrap_err(), broken);
        assert_eq!(shell(r#"echo '{"code":7,"msg":"wrong"}'; exit 1"#).unwrap_err(), "wrong");
        let hangs = Process::start(Path::new("/bin/sh"), &[], "sleep 1000").unwrap();
        assert!(hangs.wait(Duration::ZERO).unwrap_err().starts_with("no answer within 0 s; remedy: "));
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
