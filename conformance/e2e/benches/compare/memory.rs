//! The peak memory of one call, measured in extra rounds because tracing is slow.
//!
//! The peak that `wait4` reports includes the time before `exec`, when the child still shares the memory of
//! its parent; a plugin of 1 MB would be reported with the size of this program. So the call is traced: each
//! of its processes is stopped at its end, and its peak since `exec` is read from /proc.

use std::fmt::Display;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cni_runner::{Exec, Output};
use nix::errno::Errno;
use nix::libc::PTRACE_EVENT_EXIT;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Waits for a line, so that this program can attach as tracer, then executes the plugin. From a pipe the
/// shell's `read` takes no byte beyond the line.
const GATE: &str = r#"read -r _ && exec "$0""#;

/// Runs a call and returns the peak resident memory in KiB of its largest process.
pub(crate) fn peak(exec: &Exec) -> anyhow::Result<(Output, u64)> {
    let mut child = start(exec)?;
    let pid = Pid::from_raw(child.id().try_into()?);
    let options = Options::PTRACE_O_TRACEEXIT
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK;
    ptrace::seize(pid, options).context("trace a plugin")?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    stdin.write_all(b"\n").context("start a traced plugin")?;
    // Fails with EPIPE if the plugin ends without reading its input.
    let _ = stdin.write_all(&exec.stdin);
    drop(stdin);
    let (status, peak) = watch(pid)?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().context("no standard output")?.read_to_end(&mut stdout)?;
    child.stderr.take().context("no standard error")?.read_to_end(&mut stderr)?;
    // watch() has already reaped the child, so this fails; it only closes the handle.
    let _ = child.wait();
    Ok((Output { status, stdout, stderr, wall: Duration::ZERO }, peak))
}

fn start(exec: &Exec) -> anyhow::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", GATE]).arg(&exec.binary);
    command
        .env("CNI_COMMAND", &exec.command)
        .env("CNI_CONTAINERID", &exec.container_id)
        .env("CNI_NETNS", &exec.netns)
        .env("CNI_IFNAME", &exec.ifname)
        .env("CNI_ARGS", &exec.args)
        .env("CNI_PATH", &exec.path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("start sh")
}

/// Continues all traced processes at each stop until the main process has ended.
fn watch(main: Pid) -> anyhow::Result<(ExitStatus, u64)> {
    let mut peak = 0;
    loop {
        let event = waitpid(None, Some(WaitPidFlag::__WALL)).context("wait for a traced plugin")?;
        let (stopped, signal) = match event {
            WaitStatus::Exited(pid, code) if pid == main => {
                return Ok((ExitStatus::from_raw(code << 8), peak));
            }
            WaitStatus::Signaled(pid, signal, _) if pid == main => bail!("a traced plugin died of {signal}"),
            WaitStatus::PtraceEvent(pid, _, event) => {
                if event == PTRACE_EVENT_EXIT {
                    peak = peak.max(high_water(pid).unwrap_or(0));
                }
                (pid, None)
            }
            WaitStatus::Stopped(pid, signal) => (pid, deliverable(signal)),
            _ => continue,
        };
        match ptrace::cont(stopped, signal) {
            // ESRCH: another thread of the same process has ended it meanwhile.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(errno).context("let a traced plugin go on"),
        }
    }
}

/// SIGTRAP is for the tracer; all other signals are passed on to the plugin.
fn deliverable(signal: Signal) -> Option<Signal> {
    (signal != Signal::SIGTRAP).then_some(signal)
}

/// The peak of a running process in KiB.
pub(crate) fn high_water(pid: impl Display) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
