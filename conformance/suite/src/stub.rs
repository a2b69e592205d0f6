//! Stubs: programs that stand in for the plugin that a plugin under test delegates to. They record their
//! calls and print the configured replies.
//!
//! A stub is a link to the judging program itself: a script would start half a dozen programs for each call.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::Context as _;
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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

/// The file of a reply to a verb.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Answer {
    /// Seconds to sleep first.
    sleep: u64,
    /// Whether to die by SIGKILL.
    crash: bool,
    /// For standard error.
    errors: String,
    /// For standard output.
    output: String,
    /// The exit status.
    status: u8,
}

impl From<&Reply> for Answer {
    fn from(reply: &Reply) -> Answer {
        let document = |value: &Value| Answer { output: format!("{value}\n"), ..Answer::default() };
        match reply {
            Reply::Json(value) => document(value),
            Reply::Text(text, status) => {
                Answer { output: format!("{text}\n"), status: *status, ..Answer::default() }
            }
            Reply::Error { code, msg, status } => {
                let object =
                    json!({"cniVersion": "1.0.0", "code": code, "msg": msg, "details": "from the stub"});
                Answer { status: *status, ..document(&object) }
            }
            Reply::Crash => Answer { crash: true, ..Answer::default() },
            Reply::Slow(seconds, value) => Answer { sleep: (*seconds).into(), ..document(value) },
            Reply::Talkative(text, value) => Answer { errors: format!("{text}\n"), ..document(value) },
        }
    }
}

/// Acts as a stub if this program was started under the name of one. The main function of a program that makes stubs
/// calls this first.
pub fn act_as_stub() -> Option<ExitCode> {
    let dir = records_of(Path::new(&env::args_os().next()?));
    dir.is_dir().then(|| match record_and_reply(&dir) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("the stub fails: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Each call takes the first free number by mkdir, which the kernel lets only one call win.
fn record_and_reply(dir: &Path) -> io::Result<u8> {
    let mut number = 2;
    let call = loop {
        let call = dir.join(number.to_string());
        match fs::create_dir(&call) {
            Ok(()) => break call,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    };
    let variable = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    };
    let env: BTreeMap<String, String> =
        env::vars_os().filter_map(variable).filter(|(name, _)| name.starts_with("CNI_")).collect();
    fs::write(call.join("env"), serde_json::to_vec(&env)?)?;
    fs::write(call.join("netns"), fs::read_link("/proc/self/ns/net")?.as_os_str().as_encoded_bytes())?;
    let mut stdin = Vec::new();
    io::stdin().read_to_end(&mut stdin)?;
    fs::write(call.join("stdin"), stdin)?;
    fs::write(call.join("done"), "")?;
    let verb = env.get("CNI_COMMAND").map_or("none", String::as_str);
    let Ok(answer) = fs::read(dir.join(format!("reply.{verb}"))) else { return Ok(0) };
    let answer: Answer = serde_json::from_slice(&answer)?;
    thread::sleep(Duration::from_secs(answer.sleep));
    if answer.crash {
        raise(Signal::SIGKILL)?;
    }
    io::stderr().write_all(answer.errors.as_bytes())?;
    io::stdout().write_all(answer.output.replace("@N@", &number.to_string()).as_bytes())?;
    Ok(answer.status)
}

/// The folder of records of the stub with this path.
fn records_of(program: &Path) -> PathBuf {
    let mut name = program.as_os_str().to_owned();
    name.push(".calls");
    name.into()
}

impl Stub {
    /// Makes a stub of this name in a folder; it answers VERSION with all published versions.
    pub fn new(folder: &Path, name: &str) -> anyhow::Result<Stub> {
        let program = folder.join(name);
        let dir = records_of(&program);
        fs::create_dir(&dir).context("create the folder for a stub's records")?;
        // Not by the program's path: cargo may replace the file meanwhile.
        symlink(format!("/proc/{}/exe", std::process::id()), program).context("make a stub")?;
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
        let answer = serde_json::to_vec(&Answer::from(&reply))?;
        fs::write(self.dir.join(format!("reply.{verb}")), answer).context("write a stub's reply")
    }

    /// The finished calls so far, in order.
    pub fn calls(&self) -> anyhow::Result<Vec<Recorded>> {
        let mut calls = Vec::new();
        for number in 2.. {
            let folder = self.dir.join(number.to_string());
            if !folder.join("done").exists() {
                break;
            }
            calls.push(Recorded {
                env: serde_json::from_slice(&fs::read(folder.join("env"))?)?,
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
