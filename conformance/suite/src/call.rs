//! One call of the plugin under test, and checks of its answer.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::outcome::{Mismatch, Stop, TestResult};
use super::own_device;
use cni_lab::{Node, Place as _};
use cni_runner::{Exec, HeldOpen, Output, TookTooLong};

/// The time limit of a call. The slowest reference plugin waits 5 seconds for an IPv6 address.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// The `PATH` of every call. A call inherits no other variable.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A call in preparation. It starts out valid; a test case changes parts of it.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    node: Option<&'a Node>,
    dir: &'a Path,
    /// The process, without its standard input.
    pub exec: Exec,
    /// The configuration; unused after [`Call::bytes`].
    pub config: Map<String, Value>,
    bytes: Option<Vec<u8>>,
    start_script: Option<String>,
}

/// The object that has this key: of a plugin that runs those in its key `plugins`, the first of them has `ipam`.
pub fn holder_of<'c>(key: &str, config: &'c mut Map<String, Value>) -> &'c mut Map<String, Value> {
    let has_plugins = config.get("plugins").and_then(|all| all.get(0)).is_some_and(Value::is_object);
    match config {
        config if key == "ipam" && has_plugins => match &mut config["plugins"][0] {
            Value::Object(first) => first,
            other => unreachable!("{other} was an object"),
        },
        config => config,
    }
}

impl<'a> Call<'a> {
    /// A call on the node, or without one on the machine. Its start script goes into `dir`.
    pub fn new(exec: Exec, config: Map<String, Value>, node: Option<&'a Node>, dir: &'a Path) -> Call<'a> {
        let mut exec = exec.env("PATH", SEARCH).timeout(TIMEOUT);
        exec.inherit = false;
        Call { node, dir, exec, config, bytes: None, start_script: None }
    }

    /// Sets a key of the configuration.
    #[must_use]
    pub fn key(mut self, key: &str, value: impl Into<Value>) -> Self {
        holder_of(key, &mut self.config).insert(key.to_owned(), value.into());
        self
    }

    /// Removes a key of the configuration.
    #[must_use]
    pub fn without_key(mut self, key: &str) -> Self {
        holder_of(key, &mut self.config).remove(key);
        self
    }

    /// Sets `prevResult`.
    #[must_use]
    pub fn previous(self, result: &Value) -> Self {
        self.key("prevResult", result.clone())
    }

    /// Raises the host ports, the VLAN ID and the number of the device in the configuration, so that several attachments
    /// do not collide.
    #[must_use]
    pub fn higher_ports(mut self, by: usize) -> Self {
        let mappings = self.config.get_mut("runtimeConfig").and_then(|config| config.get_mut("portMappings"));
        for mapping in mappings.and_then(Value::as_array_mut).into_iter().flatten() {
            let port = mapping.get("hostPort").and_then(Value::as_u64);
            if let (Some(port), Some(mapping)) = (port, mapping.as_object_mut()) {
                mapping.insert("hostPort".to_owned(), (port + by as u64).into());
            }
        }
        if let Some(id) = self.config.get("vlanId").and_then(Value::as_u64) {
            self.config.insert("vlanId".to_owned(), (id + by as u64).into());
        }
        let device = self.config.get("device").and_then(Value::as_str);
        if let Some(device) = device.and_then(|device| own_device::numbered(device, by)) {
            self.config.insert("device".to_owned(), device.into());
        }
        self
    }

    /// Sends these bytes instead of a configuration.
    #[must_use]
    pub fn bytes(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.bytes = Some(bytes.into());
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn var(mut self, name: &str, value: impl Into<String>) -> Self {
        self.exec = self.exec.env(name, value);
        self
    }

    /// Removes a variable.
    #[must_use]
    pub fn unset(mut self, name: &str) -> Self {
        self.exec = self.exec.without(name);
        self
    }

    /// Starts the plugin by a shell script, in which `@PLUGIN@` stands for the program: for streams and
    /// working directories that no runtime gives to a plugin.
    #[must_use]
    pub fn through_script(mut self, script: &str) -> Self {
        let plugin = quoted(&self.exec.binary.to_string_lossy());
        self.start_script = Some(script.replace("@PLUGIN@", &plugin));
        self
    }

    /// The bytes for standard input.
    pub fn input(&self) -> Vec<u8> {
        self.bytes.clone().unwrap_or_else(|| Value::Object(self.config.clone()).to_string().into_bytes())
    }

    /// Makes the call on the context's node. A plugin that does not end in time is a mismatch.
    pub fn run(&self) -> Result<Answer, Stop> {
        let mut exec = self.exec.clone().stdin(self.input());
        if let Some(start_script) = &self.start_script {
            exec.binary = self.dir.join("start");
            fs::write(&exec.binary, format!("#!/bin/sh\n{start_script}\n"))?;
            fs::set_permissions(&exec.binary, fs::Permissions::from_mode(0o755))?;
        }
        let run = match self.node {
            Some(node) => node.call(&exec),
            None => exec.run(),
        };
        match run {
            Ok(output) => Ok(Answer { output, script: self.script() }),
            Err(error) if error.is::<TookTooLong>() => Err(Stop::Mismatch(Box::new(Mismatch {
                expected: format!("an end within {} seconds", TIMEOUT.as_secs()),
                seen: "it was still running and was killed".to_owned(),
                call: Some(self.script()),
            }))),
            Err(error) if error.is::<HeldOpen>() => Err(Stop::Mismatch(Box::new(Mismatch {
                expected: "output streams that are closed when the plugin has ended".to_owned(),
                seen: HeldOpen.to_string(),
                call: Some(self.script()),
            }))),
            Err(error) => Err(Stop::Broken(error)),
        }
    }

    /// The answer of a process that a test case has run itself, from [`Exec::to_command`] and with its own
    /// standard input.
    pub fn answered(&self, output: std::process::Output) -> Answer {
        let std::process::Output { status, stdout, stderr } = output;
        Answer { output: Output { status, stdout, stderr, wall: Duration::ZERO }, script: self.script() }
    }

    /// The call as a shell command.
    pub fn script(&self) -> String {
        let command = self.exec.to_command();
        let variables = command.get_envs().filter_map(|(name, value)| {
            Some(format!("{}={}", name.to_string_lossy(), quoted(&value?.to_string_lossy())))
        });
        let program = match &self.start_script {
            Some(start_script) => format!("sh -c {}", quoted(start_script)),
            None => quoted(&self.exec.binary.to_string_lossy()),
        };
        format!(
            "printf %s {} | env -i {} {program}",
            quoted(&String::from_utf8_lossy(&self.input())),
            variables.collect::<Vec<_>>().join(" "),
        )
    }
}

