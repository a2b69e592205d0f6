//! Acts as a mutant.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use tempfile::TempDir;

use super::crude_mutants::CRUDE_MUTANTS;
use super::mutants::mutants;

/// The file beside the mutants with two lines: the folder of the original plugins, and the mutant's name.
const NOTE: &str = ".broken";

/// A folder with all plugins of the folder `original`; those in `broken` are replaced by the mutant of the
/// name `how`.
pub(super) fn folder(original: &Path, broken: &[&str], how: &str) -> anyhow::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("broken-plugins-").tempdir()?;
    let this = std::env::current_exe().context("find this program")?;
    for file in fs::read_dir(original).with_context(|| format!("list {}", original.display()))? {
        let file = file?;
        let name = file.file_name().to_string_lossy().into_owned();
        let target = if broken.contains(&name.as_str()) { this.clone() } else { file.path() };
        symlink(target, folder.path().join(&name)).with_context(|| format!("link {name} into the folder"))?;
    }
    fs::write(folder.path().join(NOTE), format!("{}\n{how}", original.display()))?;
    Ok(folder)
}

/// A call of a mutant.
#[derive(Clone)]
pub(super) struct Call {
    /// The original plugin.
    pub original: PathBuf,
    /// Standard input.
    pub stdin: Vec<u8>,
    /// The environment, which a mutant may change for the original plugin.
    pub env: Vec<(String, String)>,
}

/// Standard output, standard error and exit status of a plugin.
#[derive(Default)]
pub(super) struct Answer {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub status: u8,
}

impl Answer {
    /// Success without output.
    pub(super) fn silence() -> Answer {
        Answer::default()
    }

    /// Success with this standard output.
    pub(super) fn printed(text: impl Into<Vec<u8>>) -> Answer {
        Answer { stdout: text.into(), ..Answer::default() }
    }

    /// Failure with this standard output.
    pub(super) fn failed(text: impl Into<Vec<u8>>) -> Answer {
        Answer { stdout: text.into(), status: 1, ..Answer::default() }
    }

    /// Standard output as JSON; `null` if it is not JSON.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_default()
    }
}

impl Call {
    /// The value of a variable; empty if it is not set.
    pub(super) fn var(&self, name: &str) -> &str {
        self.env.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// `CNI_COMMAND`.
    pub(super) fn verb(&self) -> &str {
        self.var("CNI_COMMAND")
    }

    /// The same call with another value of a variable.
    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Call {
        self.env.retain(|(key, _)| key != name);
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Standard input as JSON; `null` if it is not JSON.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdin).unwrap_or_default()
    }

    /// The same call with another configuration.
    pub(super) fn with_json(mut self, config: &serde_json::Value) -> Call {
        self.stdin = config.to_string().into_bytes();
        self
    }

    /// The answer of the original plugin.
    pub(super) fn original(&self) -> Answer {
        let mut command = Command::new(&self.original);
        command.env_clear().envs(self.env.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            return Answer::failed("cannot start the original plugin");
        };
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(&self.stdin);
        }
        match child.wait_with_output() {
            Err(_) => Answer::failed("cannot read the answer of the original plugin"),
            Ok(output) => Answer {
                status: output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
                stdout: output.stdout,
                stderr: output.stderr,
            },
        }
    }
}

/// Acts as a plugin if this program was started as one.
pub(super) fn act_as_mutant() -> Option<ExitCode> {
    let name = PathBuf::from(std::env::args_os().next()?);
    let note = fs::read_to_string(name.parent()?.join(NOTE)).ok()?;
    let (original, how) = note.split_once('\n')?;
    let env = std::env::vars_os()
        .map(|(key, value)| (key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let mut call =
        Call { original: Path::new(original).join(name.file_name()?), stdin: Vec::new(), env: env.collect() };
    // VERSION may come with a standard input that the caller never closes.
    if call.verb() != "VERSION" {
        let _ = std::io::stdin().read_to_end(&mut call.stdin);
    }
    let mutant = mutants().find(|mutant| mutant.name == how).map(|mutant| mutant.answer);
    let crude_mutant = CRUDE_MUTANTS.iter().find(|(name, _)| *name == how).map(|(_, answer)| *answer);
    let answer = mutant.or(crude_mutant)?(call);
    let _ = std::io::stdout().write_all(&answer.stdout);
    let _ = std::io::stderr().write_all(&answer.stderr);
    Some(ExitCode::from(answer.status))
}
