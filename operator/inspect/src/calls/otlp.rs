//! `ferrule log --otlp FILE`: spans of the calls, in the JSON of OpenTelemetry's protocol.
//!
//! A plugin lives for about a millisecond. An exporter in it would take longer than the call, and fail with the network that
//! the call is about to make. So the plugin only writes its line, and this command makes the spans of it later.
//!
//! # References
//! <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>,
//! <https://opentelemetry.io/docs/specs/semconv/cli/cli-spans/>

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use cni_common::call_log::old;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::file;
use ferrule_kit::hash::sha512_hex;
use serde_json::{Value, json};

use super::Call;
use super::unread::{Position, unread};
use crate::sight::host_name;

/// From this size in bytes on, the file is renamed.
const LIMIT: u64 = 10 << 20;
/// The end of the file that has its last line.
const TAIL: u64 = 256 << 10;
/// The permissions for other users.
const OTHERS: u32 = 0o007;
/// The attribute of the last span of a run that says how far the log was read.
const POSITION: &str = "ferrule.log.position";
/// `SPAN_KIND_INTERNAL` and `STATUS_CODE_ERROR`.
const INTERNAL: u8 = 1;
const ERROR: u8 = 2;

/// Appends the spans of the calls that the file does not have yet, a line for each call. It is also the state: its last span has
/// the position in the log. At a size of 10 MiB it first becomes `FILE.1`.
///
/// # Errors
/// The log cannot be read, or the file cannot be written.
pub fn export(log: &Path, file: &Path) -> Result<(), CniError> {
    let former = position(file).or_else(|| position(&old(file)));
    let mut position = former.unwrap_or_default();
    let calls = unread(log, &mut position)?;
    let host = host_name();
    let last = calls.len().saturating_sub(1);
    let position = position.to_string();
    let lines =
        calls.iter().enumerate().map(|(at, call)| line(call, &host, (at == last).then_some(&position)));
    append(file, &lines.collect::<String>()).context(|| format!("cannot write {}", file.display()))
}

/// How far the log was read when the file was written.
fn position(file: &Path) -> Option<Position> {
    let mut file = file::open(file).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    String::from_utf8_lossy(&bytes).lines().rev().find_map(|line| {
        let json: Value = serde_json::from_str(line).ok()?;
        let attributes = json["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"].as_array()?;
        let found = attributes.iter().find(|attribute| attribute["key"] == POSITION)?;
        Position::parse(found["value"]["stringValue"].as_str()?)
    })
}

fn append(path: &Path, lines: &str) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    if fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() >= LIMIT) {
        fs::rename(path, old(path))?;
    }
    // As the log: others must not read it, nor own it. A FIFO would wait for its reader.
    let open = || {
        File::options().read(true).append(true).create(true).mode(0o640).custom_flags(file::SAFELY).open(path)
    };
    let mut file = open()?;
    let (meta, mut last) = (file.metadata()?, [b'\n']);
    if !meta.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    file::check_owner(&file, path)?;
    if meta.mode() & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(meta.mode() & 0o7777 & !OTHERS))?;
    }
    if meta.len() > 0 {
        file.read_exact_at(&mut last, meta.len() - 1)?;
    }
    // Behind a line that a full disk has cut off.
    let begin = if last == [b'\n'] { "" } else { "\n" };
    file.write_all(format!("{begin}{lines}").as_bytes())
}

/// The spans of a call and its steps.
fn line(call: &Call, host: &str, position: Option<&String>) -> String {
    let trace = &call.json["trace"];
    let named = |key: &str| trace[key].as_str().map(str::to_owned);
    // A call without a trace is one of its own.
    let id = named("id").unwrap_or_else(|| format!("{:016x}{:016x}", hash(call, 0), hash(call, 1)));
    let span = named("span").unwrap_or_else(|| format!("{:016x}", hash(call, 2)));
    let end = micros(call.text("time"));
    let start = end.saturating_sub(call.micros());
    let flags = named("flags").and_then(|flags| u8::from_str_radix(&flags, 16).ok());

    let mut main = json!({
        "traceId": id, "spanId": span, "name": format!("{} {}", call.text("verb"), call.text("plugin")), "kind": INTERNAL,
        "startTimeUnixNano": nanos(start), "endTimeUnixNano": nanos(end), "attributes": attributes(call, position),
    });
    if let Some(parent) = named("parent") {
        main["parentSpanId"] = parent.into();
        main["traceState"] = named("state").unwrap_or_default().into();
        main["flags"] = flags.into();
    }
    if let Some((_, msg)) = call.error() {
        main["status"] = json!({"code": ERROR, "message": msg});
    }
    let mut spans = vec![main];
    for (step, at) in call.json["steps"].as_array().into_iter().flatten().zip(3..) {
        let number = |key: &str| step[key].as_u64().unwrap_or(0);
        let begin = start.saturating_add(number("at"));
        spans.push(json!({
            "traceId": id, "spanId": format!("{:016x}", hash(call, at)), "parentSpanId": span, "name": step["step"],
            "kind": INTERNAL, "flags": flags, "startTimeUnixNano": nanos(begin),
            "endTimeUnixNano": nanos(begin.saturating_add(number("us"))),
            "attributes": [{"key": "ferrule.step.count", "value": {"intValue": number("count").to_string()}}],
        }));
    }
    let resource = json!({"attributes": [text("service.name", "ferrule"), text("host.name", host)]});
    let scope = json!({"name": "ferrule", "version": env!("CARGO_PKG_VERSION")});
    let line =
        json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]});
    format!("{line}\n")
}

