//! Checks of a program: that it answers like the plugin or the tool that it is named after.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cni_common::spec::Json;

use crate::failure::{Failure, Step};
use crate::process::{self, Ended, Trouble};
use crate::signals::Signals;
use crate::{DAEMONS, TOOL};

/// How long a program may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// A program of one name.
#[derive(Debug, Clone)]
pub struct Source {
    /// A plugin, a daemon or [`TOOL`].
    pub name: String,
    /// The file.
    pub path: PathBuf,
}

impl Source {
    /// This program under a name.
    pub fn this_program(name: &str) -> Self {
        Source { name: name.to_owned(), path: "/proc/self/exe".into() }
    }

    /// A file in a folder, named after the plugin.
    pub fn in_folder(folder: &Path, name: &str) -> Self {
        Source { name: name.to_owned(), path: folder.join(name) }
    }

    fn is_daemon(&self) -> bool {
        DAEMONS.iter().any(|(daemon, _)| *daemon == self.name)
    }

    /// Opens the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(&self) -> Result<File, Failure> {
        File::open(&self.path).step(|| format!("cannot read {}", self.path.display()))
    }

    /// Checks that the program answers VERSION on this machine, called as a runtime calls it.
    ///
    /// # Errors
    /// The defect of the program.
    pub fn check(&self, signals: &Signals) -> Result<(), Failure> {
        let path = self.path.display();
        let meta = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::new(format!("{path} is missing")));
            }
            outcome => outcome.step(|| format!("cannot read {path}"))?,
        };
        if !meta.is_file() {
            return Err(Failure::new(format!("{path} is not a file")));
        }
        check_machine(&self.path, &mut self.open()?)?;
        if meta.permissions().mode() & 0o111 == 0 {
            return Err(Failure::new(format!("{path} is not executable")));
        }
        if self.name == TOOL {
            let said = self.ask(self.command(&["version"]), "", signals)?;
            return match tool_version(&said.stdout) {
                Some(_) => Ok(()),
                None => Err(Failure::new(format!("{path} does not answer `{TOOL} version`"))),
            };
        }
        if self.is_daemon() {
            let said = self.ask(self.command(&["-h"]), "", signals)?;
            return match said.stdout.contains(&self.name) {
                true => Ok(()),
                false => Err(Failure::new(format!("{path} does not answer `{} -h`", self.name))),
            };
        }
        let mut command = self.command(&[]);
        command.env("CNI_COMMAND", "VERSION");
        for variable in ["CNI_NETNS", "CNI_IFNAME", "CNI_PATH"] {
            command.env(variable, "dummy");
        }
        let said = self.ask(command, "{\"cniVersion\":\"1.0.0\"}\n", signals)?;
        if is_version_answer(&said.stdout) {
            return Ok(());
        }
        let answer = or(said.stdout.trim(), "nothing");
        Err(Failure::new(format!("{path} does not answer VERSION with supportedVersions but with: {answer}")))
    }

    /// The version that the program prints if it is called without CNI variables; "unknown" if it prints
    /// none.
    ///
    /// # Errors
    /// A signal has asked for the end.
    pub fn version(&self, signals: &Signals) -> Result<String, Failure> {
        let mut command = match self.name.as_str() {
            TOOL => self.command(&["version"]),
            _ if self.is_daemon() => self.command(&["-h"]),
            _ => self.command(&[]),
        };
        let said = match process::run(&mut command, "", LIMIT, signals) {
            Ok(said) => said.stdout + &said.stderr,
            Err(Trouble::Stopped(failure)) => return Err(failure),
            Err(_) => String::new(),
        };
        Ok(said.lines().next().and_then(version_in).unwrap_or("unknown").to_owned())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        if self.path.file_name().is_none_or(|name| name != self.name.as_str()) {
            // The program selects the plugin by its file name.
            command.arg0(&self.name);
        }
        command.args(arguments).env_clear();
        command
    }

    /// Runs a command that has to succeed.
    fn ask(&self, mut command: Command, input: &str, signals: &Signals) -> Result<Ended, Failure> {
        let path = self.path.display();
        let said = process::run(&mut command, input, LIMIT, signals).map_err(|trouble| match trouble {
            Trouble::Stopped(failure) => failure,
            Trouble::TookTooLong => {
                Failure::new(format!("{path} does not answer VERSION within {} seconds", LIMIT.as_secs()))
            }
            Trouble::Start(error) if error.kind() == io::ErrorKind::PermissionDenied => Failure::new(
                format!("{path} cannot be executed ({error}); is its file system mounted noexec?"),
            ),
            Trouble::Start(error) => Failure::new(format!("{path} fails at VERSION: {error}")),
        })?;
        if said.status.success() {
            return Ok(said);
        }
        let answer = or(said.stdout.trim(), "no output on stdout");
        let status = match said.status.code() {
            Some(code) => format!("with status {code}"),
            None => format!("({})", said.status),
        };
        Err(Failure::new(format!("{path} fails at VERSION {status}: {answer}")))
    }
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

