//! A stub IPAM plugin, controlled by the test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory for CNI_PATH that contains the plugin `stub`, also as `dhcp`.
#[derive(Debug)]
pub struct StubIpam {
    dir: TempDir,
}

impl StubIpam {
    /// A stub that succeeds and prints nothing.
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> StubIpam {
        let dir = TempDir::new().unwrap();
        // A symlink, not a copy: exec fails with ETXTBSY while another thread's fork still holds the copy
        // open for writing.
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testing/stub-ipam");
        for name in ["stub", "dhcp"] {
            symlink(&script, dir.path().join(name)).unwrap();
        }
        StubIpam { dir }
    }

    /// A stub whose ADD assigns these addresses.
    pub fn assigning(version: &str, addresses: &[&str]) -> StubIpam {
        let stub = StubIpam::new();
        stub.assign(version, addresses);
        stub
    }

    /// Makes ADD assign these addresses, in the version's result layout.
    pub fn assign(&self, version: &str, addresses: &[&str]) {
        let family = |address: &str| if address.contains(':') { "6" } else { "4" };
        let mut result = json!({"cniVersion": version});
        for address in addresses {
            let family = family(address);
            match version {
                "0.1.0" | "0.2.0" => result[format!("ip{family}")] = json!({"ip": address}),
                "0.3.0" | "0.3.1" | "0.4.0" => {
                    push(&mut result["ips"], json!({"version": family, "address": address}));
                }
                _ => push(&mut result["ips"], json!({"address": address})),
            }
        }
        self.result(&result);
    }

    /// Makes ADD print `result`.
    pub fn result(&self, result: &Value) {
        self.answer("ADD", &print(result));
    }

    /// Sets the shell code that the stub runs for a verb. `$dir` is the stub's directory.
    pub fn answer(&self, verb: &str, script: &str) {
        fs::write(self.dir.path().join(format!("{verb}.answer")), script).unwrap();
    }

    /// Makes a verb fail with this error.
    pub fn fail(&self, verb: &str, code: u32, msg: &str) {
        let error = json!({"cniVersion": "1.0.0", "code": code, "msg": msg, "details": "by the test"});
        self.answer(verb, &format!("{}\nexit 1", print(&error)));
    }

    /// The verbs called since the last `calls()`.
    pub fn calls(&self) -> Vec<String> {
        self.lines("calls")
    }

    /// The lines that answers wrote to `$dir/notes` since the last `notes()`.
    pub fn notes(&self) -> Vec<String> {
        self.lines("notes")
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let path = self.dir.path().join(name);
        let lines = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        lines.lines().map(str::to_owned).collect()
    }

    /// Standard input of the last call with this verb, unchanged.
    pub fn stdin(&self, verb: &str) -> String {
        fs::read_to_string(self.dir.path().join(format!("{verb}.stdin"))).unwrap()
    }

    /// The variables of CNI and of tracing in the last call with this verb.
    pub fn env(&self, verb: &str) -> Vec<String> {
        let env = fs::read_to_string(self.dir.path().join(format!("{verb}.env"))).unwrap();
        let is_wanted = |line: &&str| ["CNI_", "TRACE", "BAGGAGE"].iter().any(|name| line.starts_with(name));
        let mut lines: Vec<String> = env.split('\0').filter(is_wanted).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// A shell command that prints a document, without starting a program.
fn print(document: &Value) -> String {
    format!("printf '%s\\n' '{}'", document.to_string().replace('\'', "'\\''"))
}

fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        other => *other = json!([item]),
    }
}
