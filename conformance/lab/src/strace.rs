//! Plugin calls under strace(1).

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ExitStatus, Stdio};

use anyhow::{Context as _, bail, ensure};
use cni_runner::Exec;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::place::{Place, TIMEOUT, eventually};

/// The path of strace: absolute, because the call's PATH may not contain it.
const STRACE: &str = "/usr/bin/strace";

/// The call under strace.
pub(super) fn under(exec: &Exec, options: &[&str]) -> Exec {
    let options = ["-qq"].iter().chain(options).map(|&option| option.to_owned());
    let plugin = exec.binary.to_string_lossy().into_owned();
    let arguments = options.chain([plugin]).chain(exec.arguments.iter().cloned()).collect();
    Exec { binary: STRACE.into(), arguments, ..exec.clone() }
}

/// Makes a call under strace in a process group of its own and waits until all processes of the group have
/// ended.
pub(super) fn run(exec: &Exec, options: &[&str]) -> anyhow::Result<ExitStatus> {
    finish(start(exec, options)?, exec)
}

/// As [`run`], but a SIGSTOP that `options` inject stops the process: does `meanwhile` then, or when the process has ended before,
/// and lets the process go on.
pub(super) fn run_stopped(
    exec: &Exec,
    options: &[&str],
    meanwhile: impl FnOnce(),
) -> anyhow::Result<ExitStatus> {
    let log = tempfile::NamedTempFile::new()?;
    let path = log.path().to_string_lossy();
    let mut child = start(exec, &[&["-o", &path], options].concat())?;
    let is_stopped = || fs::read_to_string(log.path()).is_ok_and(|log| log.contains("stopped by SIGSTOP"));
    eventually(TIMEOUT, || is_stopped() || !matches!(child.try_wait(), Ok(None)));
    meanwhile();
    // Fails if the process has ended.
    let _ = killpg(Pid::from_raw(child.id().try_into()?), Signal::SIGCONT);
    finish(child, exec)
}

fn start(exec: &Exec, options: &[&str]) -> anyhow::Result<Child> {
    let mut command = under(exec, options).to_command();
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().context("start strace")?;
    if let Some(mut pipe) = child.stdin.take() {
        // Fails with EPIPE if the plugin was killed before it read its input.
        let _ = pipe.write_all(&exec.stdin);
    }
    Ok(child)
}

fn finish(mut child: Child, exec: &Exec) -> anyhow::Result<ExitStatus> {
    if !eventually(TIMEOUT, || !matches!(child.try_wait(), Ok(None))) {
        child.kill()?;
        bail!("{} is still running after 30 seconds", exec.command);
    }
    let status = child.wait()?;
    if !eventually(TIMEOUT, || !is_group_alive(child.id())) {
        bail!("{} left a process running", exec.command);
    }
    Ok(status)
}

/// Makes a call, which must succeed, and returns the lines that strace writes with these options.
pub(super) fn record(place: &impl Place, exec: &Exec, options: &[&str]) -> anyhow::Result<String> {
    let log = tempfile::NamedTempFile::new()?;
    let path = log.path().to_string_lossy();
    let options = [&["-e", "signal=none", "-o", &path], options].concat();
    let status = place.run(|| run(exec, &options))??;
    ensure!(status.success(), "{} failed under strace: {status}", exec.command);
    Ok(fs::read_to_string(log.path())?)
}

/// Whether the process group has a process that is not a zombie. proc_pid_stat(5): the fields after the name
/// in parentheses are state, parent and process group.
pub fn is_group_alive(group: u32) -> bool {
    let group = group.to_string();
    fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next().is_some_and(|state| state != "Z") && fields.nth(1) == Some(&group)
    })
}