/// A text as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The answer to a call. Its checks end the test case with a mismatch that quotes the call.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Exit status and output.
    pub output: Output,
    script: String,
}

impl Answer {
    /// Ends the test case with a mismatch that this call showed.
    pub fn mismatch<T>(&self, expected: impl Display, seen: impl Display) -> Result<T, Stop> {
        let (expected, seen) = (expected.to_string(), seen.to_string());
        Err(Stop::Mismatch(Box::new(Mismatch { expected, seen, call: Some(self.script.clone()) })))
    }

    /// Ends the test case with a mismatch unless the condition holds.
    pub fn ensure(&self, condition: bool, expected: impl Display, seen: impl Display) -> TestResult {
        if condition { Ok(()) } else { self.mismatch(expected, seen) }
    }

    /// Expects exit status 0, with any output.
    pub fn ok(&self) -> TestResult {
        self.ensure(self.output.success(), "exit status 0", self.shown())
    }

    /// Expects exit status 0 and nothing on standard output.
    pub fn silent(&self) -> TestResult {
        self.ok()?;
        self.ensure(
            self.output.stdout.iter().all(u8::is_ascii_whitespace),
            "nothing on standard output",
            self.shown(),
        )
    }

    /// Expects exit status 0 and one JSON object on standard output.
    pub fn result(&self) -> Result<Value, Stop> {
        self.ok()?;
        self.document()
    }

    /// Expects one JSON object on standard output, with any exit status.
    pub fn document(&self) -> Result<Value, Stop> {
        match self.output.document() {
            Ok(document) if document.is_object() => Ok(document),
            Ok(_) => self.mismatch("a JSON object on standard output", self.shown()),
            Err(error) => self.mismatch(
                "exactly one JSON document on standard output",
                format!("{error}: {}", self.shown()),
            ),
        }
    }

    /// Expects an exit status other than 0 and one error object on standard output.
    pub fn refused(&self) -> Result<Refusal, Stop> {
        if self.output.success() {
            return self.mismatch("an error: an exit status other than 0", self.shown());
        }
        let object = self.document()?;
        let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
        let (Some(code), Some(msg)) = (object.get("code").and_then(Value::as_u64), text("msg")) else {
            return self.mismatch("an error object with a number `code` and a string `msg`", self.shown());
        };
        if msg.is_empty() {
            return self.mismatch("an error with a message", self.shown());
        }
        let details = text("details").unwrap_or_default();
        Ok(Refusal { code, msg, details, version: text("cniVersion"), object, answer: self.clone() })
    }

    /// Exit status and output as text for a report.
    pub fn shown(&self) -> String {
        let mut shown = self.output.status.to_string();
        for (name, bytes) in [("stdout", &self.output.stdout), ("stderr", &self.output.stderr)] {
            let text = String::from_utf8_lossy(bytes);
            let text = text.trim();
            if text.is_empty() {
                continue;
            }
            let cut: String = text.chars().take(600).collect();
            let more = if cut.len() < text.len() { " ..." } else { "" };
            shown += &format!("; {name}: {cut}{more}");
        }
        shown
    }
}

/// An error object.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// `code`.
    pub code: u64,
    /// `msg`.
    pub msg: String,
    /// `details`, empty if absent.
    pub details: String,
    /// `cniVersion`.
    pub version: Option<String>,
    /// The whole object.
    pub object: Value,
    /// The answer that contains it.
    pub answer: Answer,
}

impl Refusal {
    /// Expects one of these codes.
    pub fn code_in(self, codes: &[u64]) -> Result<Refusal, Stop> {
        let codes_text: Vec<String> = codes.iter().map(u64::to_string).collect();
        self.answer.ensure(
            codes.contains(&self.code),
            format!("an error with code {}", codes_text.join(" or ")),
            format!("code {}: {}", self.code, self.text()),
        )?;
        Ok(self)
    }

    /// Expects this text in message or details.
    pub fn mentions(self, part: &str) -> Result<Refusal, Stop> {
        let expected = format!("an error that says {part:?}");
        self.answer.ensure(self.text().contains(part), expected, self.text())?;
        Ok(self)
    }

    /// Message and details as one text.
    pub fn text(&self) -> String {
        if self.details.is_empty() { self.msg.clone() } else { format!("{}; {}", self.msg, self.details) }
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        assert_eq!(quoted("/opt/cni/bin:/x"), "/opt/cni/bin:/x");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("{\"a\": 'b'}"), r#"'{"a": '\''b'\''}'"#);
    }
}
