//! What nodes, pods and outside clients have in common: code and commands can run in their namespaces.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::background::{self, Background};
use super::namespaces::in_thread;
use cni_runner::{Exec, Output as CallOutput};

/// A network namespace with a node's file system, in which code and commands can run.
pub trait Place: Sync {
    /// Moves the calling thread into the namespaces; there is no way back. Callers make a thread for it, as
    /// [`Place::run`] does.
    fn enter(&self) -> anyhow::Result<()>;

    /// Folders that a snapshot includes.
    fn state_dirs(&self) -> &[&'static str] {
        &[]
    }

    /// Runs a closure there in a new thread; processes that it starts are there too. A panic in it is passed
    /// on.
    ///
    /// `/proc/self/net` shows the network namespace of the main thread; read `/proc/thread-self/net` instead.
    /// `/proc/sys/net` shows the calling thread's.
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T>
    where
        Self: Sized,
    {
        in_thread(|| {
            self.enter()?;
            Ok(work())
        })
    }

    /// Runs a command to its end and returns its output with any exit status. Standard input is empty.
    fn exec(&self, command: &mut Command) -> anyhow::Result<Output>
    where
        Self: Sized,
    {
        let shown = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null());
        self.run(|| command.output())?.with_context(|| format!("run {shown}"))
    }

    /// Runs a shell command and returns its standard output. An exit status other than 0 is an error that
    /// quotes standard output and standard error.
    fn sh(&self, script: &str) -> anyhow::Result<String>
    where
        Self: Sized,
    {
        let output = self.exec(Command::new("sh").args(["-c", script]))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let printed = String::from_utf8_lossy(&output.stdout);
            bail!("{script}: {}\n{printed}{said}", output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("{script}: output is not UTF-8"))
    }

    /// Runs a command without a shell and returns its standard output. An exit status other than 0 is an
    /// error that quotes standard error.
    fn tool<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> anyhow::Result<String>
    where
        Self: Sized,
    {
        let output = self.exec(Command::new(program).args(args))?;
        if !output.status.success() {
            bail!("{program}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).with_context(|| format!("{program}: output is not UTF-8"))
    }

    /// Runs commands of `ip`, one a line, in one process, and returns its standard output, an object a line. It ends with the first
    /// command that fails; that is an error that quotes standard error.
    fn ip(&self, commands: &str) -> anyhow::Result<String>
    where
        Self: Sized,
    {
        let (reader, mut writer) = io::pipe()?;
        writer.write_all(commands.as_bytes())?;
        drop(writer);
        let output = self
            .run(|| Command::new("ip").args(["-o", "-batch", "-"]).stdin(reader).output())?
            .context("run ip")?;
        if !output.status.success() {
            bail!("{commands}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).with_context(|| format!("{commands}: output is not UTF-8"))
    }

    /// Starts a command that runs until the handle is dropped or this process ends, even by a signal.
    fn spawn(&self, command: Command) -> anyhow::Result<Background>
    where
        Self: Sized,
    {
        background::spawn(self, command)
    }

    /// Makes one plugin call there.
    fn call(&self, exec: &Exec) -> anyhow::Result<CallOutput>
    where
        Self: Sized,
    {
        self.run(|| exec.run())?
    }

    /// Reads a file there.
    fn read_file(&self, path: impl AsRef<Path> + Send) -> anyhow::Result<String>
    where
        Self: Sized,
    {
        let path = path.as_ref().to_owned();
        self.run(|| fs::read_to_string(&path))?.with_context(|| format!("read {}", path.display()))
    }

    /// Writes a file there and makes missing parent folders.
    fn write_file(&self, path: impl AsRef<Path>, content: &str) -> anyhow::Result<()>
    where
        Self: Sized,
    {
        let path = path.as_ref().to_owned();
        let write = || {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&path, content)
        };
        self.run(write)?.with_context(|| format!("write {}", path.display()))
    }

    /// The names in a folder there, sorted; an empty list if the folder does not exist.
    fn list_dir(&self, path: impl AsRef<Path>) -> anyhow::Result<Vec<String>>
    where
        Self: Sized,
    {
        let path: PathBuf = path.as_ref().to_owned();
        let list = || match fs::read_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(entries) => {
                entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
            }
        };
        let mut names: Vec<String> = self.run(list)?.with_context(|| format!("list {}", path.display()))?;
        names.sort();
        Ok(names)
    }
}

/// The namespaces of the test itself, for plugins that need no others, such as host-local.
#[derive(Debug, Clone, Copy)]
pub struct Machine;

impl Place for Machine {
    fn enter(&self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// The usual limit for [`eventually`], where the duration does not matter: long, because test machines are
/// busy.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Tries a condition until it is true or the time is over: every 5 milliseconds at first, and more seldom the longer it takes, because
/// most conditions start a program. Some kernel work is asynchronous: the kernel removes a namespace, and with it the other end of
/// a veth pair, some time after its last user has ended.
pub fn eventually(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        let waited = began.elapsed();
        if waited >= limit {
            return false;
        }
        thread::sleep((waited / 10).clamp(Duration::from_millis(5), Duration::from_millis(100)));
    }
    true
}
