//! The output of one plugin call.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// Exit status, output and duration of one process.
#[derive(Debug, Clone)]
pub struct Output {
    /// The exit status or the signal.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The time from just before the start of the process to its end.
    pub wall: Duration,
}

impl Output {
    /// Whether the exit status was 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// Standard output as text; invalid UTF-8 is replaced.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text; invalid UTF-8 is replaced.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The JSON document on standard output; an error if there is not exactly one.
    pub fn document(&self) -> anyhow::Result<Value> {
        let mut documents = serde_json::Deserializer::from_slice(&self.stdout).into_iter::<Value>();
        let Some(document) = documents.next() else { bail!("nothing on standard output") };
        let document = document.context("standard output is not JSON")?;
        match documents.next() {
            None => Ok(document),
            Some(Ok(_)) => bail!("two JSON documents on standard output"),
            Some(Err(_)) => bail!("something follows the JSON document on standard output"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn printed(stdout: &str) -> Output {
        Output {
            status: ExitStatus::from_raw(0),
            stdout: stdout.into(),
            stderr: Vec::new(),
            wall: Duration::ZERO,
        }
    }

    #[test]
    fn document_accepts_exactly_one() {
        assert_eq!(printed("{\"a\":1}\n").document().unwrap(), serde_json::json!({"a": 1}));
        for (stdout, message) in [
            ("", "nothing"),
            ("hello", "not JSON"),
            ("{}{}", "two JSON documents"),
            ("{} trailing", "something follows"),
        ] {
            let error = printed(stdout).document().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
