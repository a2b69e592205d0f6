//! The host ports of running pods when another program replaces our portmap.
//!
//! The reference's portmap does not know the table with our host ports. So our portmap exports them to the
//! reference's rules before any file changes, and again afterwards, for pods that started in the meantime.
//! Only the program that is being replaced knows its own table, so it is kept open for that.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::console::{note, say};
use crate::failure::{Failure, Step};
use crate::fingerprint::Fingerprint;
use crate::process::{self, Trouble};
use crate::signals::Signals;

/// The plugin.
pub const PLUGIN: &str = "portmap";

/// How long the export may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Where host ports go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPorts {
    /// To the backend that the reference would choose: iptables if the node has it, else nftables.
    Auto,
    /// To the reference's iptables backend.
    Iptables,
    /// To the reference's nftables backend.
    Nftables,
    /// Nowhere.
    Keep,
}

impl HostPorts {
    /// Reads the value of `--host-ports`.
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "auto" => HostPorts::Auto,
            "iptables" => HostPorts::Iptables,
            "nftables" => HostPorts::Nftables,
            "keep" => HostPorts::Keep,
            _ => return None,
        })
    }
}

/// Hands host ports over.
#[derive(Debug)]
pub struct HandOver {
    program: Option<File>,
    to: HostPorts,
    /// Whether host ports have stayed in our table, or may have.
    pub stayed: bool,
}

impl HandOver {
    /// No host port moves.
    pub fn nothing() -> Self {
        HandOver { program: None, to: HostPorts::Keep, stayed: false }
    }

    /// Prepares the export by the first of these programs that has the fingerprint `ours`.
    ///
    /// # Errors
    /// In an image, the user has to say where the host ports go.
    pub fn prepare(
        to: HostPorts,
        ours: &Fingerprint,
        programs: impl IntoIterator<Item = std::path::PathBuf>,
    ) -> Result<Self, Failure> {
        // Only root can read the table. Without root this is no node with pods.
        if to == HostPorts::Keep || !nix::unistd::geteuid().is_root() {
            return Ok(HandOver::nothing());
        }
        // The first process of a PID namespace: an image with only this program. It may have neither the
        // node's network nor its iptables programs.
        if to == HostPorts::Auto && std::process::id() == 1 {
            return Err(Failure::new(
                "a container cannot tell where the host ports of running pods have to go: run `BIN_DIR/ferrule` on \
                 the node instead, or start the container with the node's network and say --host-ports",
            ));
        }
        for path in programs {
            // Two descriptors, because reading moves the position.
            if let (Ok(read), Ok(program)) = (File::open(&path), File::open(&path))
                && Fingerprint::of_file(read).is_ok_and(|print| print == *ours)
            {
                return Ok(HandOver { program: Some(program), to, stayed: false });
            }
        }
        note(
            "portmap: the program that could hand over the host ports of running pods is not there any more",
        );
        Ok(HandOver { program: None, to, stayed: true })
    }

    /// Exports the host ports, or prints which. Prints what the program says. Returns false if it failed.
    ///
    /// # Errors
    /// The program cannot be started, or a signal has asked for the end.
    pub fn run(&mut self, dry_run: bool, signals: &Signals) -> Result<bool, Failure> {
        let Some(program) = &self.program else { return Ok(true) };
        let cannot = || "cannot start portmap to hand over host ports".to_owned();
        // The kernel opens /proc/self/fd/N of the new process.
        fcntl_setfd(program, FdFlags::empty()).step(cannot)?;
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        // The former name of `export`, because an older program may not know the new one.
        command.arg0(PLUGIN).arg("hand-back").env_clear();
        match self.to {
            HostPorts::Iptables => drop(command.args(["--to", "iptables"])),
            HostPorts::Nftables => drop(command.args(["--to", "nftables"])),
            HostPorts::Auto | HostPorts::Keep => {}
        }
        if dry_run {
            command.arg("--dry-run");
        }
        let said = match process::run(&mut command, "", LIMIT, signals) {
            Ok(said) => said,
            Err(Trouble::Stopped(failure)) => return Err(failure),
            Err(Trouble::Start(error)) => return Err(error).step(cannot),
            Err(Trouble::TookTooLong) => {
                note(format_args!("portmap: still running after {} seconds", LIMIT.as_secs()));
                return Ok(false);
            }
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
