//! Stubs: programs that stand in for the plugin that a plugin under test delegates to. They record their
//! calls and print the configured replies.
//!
//! A stub is a link to [a small program](super::stub_program): a script would start half a dozen programs for each call.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::{Value, json};

use super::stub_program::records_of;

/// A stub's reply to a verb. Without one the stub prints nothing and succeeds.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Prints this document and succeeds. `@N@` in it becomes the number of the call, which starts at 2.
    Json(Value),
    /// Prints this text and exits with this status.
    Text(&'static str, u8),
    /// Prints an error object and exits with this status.
    Error {
        /// `code` of the object.
        code: u64,
        /// `msg` of the object.
        msg: &'static str,
        /// Exit status.
        status: u8,
    },
    /// Kills itself with SIGKILL.
    Crash,
    /// Sleeps this many seconds, then prints this document and succeeds.
    Slow(u32, Value),
    /// Prints this text on standard error and this document on standard output, and succeeds.
    Talkative(&'static str, Value),
}

/// A stub program in the test context's folder.
#[derive(Debug)]
pub struct Stub {
    name: String,
    dir: PathBuf,
}

/// One recorded call of a stub.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The variables whose names begin with `CNI_`.
    pub env: BTreeMap<String, String>,
    /// Standard input.
    pub stdin: Vec<u8>,
    /// The network namespace that it ran in, as `net:[...]`.
    pub netns: String,
}

impl Recorded {
    /// `CNI_COMMAND`.
    pub fn verb(&self) -> &str {
        self.env.get("CNI_COMMAND").map_or("", String::as_str)
    }
}

impl Reply {
    /// The file of the reply, as [`stub_program`](super::stub_program) reads it: a line with the seconds to sleep, whether to die, the
    /// exit status and the length of what follows for standard error; the rest is for standard output.
    fn file(&self) -> String {
        match self {
            Reply::Json(value) => format!("0 0 0 0\n{value}\n"),
            Reply::Text(text, status) => format!("0 0 {status} 0\n{text}\n"),
            Reply::Error { code, msg, status } => {
                let object =
                    json!({"cniVersion": "1.0.0", "code": code, "msg": msg, "details": "from the stub"});
                format!("0 0 {status} 0\n{object}\n")
            }
            Reply::Crash => "0 1 0 0\n".to_owned(),
            Reply::Slow(seconds, value) => format!("{seconds} 0 0 0\n{value}\n"),
            Reply::Talkative(text, value) => format!("0 0 0 {}\n{text}\n{value}\n", text.len() + 1),
        }
    }
}

/// The path of the stubs' program, for symbolic links. It is in memory, as long as this process lives.
fn program() -> io::Result<PathBuf> {
    let mut file = File::from(memfd_create("stub", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(include_bytes!(concat!(env!("OUT_DIR"), "/stub")))?;
    let readable = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    drop(file);
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), readable.into_raw_fd()));
    // A child that another thread has forked keeps the file open for writing until its exec, and no program starts that is open for writing.
    loop {
        let null = Stdio::null;
        match Command::new(&path).stdin(null()).stdout(null()).stderr(null()).status() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(1))
            }
            started => return started.map(|_| path),
        }
    }
}

impl Stub {
    /// Makes a stub of this name in a folder; it answers VERSION with all published versions.
    pub fn new(folder: &Path, name: &str) -> anyhow::Result<Stub> {
        let program = folder.join(name);
        let dir = records_of(&program);
        fs::create_dir(&dir).context("create the folder for a stub's records")?;
        static PROGRAM: LazyLock<io::Result<PathBuf>> = LazyLock::new(self::program);
        let target = PROGRAM.as_ref().map_err(|error| anyhow!("prepare the program of stubs: {error}"))?;
        symlink(target, program).context("make a stub")?;
        let stub = Stub { name: name.to_owned(), dir };
        let version = json!({"cniVersion": "1.1.0",
            "supportedVersions": ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]});
        stub.on("VERSION", Reply::Json(version))?;
        Ok(stub)
    }

    /// The stub's name, for `type` in a configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the reply to a verb.
    pub fn on(&self, verb: &str, reply: Reply) -> anyhow::Result<()> {
        fs::write(self.dir.join(format!("reply.{verb}")), reply.file()).context("write a stub's reply")
    }

    /// The finished calls so far, in order.
    pub fn calls(&self) -> anyhow::Result<Vec<Recorded>> {
        let mut calls = Vec::new();
        for number in 2.. {
            let folder = self.dir.join(number.to_string());
            if !folder.join("done").exists() {
                break;
            }
            let env = fs::read_to_string(folder.join("env"))?;
            let variables = env.split_terminator('\0').filter_map(|variable| variable.split_once('='));
            calls.push(Recorded {
                env: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
                stdin: fs::read(folder.join("stdin"))?,
                netns: fs::read_to_string(folder.join("netns"))?,
            });
        }
        Ok(calls)
    }

    /// The verbs of the finished calls so far, in order.
    pub fn verbs(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.calls()?.iter().map(|call| call.verb().to_owned()).collect())
    }
}
