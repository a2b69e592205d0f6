//! Checks of a program: that it answers like the plugin or the tool that it is named after.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cni_common::spec::Json;
use nix::errno::Errno;

use crate::fingerprint::Fingerprint;
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
    /// The fingerprint of the file, behind links.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn print(&self) -> Result<Fingerprint> {
        let content = fs::read(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(Fingerprint::of_content(content))
    }

    /// Checks that the program answers on this machine: a plugin VERSION, called as a runtime calls it. Returns the version
    /// that it prints for a user; "unknown" if it prints none.
    ///
    /// # Errors
    /// The defect of the program, or a signal has asked for the end.
    pub fn check(&self, signals: &Signals) -> Result<String> {
        let path = self.path.display();
        let asked = match self.name.as_str() {
            TOOL => Some("version"),
            name => DAEMONS.iter().any(|(daemon, _)| *daemon == name).then_some("-h"),
        };
        let said = match asked {
            Some(argument) => {
                let said = self.ask(self.command().arg(argument), "", signals)?;
                if !said.stdout.contains(&self.name) {
                    bail!("{path} does not answer `{} {argument}`", self.name);
                }
                said
            }
            None => {
                self.check_plugin(signals)?;
                match process::run(&mut self.command(), "", LIMIT, signals) {
                    Err(Trouble::Stopped(stopped)) => return Err(stopped.into()),
                    Err(_) => return Ok(UNKNOWN.to_owned()),
                    Ok(said) => said,
                }
            }
        };
        let all = said.stdout + &said.stderr;
        Ok(all.lines().next().and_then(find_version).unwrap_or(UNKNOWN).to_owned())
    }

    fn check_plugin(&self, signals: &Signals) -> Result<()> {
        let mut command = self.command();
        command.env("CNI_COMMAND", "VERSION");
        command.envs(["CNI_NETNS", "CNI_IFNAME", "CNI_PATH"].map(|variable| (variable, "dummy")));
        let said = self.ask(&mut command, "{\"cniVersion\":\"1.0.0\"}\n", signals)?;
        if !is_version_answer(&said.stdout) {
            let (path, answer) = (self.path.display(), or(said.stdout.trim(), "nothing"));
            bail!("{path} does not answer VERSION with supportedVersions but with: {answer}");
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if !self.path.ends_with(&self.name) {
            // The program selects the plugin by its file name.
            command.arg0(&self.name);
        }
        command.env_clear();
        command
    }

    /// Runs a command that has to succeed.
    fn ask(&self, command: &mut Command, input: &str, signals: &Signals) -> Result<Ended> {
        let path = self.path.display();
        let said = process::run(command, input, LIMIT, signals).map_err(|trouble| match trouble {
            Trouble::Stopped(stopped) => stopped.into(),
            Trouble::TookTooLong(limit) => {
                anyhow!("{path} does not answer VERSION within {} seconds", limit.as_secs())
            }
            Trouble::Start(error) => {
                let hint = match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EACCES) => "; is it not executable, or its file system mounted noexec?",
                    Some(Errno::ENOEXEC) => "; is it built for another machine?",
                    _ => "",
                };
                anyhow!("{path} fails at VERSION: {error}{hint}")
            }
        })?;
        if said.status.success() {
            return Ok(said);
        }
        let answer = or(said.stdout.trim(), "no output on stdout");
        let status = match said.status.code() {
            Some(code) => format!("with status {code}"),
            None => format!("({})", said.status),
        };
        bail!("{path} fails at VERSION {status}: {answer}")
    }
}

const UNKNOWN: &str = "unknown";

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

fn is_version_answer(answer: &str) -> bool {
    let answer = Json::parse(answer.as_bytes()).ok();
    let versions = answer.and_then(|answer| answer.get("supportedVersions")?.decode::<Vec<String>>().ok());
    versions.is_some_and(|versions| !versions.is_empty())
}

/// The first word that has three numbers with dots between, such as "v1.2.3" or "1.2.3-rc1".
fn find_version(line: &str) -> Option<&str> {
    line.split([' ', '\t', ',']).find(|word| {
        let mut numbers = word.strip_prefix('v').unwrap_or(word).splitn(3, '.');
        let mut is_number = || numbers.next().is_some_and(|text| text.parse::<u32>().is_ok());
        is_number()
            && is_number()
            && numbers.next().is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
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
            ("ferrule v0.1.0", Some("v0.1.0")),
            ("versions 1.0, v, 1..2, a.b.c, 1.2.", None),
        ] {
            assert_eq!(find_version(line), version, "{line}");
        }
    }
}