/// What OpenTelemetry's conventions have a name for has that name.
fn attributes(call: &Call, position: Option<&String>) -> Vec<Value> {
    let (namespace, pod) = call.text("pod").rsplit_once('/').unwrap_or(("", call.text("pod")));
    let addresses = super::table::addresses(call);
    let code = call.error().map(|(code, _)| code.to_string()).unwrap_or_default();
    let texts = [
        ("process.executable.name", call.text("plugin")),
        ("cni.command", call.text("verb")),
        ("cni.network", call.text("network")),
        ("container.id", call.text("container")),
        ("network.interface.name", call.text("ifname")),
        ("k8s.namespace.name", namespace),
        ("k8s.pod.name", pod),
        ("cni.addresses", &addresses),
        ("cni.baggage", call.json["trace"]["baggage"].as_str().unwrap_or_default()),
        ("error.type", &code),
        ("cni.error.details", call.json["error"]["details"].as_str().unwrap_or_default()),
        (POSITION, position.map_or("", String::as_str)),
    ];
    let numbers = [
        ("process.pid", call.json["pid"].as_u64().unwrap_or(0)),
        ("process.exit.code", u64::from(!code.is_empty())),
    ];
    let texts = texts.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| text(key, value));
    // Integers of 64 bits are texts in this JSON.
    let numbers = numbers.map(|(key, value)| json!({"key": key, "value": {"intValue": value.to_string()}}));
    texts.chain(numbers).collect()
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn nanos(micros: u64) -> String {
    micros.saturating_mul(1000).to_string()
}

/// The same for each export of a call by any version, so a receiver can tell that it has a span already. Never 0.
fn hash(call: &Call, part: usize) -> u64 {
    let pid = call.json["pid"].as_u64().unwrap_or_default();
    let [time, container, plugin] = ["time", "container", "plugin"].map(|key| call.text(key));
    let digits = sha512_hex(&format!("{part}\0{pid}\0{time}\0{container}\0{plugin}"), 16);
    u64::from_str_radix(&digits, 16).unwrap_or_default().max(1)
}

