//! One call of one plugin: the lowest level, which tests use directly to say anything, even nonsense.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sched::{CloneFlags, setns};

use super::{Attachment, Output};

/// A pipe takes this much without a reader, so a shorter standard input needs no thread that writes it.
const PIPE_CAPACITY: usize = 64 * 1024;
/// libcni's patience with a binary that is just being replaced.
const BUSY_TRIES: usize = 5;
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// The error of a call whose time limit was reached; the plugin has been killed.
#[derive(Debug, Clone, Copy)]
pub struct TookTooLong;

impl fmt::Display for TookTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("killed: it took too long")
    }
}

impl std::error::Error for TookTooLong {}

/// The error of a call that ended, while something that it started keeps one of its output streams open.
#[derive(Debug, Clone, Copy)]
pub struct HeldOpen;

impl fmt::Display for HeldOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it ended, but its output streams stay open")
    }
}

impl std::error::Error for HeldOpen {}

/// A plugin call in preparation. All six CNI variables are always set, empty when unused, as libcni does it, on top
/// of the inherited environment; [`Exec::without`] takes one away.
#[derive(Debug, Clone)]
pub struct Exec {
    /// The plugin; also its `argv[0]`.
    pub binary: PathBuf,
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
    /// More variables; they win over the ones above.
    pub env: Vec<(String, String)>,
    /// Variables that are not to be there at all.
    pub absent: Vec<String>,
    /// Whether the plugin gets this process's environment besides, as from a runtime.
    pub inherit: bool,
    /// A network namespace to start the plugin in; the caller's if there is none.
    pub run_in: Option<PathBuf>,
    /// When to kill the plugin; never if there is none.
    pub timeout: Option<Duration>,
}

impl Exec {
    /// A call of `binary`, whose folder becomes `CNI_PATH`.
    pub fn new(binary: impl Into<PathBuf>, command: impl Into<String>) -> Exec {
        let binary = binary.into();
        let path = binary.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
        Exec {
            binary,
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

    /// Sets standard input; a `serde_json::Value` goes in as `value.to_string()`.
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

    /// Takes a variable away.
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

    /// Kills the plugin after this time, which makes [`Exec::run`] fail.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Exec {
        self.timeout = Some(limit);
        self
    }

    /// Runs the plugin to its end. An error means that there was no proper run; a plugin that fails is not an error.
    pub fn run(&self) -> anyhow::Result<Output> {
        match &self.run_in {
            None => self.run_here(),
            // A child inherits the namespaces of the thread that starts it, and a thread is cheaper than nsenter.
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
                // A plugin that does not care for its input may be gone already; that is its own business.
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

    /// The process, with pipes for its streams and everything but standard input's content and the namespace.
    pub fn to_command(&self) -> Command {
        let mut command = Command::new(&self.binary);
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

/// Finds a plugin's binary in a list of folders: the first regular file, whether executable or not.
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

/// Waits as `wait_with_output` does, but not for ever. Only the plugin itself is killed; a child of it that keeps a
/// pipe open must not hold us up, hence the threads that nobody joins.
fn wait_until(mut child: Child, deadline: Instant) -> anyhow::Result<std::process::Output> {
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let status = loop {
        if let Some(status) = child.try_wait().context("wait for the plugin")? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill().context("kill the plugin")?;
            child.wait().context("wait for the killed plugin")?;
            return Err(TookTooLong.into());
        }
        thread::sleep(Duration::from_micros(200));
    };
    let rest = Duration::from_secs(1);
    Ok(std::process::Output {
        status,
        stdout: stdout.recv_timeout(rest).map_err(|_| HeldOpen)?,
        stderr: stderr.recv_timeout(rest).map_err(|_| HeldOpen)?,
    })
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