fn is_version_answer(answer: &str) -> bool {
    let answer = Json::parse(answer.as_bytes()).ok();
    let versions = answer.and_then(|answer| answer.get("supportedVersions")?.decode::<Vec<String>>().ok());
    versions.is_some_and(|versions| !versions.is_empty())
}

fn tool_version(answer: &str) -> Option<&str> {
    version_in(answer.lines().next()?.strip_prefix(TOOL)?.strip_prefix(' ')?)
}

/// The first word that has three numbers with dots between, such as "v1.2.3" or "1.2.3-rc1".
fn version_in(line: &str) -> Option<&str> {
    line.split(|letter: char| letter.is_whitespace() || letter == ',').find(|word| {
        let mut numbers = word.strip_prefix('v').unwrap_or(word).splitn(3, '.');
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        numbers.next().is_some_and(is_number)
            && numbers.next().is_some_and(is_number)
            && numbers
                .next()
                .is_some_and(|rest| rest.bytes().next().is_some_and(|byte| byte.is_ascii_digit()))
    })
}

/// The numbers of machines in ELF headers, by Rust's name of the architecture.
const MACHINES: [(&str, u8); 2] = [("x86_64", 62), ("aarch64", 183)];

/// Fails if the file is a program of another machine. The error of execve(2) would not say so.
fn check_machine(path: &Path, file: &mut File) -> Result<(), Failure> {
    let mut header = [0; 20];
    if file.read_exact(&mut header).is_err() || !header.starts_with(b"\x7fELF") {
        return Ok(());
    }
    let here = std::env::consts::ARCH;
    match MACHINES.iter().find(|(name, _)| *name == here) {
        Some((_, machine)) if header[18..] != [*machine, 0] => {
            Err(Failure::new(format!("{} is built for another machine than this {here}", path.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_version() {
        assert!(is_version_answer(" {\"cniVersion\": \"1.0.0\",\n \"supportedVersions\": [\"1.0.0\"]}\n"));
        for bad in ["", "hello", "{}", "{\"supportedVersions\": []}", "{\"supportedVersions\": [1]}"] {
            assert!(!is_version_answer(bad), "{bad}");
        }
    }

    #[test]
    fn versions() {
        for (line, version) in [
            ("CNI bridge plugin v1.1.1", Some("v1.1.1")),
            ("CNI bridge plugin v1.1.1-rc1+x, of", Some("v1.1.1-rc1+x")),
            ("plugin 10.0.2", Some("10.0.2")),
            ("versions 1.0, v, 1..2, a.b.c, 1.2.", None),
        ] {
            assert_eq!(version_in(line), version, "{line}");
        }
        assert_eq!(tool_version("ferrule v0.1.0\nmore"), Some("v0.1.0"));
        assert_eq!(tool_version("no plugin v0.1.0"), None);
    }
}