/// The microseconds since 1970 of a time in the log; 0 for another text.
fn micros(time: &str) -> u64 {
    let number = |from: usize, to: usize| time.get(from..to).and_then(|digits| digits.parse::<u64>().ok());
    let read = || {
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        // Years that begin in March: https://howardhinnant.github.io/date_algorithms.html#days_from_civil
        let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
        let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
        let seconds = days.checked_sub(719_469)? * 86_400 + number(11, 13)? * 3600 + number(14, 16)? * 60;
        Some((seconds + number(17, 19)?) * 1_000_000 + number(20, 26)?)
    };
    read().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::read::parse;
    use std::process::Command;

    use super::*;

    const TRACED: &str = r#"{"time":"2026-11-22T09:55:00.123456Z","plugin":"bridge","verb":"ADD","pid":7,"network":"net","container":"c1","ifname":"eth0","pod":"shop/web-1","trace":{"id":"4bf92f3577b34da6a3ce929d0e0e4736","parent":"00f067aa0ba902b7","span":"53995c3f42cd8ad8","flags":"01","state":"a=b","baggage":"k=v"},"us":2000,"steps":[{"step":"host-local","at":100,"us":1239,"count":2}],"result":{"ips":[{"address":"10.0.0.2/24"}]}}"#;
    const FAILED: &str = r#"{"time":"2026-11-22T09:55:01.000000Z","plugin":"tap","verb":"DEL","pid":8,"network":"net","container":"c1","ifname":"eth0","pod":"","us":9,"steps":[],"error":{"code":7,"msg":"bad"}}"#;

    fn spans(line: &str) -> Value {
        serde_json::from_str::<Value>(line).unwrap()["resourceSpans"][0]["scopeSpans"][0]["spans"].take()
    }

    fn attribute<'s>(span: &'s Value, key: &str) -> Option<&'s str> {
        let found = span["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == key)?;
        found["value"].as_object()?.values().next()?.as_str()
    }

    #[test]
    fn a_call_is_a_span_and_its_steps_are_children() {
        let call = &parse(TRACED.as_bytes())[0];
        let spans = spans(&line(call, "node", None));
        let (main, step) = (&spans[0], &spans[1]);
        assert_eq!(
            json!([
                main["traceId"],
                main["spanId"],
                main["parentSpanId"],
                main["traceState"],
                main["flags"],
                main["name"]
            ]),
            json!([
                "4bf92f3577b34da6a3ce929d0e0e4736",
                "53995c3f42cd8ad8",
                "00f067aa0ba902b7",
                "a=b",
                1,
                "ADD bridge"
            ])
        );
        // date -d 2026-11-22T09:55:00Z +%s
        assert_eq!(
            json!([
                main["startTimeUnixNano"],
                main["endTimeUnixNano"],
                step["startTimeUnixNano"],
                step["endTimeUnixNano"]
            ]),
            json!([
                "1795341300121456000",
                "1795341300123456000",
                "1795341300121556000",
                "1795341300122795000"
            ])
        );
        assert_eq!(
            json!([step["traceId"], step["parentSpanId"], step["name"]]),
            json!([main["traceId"], main["spanId"], "host-local"])
        );
        for (key, value) in [
            ("k8s.namespace.name", "shop"),
            ("k8s.pod.name", "web-1"),
            ("cni.addresses", "10.0.0.2/24"),
            ("process.exit.code", "0"),
            ("cni.baggage", "k=v"),
        ] {
            assert_eq!(attribute(main, key), Some(value), "{key}");
        }
        assert!(main.get("status").is_none() && attribute(main, "error.type").is_none());
    }

    #[test]
    fn a_call_without_a_trace_is_a_trace() {
        let call = &parse(FAILED.as_bytes())[0];
        let found = spans(&line(call, "node", None));
        let main = &found[0];
        assert!(
            main.get("parentSpanId").is_none() && main["traceId"].as_str().unwrap().len() == 32,
            "{main}"
        );
        assert_eq!(
            (&main["status"], attribute(main, "error.type")),
            (&json!({"code": 2, "message": "bad"}), Some("7"))
        );
        assert_eq!(found, spans(&line(call, "node", None)), "an ID differs");
    }

    /// Also across the file's own rotation, and with an incomplete last line.
    #[test]
    fn each_call_is_exported_once() {
        let folder = tempfile::tempdir().unwrap();
        let [log, file] = ["log", "spans"].map(|name| folder.path().join(name));
        let count = || fs::read_to_string(&file).map_or(0, |text| text.lines().count());
        let run = || export(&log, &file).unwrap();
        fs::write(&log, format!("{TRACED}\n{FAILED}\n")).unwrap();
        run();
        run();
        assert_eq!(count(), 2);
        fs::rename(&log, old(&log)).unwrap();
        fs::write(&log, format!("{FAILED}\n").replace(":01.0", ":02.0")).unwrap();
        run();
        assert_eq!(count(), 3);
        fs::rename(&file, old(&file)).unwrap();
        File::options().append(true).open(old(&file)).unwrap().write_all(b"{\"resourceSpans\"").unwrap();
        run();
        assert!(!file.exists());
        fs::write(&file, "{").unwrap();
        let mut log = File::options().append(true).open(&log).unwrap();
        log.write_all(format!("{TRACED}\n").as_bytes()).unwrap();
        run();
        assert_eq!(count(), 2, "the incomplete line and one more");
    }

    /// The digits of `printf '1\\0007\\000t\\000c\\000p' | sha512sum`.
    #[test]
    fn the_ids_of_spans_never_change() {
        let call = &parse(br#"{"pid":7,"time":"t","container":"c","plugin":"p","verb":"ADD","us":1}"#)[0];
        assert_eq!(format!("{:016x}", hash(call, 1)), "54e2c588ef1a5d1c");
    }

    #[test]
    fn others_cannot_read_the_spans_and_a_fifo_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [log, file, fifo, link] = ["log", "spans", "fifo", "link"].map(|name| folder.path().join(name));
        fs::write(&log, format!("{TRACED}\n")).unwrap();
        export(&log, &file).unwrap();
        for (calls, mode, kept) in [(2, 0o644, 0o640), (3, 0o600, 0o600)] {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            fs::write(&log, format!("{TRACED}\n").repeat(calls)).unwrap();
            export(&log, &file).unwrap();
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, kept);
            assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), calls);
        }
        std::os::unix::fs::chown(&file, Some(1234), None).unwrap();
        fs::write(&log, format!("{TRACED}\n").repeat(9)).unwrap();
        export(&log, &file).unwrap_err();
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        std::os::unix::fs::symlink(folder.path().join("target"), &link).unwrap();
        for refused in [fifo, link] {
            export(&log, &refused).unwrap_err();
        }
        assert!(!folder.path().join("target").exists());
    }

    #[test]
    fn times() {
        for (time, micros_since_1970) in [
            ("1970-01-01T00:00:00.000001Z", 1),
            ("2000-02-29T00:00:00.000000Z", 951_782_400_000_000),
            ("0000-03-00T00:00:00.000000Z", 0),
            ("yesterday", 0),
        ] {
            assert_eq!(micros(time), micros_since_1970, "{time}");
        }
    }
}
