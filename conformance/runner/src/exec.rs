//! One call of one plugin, the lowest level. Tests use it directly for calls that no runtime makes, even
//! invalid ones.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Attachment, Output};

/// The capacity of a Linux pipe. A longer standard input is written by a thread, because the plugin may not
/// read it.
const PIPE_CAPACITY: usize = 64 * 1024;
/// How often libcni tries to start a binary that is being replaced (ETXTBSY), and how long it waits in
/// between.
const BUSY_TRIES: usize = 5;
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// The error of a plugin that was killed at the time limit.
#[derive(Debug, Clone, Copy)]
pub struct TookTooLong;

impl fmt::Display for TookTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the plugin was still running at the time limit and was killed")
    }
}

impl std::error::Error for TookTooLong {}

/// The error of a plugin that has ended while another process keeps one of its output streams open.
#[derive(Debug, Clone, Copy)]
pub struct HeldOpen;

impl fmt::Display for HeldOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the plugin has ended, but another process keeps its output streams open")
    }
}

impl std::error::Error for HeldOpen {}

/// A plugin call in preparation. As libcni does, it sets all six CNI variables, empty if unused, on top of
/// the inherited environment; [`Exec::without`] removes one.
#[derive(Debug, Clone)]
pub struct Exec {
    /// The plugin; also its `argv[0]`.
    pub binary: PathBuf,
    /// Arguments. Plugins get none; the command line of a program of plugins does.
    pub arguments: Vec<String>,
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
    /// Standard input.
    pub stdin: Vec<u8>,
    /// More variables; they override those above.
    pub env: Vec<(String, String)>,
    /// Variables that the plugin does not get.
    pub absent: Vec<String>,
    /// Whether the plugin also gets this process's environment, as from a runtime.
    pub inherit: bool,
    /// The network namespace to start the plugin in; if `None`, the caller's.
    pub run_in: Option<PathBuf>,
    /// The time limit after which the plugin is killed; if `None`, never.
    pub timeout: Option<Duration>,
}

impl Exec {
    /// A call of `binary`, whose folder becomes `CNI_PATH`.
    pub fn new(binary: impl Into<PathBuf>, command: impl Into<String>) -> Exec {
        let binary = binary.into();
        let path = binary.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
        Exec {
            binary,
            arguments: Vec::new(),
            command: command.into(),
            container_id: String::new(),
            netns: String::new(),
            ifname: String::new(),
            args: String::new(),
            path,
            stdin: Vec::new(),
            env: Vec::new(),
            absent: Vec::new(),
            inherit: true,
            run_in: None,
            timeout: None,
        }
    }

    /// Takes container ID, namespace, interface name and arguments from an attachment.
    #[must_use]
    pub fn attachment(mut self, attachment: &Attachment) -> Exec {
        self.container_id.clone_from(&attachment.container_id);
        self.netns.clone_from(&attachment.netns);
        self.ifname.clone_from(&attachment.ifname);
        self.args.clone_from(&attachment.args);
        self
    }

