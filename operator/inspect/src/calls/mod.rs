//! The log of calls that [`cni_common::call_log`] writes: `ferrule log` and `ferrule metrics`.
//!
//! [`read`] reads and selects calls, [`table`] prints them. [`unread`] reads those that are new; [`metrics`] counts them for
//! Prometheus, [`otlp`] makes spans of them for OpenTelemetry.

pub mod metrics;
pub mod otlp;
pub mod read;
pub mod table;
pub mod unread;

use serde_json::Value;

/// A call: its line in the log.
#[derive(Clone, Debug)]
pub struct Call {
    /// The line.
    pub json: Value,
}

impl Call {
    /// Reads a line. In front of the call may be what a process wrote that found the disk full in the middle of its
    /// line, or what syslog adds.
    pub fn parse(line: &str) -> Option<Self> {
        let is_call = |json: &Value| json["plugin"].is_string() && json["us"].is_u64();
        let read = |text| serde_json::from_str(text).ok().filter(is_call).map(|json| Call { json });
        read(line).or_else(|| read(&line[line.rfind("{\"time\":")?..]))
    }

    /// The text of a field, or an empty one.
    pub fn text(&self, key: &str) -> &str {
        self.json[key].as_str().unwrap_or_default()
    }

    /// The ID of the trace that the runtime has named, or an empty text.
    pub fn trace(&self) -> &str {
        self.json["trace"]["id"].as_str().unwrap_or_default()
    }

    /// How long the call took, in microseconds.
    pub fn micros(&self) -> u64 {
        self.json["us"].as_u64().unwrap_or(0)
    }

    /// Code and message of a failed call.
    pub fn error(&self) -> Option<(u64, &str)> {
        let error = self.json.get("error")?;
        Some((error["code"].as_u64().unwrap_or(0), error["msg"].as_str().unwrap_or_default()))
    }
}
