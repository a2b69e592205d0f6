//! System calls of a daemon that fail once, while strace follows all of its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Names of system calls, separated by commas, and the errors that they may fail with.
pub type Errors = (&'static str, &'static [&'static str]);

/// strace's option that records these system calls. The `?` stands before names that the architecture may not have.
pub fn trace(table: &[Errors]) -> String {
    let names: Vec<&str> = table.iter().map(|(names, _)| *names).collect();
    format!("trace=?{}", names.join(",").replace(',', ",?"))
}

/// The errors of a system call; `None` if the table does not have it.
pub fn errors_of(table: &[Errors], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(names, _)| names.split(',').any(|other| other == name)).map(|(_, errors)| *errors)
}

/// The system calls in strace's log, except the infallible ones: each name with the numbers that a call had in its thread.
pub fn calls(log: &str, is_infallible: impl Fn(&str) -> bool) -> BTreeSet<(String, usize)> {
    let mut threads: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut calls = BTreeSet::new();
    for line in log.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let Some((name, arguments)) = call.trim_start().split_once('(') else { continue };
        let nth = threads.entry((thread, name)).or_default();
        *nth += 1;
        if !is_infallible(arguments) {
            calls.insert((name.to_owned(), *nth));
        }
    }
    calls
}

/// strace's options that let one system call fail.
pub fn options(name: &str, nth: usize, error: &str) -> [String; 2] {
    [format!("-etrace={name}"), format!("-einject={name}:error={error}:when={nth}")]
}

/// Tries each fault for `None`, or as many of all kinds as the time allows. `attempt` returns strace's log, or a finding.
///
/// # Panics
/// With the findings, or if less than two thirds of the system calls failed, half in a sample: threads may share their work
/// otherwise than in the recorded run, and on a busy machine a sample has a dozen.
pub fn try_faults<F>(
    faults: &[F],
    time: Option<Duration>,
    mut attempt: impl FnMut(&F) -> Result<String, String>,
) {
    // A sample takes steps of a length that has no divisor in common with most numbers of faults: it meets all kinds.
    let stride = if time.is_some() { 257 } else { 1 };
    let (began, mut failed, mut tried, mut findings) = (Instant::now(), 0, 0, Vec::new());
    for number in 0..faults.len() {
        if time.is_some_and(|time| began.elapsed() > time) {
            break;
        }
        tried += 1;
        match attempt(&faults[number * stride % faults.len()]) {
            Ok(log) => failed += usize::from(log.contains("(INJECTED)")),
            Err(finding) => findings.push(finding),
        }
    }
    eprintln!("{failed} of {} system calls failed, {tried} tried", faults.len());
    assert!(findings.is_empty(), "{findings:#?}");
    let least = if time.is_some() { tried / 2 } else { tried * 2 / 3 };
    assert!(failed > least, "only {failed} of {tried} system calls failed");
}
