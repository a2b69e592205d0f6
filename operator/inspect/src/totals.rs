//! How much `ferrule gc` and `ferrule repair` have done since the node has started, for `ferrule metrics`. The file has the text for
//! Prometheus, so it is read and written by the same names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ferrule_kernel::file;
use ferrule_kernel::lock::Lock;

/// The file.
const FILE: &str = "/run/ferrule-totals";
/// Held by the process that changes it.
const LOCK: &str = "/run/ferrule-totals.lock";

/// The metrics of a command: the numbers of changes and of failures, the time of its last run, and of its last change.
pub(crate) struct Command([(&'static str, &'static str); 4]);

pub(crate) const GC: Command = Command([
    ("ferrule_gc_removed_objects_total", "The objects that ferrule gc has removed."),
    ("ferrule_gc_failures_total", "The objects that ferrule gc could not remove."),
    ("ferrule_gc_last_run_timestamp_seconds", "When ferrule gc --yes last ran."),
    ("ferrule_gc_last_removal_timestamp_seconds", "When ferrule gc last removed something."),
]);

pub(crate) const REPAIR: Command = Command([
    ("ferrule_repair_repaired_attachments_total", "The attachments that ferrule repair has repaired."),
    ("ferrule_repair_failures_total", "The attachments that ferrule repair could not repair."),
    ("ferrule_repair_last_run_timestamp_seconds", "When ferrule repair --yes last ran."),
    ("ferrule_repair_last_repair_timestamp_seconds", "When ferrule repair last repaired something."),
]);

/// When gc last saw all containers.
const COMPLETE: (&str, &str) = (
    "ferrule_gc_last_complete_timestamp_seconds",
    "When ferrule gc --yes last ran and left no container out.",
);

/// Adds a run of a command. Returns why the file could not be written.
pub(crate) fn add(command: &Command, done: usize, failed: usize) -> Result<(), String> {
    change(|former, now| summed(former, command, [done as u64, failed as u64], &[], now))
}

/// Adds a run of gc, which may have left containers out.
pub(crate) fn add_gc(removed: usize, failed: usize, is_complete: bool) -> Result<(), String> {
    let more: &[&str] = if is_complete { &[COMPLETE.0] } else { &[] };
    change(|former, now| summed(former, &GC, [removed as u64, failed as u64], more, now))
}

fn change(summed: impl FnOnce(&str, u64) -> String) -> Result<(), String> {
    let change = || -> io::Result<()> {
        let _lock = Lock::take(LOCK.as_ref(), 0o600)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let text = summed(&read()?, now);
        let path = Path::new(FILE);
        file::replace(path, &file::pending_beside(path), 0o644, text.as_bytes())
    };
    change().map_err(|error| format!("cannot write {FILE}: {error}"))
}

/// The text for Prometheus; empty if no command has run.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn read() -> io::Result<String> {
    match file::read_text(FILE.as_ref()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        outcome => outcome,
    }
}

/// `more` are the times that are now.
fn summed(
    former: &str,
    Command([done, failed, ran, last]): &Command,
    [new, broken]: [u64; 2],
    more: &[&'static str],
    now: u64,
) -> String {
    let values = former.lines().filter_map(|line| line.split_once(' '));
    let mut values: BTreeMap<&str, u64> =
        values.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect();
    *values.entry(done.0).or_default() += new;
    *values.entry(failed.0).or_default() += broken;
    values.insert(ran.0, now);
    values.extend(more.iter().map(|name| (*name, now)));
    if new > 0 {
        values.insert(last.0, now);
    }
    let mut text = String::new();
    for (name, help) in GC.0.iter().chain([&COMPLETE]).chain(&REPAIR.0) {
        if let Some(value) = values.get(name) {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_summed() {
        let first = summed("", &GC, [2, 0], &[COMPLETE.0], 10);
        let second = summed(&first, &REPAIR, [3, 1], &[], 20);
        let third = summed(&second, &GC, [0, 1], &[], 30);
        let values: Vec<&str> = third.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "ferrule_gc_removed_objects_total 2",
                "ferrule_gc_failures_total 1",
                "ferrule_gc_last_run_timestamp_seconds 30",
                "ferrule_gc_last_removal_timestamp_seconds 10",
                "ferrule_gc_last_complete_timestamp_seconds 10",
                "ferrule_repair_repaired_attachments_total 3",
                "ferrule_repair_failures_total 1",
                "ferrule_repair_last_run_timestamp_seconds 20",
                "ferrule_repair_last_repair_timestamp_seconds 20",
            ]
        );
        assert!(third.contains("# TYPE ferrule_gc_failures_total counter\n"));
        assert!(summed("junk\nx y z", &GC, [0, 0], &[], 1).contains("ferrule_gc_removed_objects_total 0\n"));
    }
}
