//! The host ports of running pods when another program replaces our portmap.
//!
//! The reference's portmap does not know the table with our host ports. So our portmap exports them to the
//! reference's rules before any file changes, and again afterwards, for pods that started in the meantime.
//! Only the program that is being replaced knows its own table, so it is kept open for that.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::console::{note, say};
use crate::fingerprint::Fingerprint;
use crate::options::HostPorts;
use crate::process::{self, Trouble};
use crate::signals::Signals;

/// The plugin.
pub const PLUGIN: &str = "portmap";

/// How long the export may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Hands host ports over.
#[derive(Debug, Default)]
pub struct HandOver {
    /// `None` if no host port moves.
    program: Option<File>,
    /// `None` for the backend that the reference would choose.
    to: Option<HostPorts>,
    /// Whether host ports have stayed in our table, or may have.
    pub stayed: bool,
}

impl HandOver {
    /// Prepares the export by the first of these programs that has the fingerprint `ours`.
    ///
    /// # Errors
    /// In an image, the user has to say where the host ports go.
    pub fn prepare(
        to: Option<HostPorts>,
        ours: &Fingerprint,
        programs: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Self> {
        // Only root can read the table. Without root this is no node with pods.
        if to == Some(HostPorts::Keep) || !nix::unistd::geteuid().is_root() {
            return Ok(HandOver::default());
        }
        // The first process of a PID namespace: an image with only this program. It may have neither the
        // node's network nor its iptables programs.
        if to.is_none() && std::process::id() == 1 {
            bail!(
                "a container cannot tell where the host ports of running pods have to go: run `BIN_DIR/ferrule` on \
                 the node instead, or start the container with the node's network and say --host-ports"
            );
        }
        let is_ours =
            |path: &PathBuf| fs::read(path).is_ok_and(|content| Fingerprint::of_content(content) == *ours);
        let program = programs.into_iter().find(is_ours).and_then(|path| File::open(path).ok());
        if program.is_none() {
            note(
                "portmap: the program that could hand over the host ports of running pods is not there any more",
            );
        }
        Ok(HandOver { stayed: program.is_none(), program, to })
    }

    /// Exports the host ports, or prints which. Prints what the program says. Returns false if it failed.
    ///
    /// # Errors
    /// The program cannot be started, or a signal has asked for the end.
    pub fn run(&mut self, dry_run: bool, signals: &Signals) -> Result<bool> {
        let Some(program) = &self.program else { return Ok(true) };
        let cannot = "cannot start portmap to hand over host ports";
        // The kernel opens /proc/self/fd/N of the new process.
        fcntl(program, FcntlArg::F_SETFD(FdFlag::empty())).context(cannot)?;
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        // The former name of `export`, because an older program may not know the new one.
        command.arg0(PLUGIN).arg("hand-back").env_clear();
        if let Some(backend) = self.to.and_then(|to| to.to_possible_value()) {
            command.args(["--to", backend.get_name()]);
        }
        if dry_run {
            command.arg("--dry-run");
        }
        let said = match process::run(&mut command, "", LIMIT, signals) {
            Ok(said) => said,
            Err(trouble @ Trouble::TookTooLong(_)) => {
                note(format_args!("portmap: {trouble}"));
                return Ok(false);
            }
            Err(Trouble::Stopped(stopped)) => return Err(stopped.into()),
            Err(trouble) => return Err(trouble).context(cannot),
        };
        let status = said.status.code();
        let has_worked = matches!(status, Some(0 | 3));
        let would = if dry_run { "would " } else { "" };
        for line in said.stdout.lines() {
            match has_worked {
                true => say(format_args!("portmap: {would}hand over {line}")),
                false => note(format_args!("portmap: {line}")),
            }
        }
        for line in said.stderr.lines() {
            note(format_args!("portmap: {line}"));
        }
        self.stayed |= status == Some(3);
        Ok(has_worked)
    }
}
