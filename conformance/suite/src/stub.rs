//! Stubs: programs that stand in for the plugin that a plugin under test delegates to. They record their
//! calls and print the configured replies.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
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

/// The stub's script. Each call takes the first free number by mkdir, which the kernel lets only one call
/// win.
const SCRIPT: &str = r#"#!/bin/sh
dir='@DIR@'
record=$(/usr/bin/env)
PATH=/usr/sbin:/usr/bin:/sbin:/bin
n=2
while ! mkdir "$dir/$n" 2>/dev/null; do n=$((n + 1)); done
printf '%s\n' "$record" > "$dir/$n/env"
readlink /proc/self/ns/net > "$dir/$n/netns"
cat > "$dir/$n/stdin"
verb=${CNI_COMMAND:-none}
: > "$dir/$n/done"
[ -f "$dir/reply.$verb" ] || exit 0
. "$dir/reply.$verb"
"#;

impl Stub {
    /// Makes a stub of this name in a folder; it answers VERSION with all published versions.
    pub fn new(folder: &Path, name: &str) -> anyhow::Result<Stub> {
        let dir = folder.join(format!("{name}.calls"));
        fs::create_dir(&dir).context("create the folder for a stub's records")?;
        let program = folder.join(name);
        fs::write(&program, SCRIPT.replace("@DIR@", &dir.to_string_lossy()))
            .context("write a stub's script")?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).context("make a stub executable")?;
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
        let document = |value: &Value| format!("sed \"s/@N@/$n/g\" <<'END'\n{value}\nEND\n");
        let script = match &reply {
            Reply::Json(value) => document(value),
            Reply::Text(text, status) => format!("cat <<'END'\n{text}\nEND\nexit {status}\n"),
            Reply::Error { code, msg, status } => {
                let object =
                    json!({"cniVersion": "1.0.0", "code": code, "msg": msg, "details": "from the stub"});
                format!("cat <<'END'\n{object}\nEND\nexit {status}\n")
            }
            Reply::Crash => "kill -KILL $$\n".to_owned(),
            Reply::Slow(seconds, value) => format!("sleep {seconds}\n{}", document(value)),
            Reply::Talkative(text, value) => format!("echo '{text}' >&2\n{}", document(value)),
        };
        fs::write(self.dir.join(format!("reply.{verb}")), script).context("write a stub's reply")
    }

    /// The finished calls so far, in order.
    pub fn calls(&self) -> anyhow::Result<Vec<Recorded>> {
        let mut calls = Vec::new();
        for number in 2.. {
            let folder = self.dir.join(number.to_string());
            if !folder.join("done").exists() {
                break;
            }
            let env = String::from_utf8_lossy(&fs::read(folder.join("env"))?).into_owned();
            let variables = env.lines().filter_map(|line| line.split_once('='));
            let env = variables.filter(|(name, _)| name.starts_with("CNI_"));
            calls.push(Recorded {
                env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
                stdin: fs::read(folder.join("stdin"))?,
                netns: fs::read_to_string(folder.join("netns"))?.trim().to_owned(),
            });
        }
        Ok(calls)
    }

    /// The verbs of the finished calls so far, in order.
    pub fn verbs(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.calls()?.iter().map(|call| call.verb().to_owned()).collect())
    }
}