    /// Sets standard input; for a `serde_json::Value` pass `value.to_string()`.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Exec {
        self.stdin = bytes.into();
        self
    }

    /// Sets `CNI_PATH`.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Exec {
        self.path = path.into();
        self
    }

    /// Adds a variable, or replaces one.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Exec {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Removes a variable.
    #[must_use]
    pub fn without(mut self, name: impl Into<String>) -> Exec {
        self.absent.push(name.into());
        self
    }

    /// Starts the plugin in this network namespace instead of the caller's.
    #[must_use]
    pub fn run_in(mut self, netns: impl Into<PathBuf>) -> Exec {
        self.run_in = Some(netns.into());
        self
    }

    /// Sets the time limit after which the plugin is killed; [`Exec::run`] then returns [`TookTooLong`].
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Exec {
        self.timeout = Some(limit);
        self
    }

    /// Runs the plugin to its end. A plugin that fails is not an error here; an error means that it could not
    /// be started, was killed at the time limit, or left its output streams open.
    pub fn run(&self) -> anyhow::Result<Output> {
        match &self.run_in {
            None => self.run_here(),
            // A child inherits the namespaces of the thread that starts it; a thread costs less than nsenter.
            Some(netns) => thread::scope(|scope| {
                let inside = scope.spawn(|| {
                    let file = File::open(netns).with_context(|| format!("open {}", netns.display()))?;
                    setns(&file, CloneFlags::CLONE_NEWNET)
                        .with_context(|| format!("enter {}", netns.display()))?;
                    self.run_here()
                });
                inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    fn run_here(&self) -> anyhow::Result<Output> {
        let (start, mut child) = self.spawn()?;
        if let Some(mut pipe) = child.stdin.take() {
            if self.stdin.len() <= PIPE_CAPACITY {
                // Fails with EPIPE if the plugin has ended without reading its input, which it may do.
                let _ = pipe.write_all(&self.stdin);
            } else {
                let bytes = self.stdin.clone();
                thread::spawn(move || pipe.write_all(&bytes));
            }
        }
        let output = match self.timeout {
            None => child.wait_with_output().context("wait for the plugin")?,
            Some(limit) => wait_until(child, start + limit)
                .with_context(|| format!("{} with a limit of {limit:?}", self.binary.display()))?,
        };
        let wall = start.elapsed();
        Ok(Output { status: output.status, stdout: output.stdout, stderr: output.stderr, wall })
    }

    fn spawn(&self) -> anyhow::Result<(Instant, Child)> {
        let mut command = self.to_command();
        for _ in 0..BUSY_TRIES {
            let start = Instant::now();
            match command.spawn() {
                Ok(child) => return Ok((start, child)),
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::sleep(BUSY_PAUSE),
                Err(error) => return Err(error).with_context(|| format!("start {}", self.binary.display())),
            }
        }
        bail!("start {}: text file busy", self.binary.display())
    }

    /// The process, with pipes for its streams. The caller writes standard input and enters the namespace
    /// `run_in`.
    pub fn to_command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(&self.arguments);
        if !self.inherit {
            command.env_clear();
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
            .env("CNI_COMMAND", &self.command)
            .env("CNI_CONTAINERID", &self.container_id)
            .env("CNI_NETNS", &self.netns)
            .env("CNI_IFNAME", &self.ifname)
            .env("CNI_ARGS", &self.args)
            .env("CNI_PATH", &self.path);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        for name in &self.absent {
            command.env_remove(name);
        }
        command
    }
}

/// Finds a plugin's binary in a list of folders: the first regular file of that name, executable or not.
pub fn find_plugin<P: AsRef<Path>>(name: &str, path: &[P]) -> anyhow::Result<PathBuf> {
    if name.is_empty() || name.contains('/') {
        bail!("invalid plugin name {name:?}");
    }
    let candidates = path.iter().map(|dir| dir.as_ref().join(name));
    candidates.into_iter().find(|file| file.is_file()).with_context(|| {
        let dirs: Vec<_> = path.iter().map(|dir| dir.as_ref().display().to_string()).collect();
        format!("plugin {name} is not in {}", dirs.join(":"))
    })
}

/// How long the streams may stay open after the plugin's end. On a busy machine another thread's child needs time from fork to
/// exec, and has copies of the pipes until then.
const STREAMS_CLOSE: Duration = Duration::from_secs(10);

/// `wait_with_output` with a deadline. Only the plugin itself is killed. A child of the plugin may keep a
/// pipe open, so the threads that read the pipes are not joined.
fn wait_until(mut child: Child, deadline: Instant) -> anyhow::Result<std::process::Output> {
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let ended = ends_by(&child, deadline).context("wait for the plugin")?;
    if !ended {
        child.kill().context("kill the plugin")?;
    }
    let status = child.wait().context("wait for the plugin")?;
    if !ended {
        return Err(TookTooLong.into());
    }
    Ok(std::process::Output {
        status,
        stdout: stdout.recv_timeout(STREAMS_CLOSE).map_err(|_| HeldOpen)?,
        stderr: stderr.recv_timeout(STREAMS_CLOSE).map_err(|_| HeldOpen)?,
    })
}

/// Waits for the end of the process: its descriptor is readable then. False if it still runs at the deadline.
fn ends_by(child: &Child, deadline: Instant) -> anyhow::Result<bool> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // poll(2) counts whole milliseconds: with none it returns at once, again and again until the deadline.
        let limit = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], limit) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        sender.send(bytes)
    });
    receiver
}
