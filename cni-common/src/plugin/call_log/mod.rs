//! A log of calls, off by default: one line of JSON for each call, at its end.
//!
//! The log never makes a call fail or wait, and never writes to standard output: a line that cannot be written is dropped
//! with a note on standard error. It has ADD, CHECK, DEL and GC, and those STATUS that fail: runtimes call STATUS every
//! few seconds, and those lines would displace the others. VERSION is not logged.
//!
//! When it is off, a call makes one system call for it, which opens the missing [`switch::CONFIG`], and none if
//! [`switch::VARIABLE`] is set.

pub mod switch;

mod file;
mod line;
mod socket;
mod trace;

use std::process;
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, open};
use serde_json::Value;

use self::line::Record;
use self::switch::Destination;
use self::trace::{TRACEPARENT, Trace};
use super::env::{Environment, Verb};
use crate::remark;
use crate::spec::CniError;

pub use file::old;
pub use line::rfc3339;

/// The longest configuration file in bytes. The rest is ignored.
const CONFIG_SIZE: usize = 4096;

/// The log of this process, if it is on. Not thread-local: thread-local data beyond 112 bytes costs a mapping at every
/// start.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    destination: Destination,
    env: Environment,
    started: Instant,
    /// The call, and behind it the member that it is in. Empty once the lines are written.
    records: Mutex<Vec<Record>>,
}

/// Starts the record of the call that `env` describes. Returns whether the log is on.
pub(crate) fn start(plugin: &'static str, env: &Environment) -> bool {
    if env.command == Verb::Version.as_str() {
        return false;
    }
    let destination = match configured() {
        Ok(Some(destination)) => destination,
        Ok(None) => return false,
        Err(why) => {
            remark!("the call is not logged: {why}");
            return false;
        }
    };
    let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let trace = Trace::read(|name| std::env::var(name).ok(), process::id(), since_epoch);
    let records = Mutex::new(vec![Record { plugin, trace, ..Record::default() }]);
    LOG.set(Log { destination, env: env.clone(), started: Instant::now(), records }).is_ok()
}

/// Where the calls of this node are logged. `None` if they are not.
///
/// # Errors
/// The configuration file cannot be read, or its value or the variable's is wrong.
pub fn configured() -> Result<Option<Destination>, String> {
    match std::env::var_os(switch::VARIABLE) {
        Some(value) => switch::destination(&value.to_string_lossy()),
        None => match read_config() {
            Ok(config) => switch::destination(switch::value_in(&config)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(format!("{}: {errno}", switch::CONFIG)),
        },
    }
}

fn read_config() -> Result<String, rustix::io::Errno> {
    let file = open(switch::CONFIG, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::with_capacity(CONFIG_SIZE);
    rustix::io::read(&file, spare_capacity(&mut text))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Changes the record, if there is one.
fn change(change: impl FnOnce(&mut Record)) {
    if let Some(record) = LOG.get().and_then(lock).as_mut().and_then(|records| records.last_mut()) {
        change(record);
    }
}

/// `None` if another thread has the record, or if this one panics while it has it.
fn lock(log: &Log) -> Option<MutexGuard<'_, Vec<Record>>> {
    match log.records.try_lock() {
        Ok(records) => Some(records),
        Err(TryLockError::Poisoned(records)) => Some(records.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Sets the name of the network.
pub(crate) fn network(name: &str) {
    change(|record| name.clone_into(&mut record.network));
}

/// Measures a step, if the log is on.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> T) -> T {
    if LOG.get().is_none() {
        return work();
    }
    let started = Instant::now();
    let outcome = work();
    add_step(name, started.elapsed());
    outcome
}

/// Records a step that has ended, if the log is on.
pub fn add_step(name: &str, took: Duration) {
    let at = LOG.get().map_or(Duration::ZERO, |log| log.started.elapsed().saturating_sub(took));
    change(|record| record.add_step(name, at.saturating_sub(record.began), took));
}

/// The variable that names the call's span to a process that this one starts. `None` if the process inherits the runtime's.
pub(crate) fn traceparent() -> Option<(&'static str, String)> {
    let records = LOG.get().and_then(lock)?;
    records.last()?.trace.as_ref().map(|trace| (TRACEPARENT, trace.of_child()))
}

/// Records an error that the kernel answered to a netlink request, if the log is on.
pub fn add_netlink_error(text: String) {
    change(|record| record.add_netlink_error(text));
}

/// Begins the record of a member of the list that this call runs. Returns whether the log is on.
pub(crate) fn begin_member(plugin: &'static str, verb: Verb) -> bool {
    let Some(log) = LOG.get() else { return false };
    let Some(mut records) = lock(log) else { return false };
    let Some(call) = records.last() else { return false };
    let trace =
        call.trace.as_ref().map(|trace| trace.of_member(plugin, records.len(), log.started.elapsed()));
    let record = Record {
        plugin,
        verb: verb.as_str(),
        network: call.network.clone(),
        began: log.started.elapsed(),
        trace,
        ..Record::default()
    };
    records.push(record);
    true
}

/// Writes the line of the member.
pub(crate) fn end_member(outcome: Result<Option<&Value>, &CniError>) {
    let Some(log) = LOG.get() else { return };
    if let Some(record) = lock(log).and_then(|mut records| records.pop()) {
        write_record(log, &record, outcome);
    }
}

/// Writes the line, after a panic also that of the member.
pub(crate) fn finish(outcome: Result<Option<&Value>, &CniError>) {
    let Some(log) = LOG.get() else { return };
    let records = lock(log).map(|mut records| std::mem::take(&mut *records)).unwrap_or_default();
    records.iter().rev().for_each(|record| write_record(log, record, outcome));
}

fn write_record(log: &Log, record: &Record, outcome: Result<Option<&Value>, &CniError>) {
    if outcome.is_ok() && log.env.command == Verb::Status.as_str() {
        return;
    }
    let took = log.started.elapsed().saturating_sub(record.began);
    let ended = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let line = line::line(record, &log.env, process::id(), ended, took, outcome);
    if let Err(why) = write(&log.destination, &line, outcome.is_err()) {
        remark!("the call is not logged: {why}");
    }
}

fn write(destination: &Destination, line: &str, is_error: bool) -> Result<(), String> {
    let (socket, datagram) = match destination {
        Destination::File(path, limit) => {
            let written = file::append(path, *limit, line.as_bytes());
            return written.map_err(|error| format!("{}: {error}", path.display()));
        }
        Destination::Journald => (socket::JOURNALD, socket::for_journald(line, is_error)),
        Destination::Syslog => (socket::SYSLOG, socket::for_syslog(line, process::id(), is_error)),
    };
    socket::send(socket, &datagram).map_err(|error| format!("{socket}: {error}"))
}
