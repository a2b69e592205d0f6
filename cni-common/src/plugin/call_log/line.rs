//! The line of a call. Pure.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::trace::Trace;
use crate::plugin::env::Environment;
use crate::spec::CniError;

/// A line that would be longer, in bytes, is written without its result.
const LONGEST: usize = 16 * 1024;
/// A line has at most this many netlink errors.
const MOST_ERRORS: usize = 20;
/// Each text is cut after this many characters.
const LONGEST_TEXT: usize = 1024;

/// The facts of a call that are found while it runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) plugin: &'static str,
    /// The verb of a member; empty if it is that of the call.
    pub(super) verb: &'static str,
    /// When it began, since the call began.
    pub(super) began: Duration,
    pub(super) network: String,
    pub(super) steps: Vec<Step>,
    pub(super) netlink_errors: Vec<String>,
    pub(super) trace: Option<Trace>,
}

/// A step, or several of the same name. `us` is their time in microseconds, and `at` when the first one began, since the
/// call began.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    step: String,
    at: u64,
    us: u64,
    count: u32,
}

impl Record {
    /// Steps of one name are added up. Of the path of a program only its name counts.
    pub(super) fn add_step(&mut self, name: &str, at: Duration, took: Duration) {
        let us = micros(took);
        let name = name.rsplit('/').next().unwrap_or_default();
        match self.steps.iter_mut().find(|step| step.step == name) {
            Some(step) => (step.us, step.count) = (step.us.saturating_add(us), step.count + 1),
            None => self.steps.push(Step { step: name.to_owned(), at: micros(at), us, count: 1 }),
        }
    }

    pub(super) fn add_netlink_error(&mut self, text: String) {
        if self.netlink_errors.len() < MOST_ERRORS {
            self.netlink_errors.push(cut(&text).to_owned());
        }
    }
}

/// The fields of a line. README.md describes them.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    plugin: &'a str,
    verb: &'a str,
    pid: u32,
    network: &'a str,
    container: &'a str,
    ifname: &'a str,
    pod: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a Trace>,
    us: u64,
    steps: &'a [Step],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    netlink_errors: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failed<'a>>,
}

#[derive(Serialize)]
struct Failed<'a> {
    code: u32,
    msg: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
}

/// The line, with its line break.
///
/// `ended` is the time since the epoch when the call ended.
pub(super) fn line(
    record: &Record,
    env: &Environment,
    pid: u32,
    ended: Duration,
    took: Duration,
    outcome: Result<Option<&Value>, &CniError>,
) -> String {
    let pod = pod(&env.args);
    let mut line = Line {
        time: rfc3339(ended),
        plugin: record.plugin,
        verb: if record.verb.is_empty() { cut(&env.command) } else { record.verb },
        pid,
        network: cut(&record.network),
        container: cut(&env.container_id),
        ifname: cut(&env.ifname),
        pod: cut(&pod),
        trace: record.trace.as_ref(),
        us: micros(took),
        steps: &record.steps,
        netlink_errors: &record.netlink_errors,
        result: outcome.ok().flatten(),
        error: outcome.err().map(|error| Failed {
            code: error.code.number(),
            msg: cut(&error.msg),
            details: cut(&error.details),
        }),
    };
    let mut text = serde_json::to_string(&line).unwrap_or_default();
    if text.len() >= LONGEST {
        let long = Value::from("too long");
        line.result = line.result.and(Some(&long));
        text = serde_json::to_string(&line).unwrap_or_default();
    }
    text.push('\n');
    text
}

/// `NAMESPACE/NAME` of the Kubernetes pod in CNI_ARGS, or an empty text. Unlike
/// [`CniArgs::parse`](crate::spec::args::CniArgs::parse), it never fails.
fn pod(args: &str) -> String {
    let value = |key| args.split(';').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    match (value("K8S_POD_NAMESPACE"), value("K8S_POD_NAME")) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (_, name) => name.unwrap_or_default().to_owned(),
    }
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(LONGEST_TEXT).map_or(text, |(end, _)| &text[..end])
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// A time since the epoch as RFC 3339 text in UTC, with microseconds.
pub fn rfc3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // https://howardhinnant.github.io/date_algorithms.html#civil_from_days: years begin in March, eras have 400 of them.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = since_epoch.subsec_micros();
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn environment() -> Environment {
        Environment {
            command: "ADD".to_owned(),
            container_id: "c1".to_owned(),
            ifname: "eth0".to_owned(),
            args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1".to_owned(),
            ..Environment::default()
        }
    }

    fn of(record: &Record, outcome: Result<Option<&Value>, &CniError>) -> Value {
        let text =
            line(record, &environment(), 7, Duration::from_micros(1), Duration::from_millis(2), outcome);
        assert_eq!(text.matches('\n').count(), 1);
        assert!(text.ends_with('\n') && text.len() <= LONGEST);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_success_and_an_error() {
        let mut record = Record { plugin: "bridge", network: "net\n1".to_owned(), ..Record::default() };
        record.add_step("/opt/cni/bin/host-local", Duration::from_micros(1), Duration::from_micros(4));
        record.add_step("host-local", Duration::from_micros(7), Duration::from_micros(5));
        record.add_netlink_error("route: ENODEV".to_owned());
        let mut expected = json!({
            "time": "1970-01-01T00:00:00.000001Z", "plugin": "bridge", "verb": "ADD", "pid": 7,
            "network": "net\n1", "container": "c1", "ifname": "eth0", "pod": "shop/web-1", "us": 2000,
            "steps": [{ "step": "host-local", "at": 1, "us": 9, "count": 2 }], "netlink_errors": ["route: ENODEV"],
            "result": { "ips": [] },
        });
        assert_eq!(of(&record, Ok(Some(&json!({ "ips": [] })))), expected);
        expected.as_object_mut().unwrap().remove("result");
        expected["error"] = json!({ "code": 7, "msg": "bad", "details": "why" });
        assert_eq!(of(&record, Err(&CniError::invalid_config("bad").with_details("why"))), expected);
    }

    #[test]
    fn a_line_has_a_limit() {
        let long = Value::from("x".repeat(LONGEST));
        assert_eq!(of(&Record::default(), Ok(Some(&long)))["result"], "too long");
        let error = CniError::internal("é".repeat(LONGEST));
        let logged = of(&Record::default(), Err(&error));
        assert_eq!(logged["error"], json!({ "code": 999, "msg": "é".repeat(LONGEST_TEXT) }));
    }

    #[test]
    fn times() {
        for (seconds, text) in [
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn pods() {
        assert_eq!(pod("K8S_POD_NAME=web"), "web");
        assert_eq!(pod("junk;;K8S_POD_NAMESPACE=a"), "");
    }
}
