//! `ferrule repair --watch`: repairs when the kernel's messages mean [`damage`] and the [`schedule`] allows it.

pub mod damage;
pub mod schedule;

use std::collections::HashSet;
use std::env;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{Duration, Instant};

use cni_common::plugin::Plugin;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::notices::{Notice, Notices};

use self::damage::Damage;
use self::schedule::Schedule;
use crate::line::Line;
use crate::repair::{self, Finding, Options, Outcome, Repaired};

/// The longest wait for messages. A signal ends a wait, unless it comes just before.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How often passes run.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time between two passes without damage.
    pub period: Duration,
    /// The most passes in a minute. A pass is then delayed, never dropped.
    pub most: u32,
}

/// Repairs at the start and after each damage, until `is_ended`. `say` gets a line for each repair, and one for each new failure.
///
/// # Errors
/// The kernel sends no messages, another program has taken the place of this one, or the first pass fails. `say` gets the errors of later
/// ones.
pub fn watch(
    plugins: &'static [&'static Plugin],
    options: &Options,
    pace: Pace,
    say: &mut dyn FnMut(&Line),
    is_ended: &dyn Fn() -> bool,
) -> Result<(), CniError> {
    let (mut notices, mut route) = open().context(|| "listen to changes")?;
    let mut damage = Damage::new(plugins.iter().map(|plugin| plugin.name));
    let mut load =
        |damage: &mut Damage| route.links(None).map(|links| damage.load(&links)).context(|| "list the links");
    load(&mut damage)?;
    let mut schedule = Schedule::new(pace.period, pace.most, Instant::now());
    let program = env::current_exe().ok().filter(|path| is_running(path));
    let (mut failures, mut is_first) = (HashSet::new(), true);
    while !is_ended() {
        let now = Instant::now();
        if damage.settle(now) {
            schedule.damaged(now);
        }
        if schedule.next() <= now {
            if let Some(path) = program.as_ref().filter(|path| !is_running(path)) {
                let other = format!(
                    "{} is another program now, whose plugins this one must not call",
                    path.display()
                );
                return Err(CniError::internal(other));
            }
            schedule.start(now);
            let outcome = repair::run(plugins, options, is_ended);
            if let (true, Err(error)) = (is_first, &outcome) {
                return Err(error.clone());
            }
            schedule.end(is_complete(outcome, &mut failures, say), Instant::now());
            if is_first {
                is_first = false;
                let _ = tell_ready();
            }
            continue;
        }
        let until = damage.next().map_or(schedule.next(), |next| next.min(schedule.next()));
        let limit = until.saturating_duration_since(now).min(LONGEST_WAIT);
        for notice in notices.wait(limit).context(|| "receive changes")? {
            if notice == Notice::Lost {
                load(&mut damage)?;
            }
            let now = Instant::now();
            if damage.take(&notice, now) {
                schedule.damaged(now);
            }
        }
    }
    Ok(())
}

/// Prints repairs and new failures. Returns whether all attachments are sound now. `failures` are those of the pass before.
fn is_complete(
    outcome: Result<Repaired, CniError>,
    failures: &mut HashSet<Line>,
    say: &mut dyn FnMut(&Line),
) -> bool {
    let (mut lines, mut is_complete) = (HashSet::new(), false);
    match outcome {
        Err(error) => drop(lines.insert(Line::new(error))),
        Ok(repaired) => {
            is_complete = repaired.is_done() && repaired.postponed == 0;
            let of = |outcome| repaired.findings.iter().filter(move |finding| finding.outcome == outcome);
            of(Outcome::Repaired).filter_map(Finding::line).for_each(|line| say(&line));
            lines.extend(of(Outcome::Failed).filter_map(Finding::line));
            lines.extend(repaired.failures.iter().map(Line::new));
        }
    }
    lines.difference(failures).for_each(say);
    *failures = lines;
    is_complete
}

/// Whether this file is the program that runs.
fn is_running(path: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    identity(path).is_some_and(|file| Some(file) == identity(Path::new("/proc/self/exe")))
}

fn open() -> Result<(Notices, Socket), ferrule_kernel::netlink::Error> {
    Ok((Notices::open()?, Socket::route()?))
}

/// Tells systemd that the first pass is over, if it has started this process: sd_notify(3).
fn tell_ready() -> io::Result<()> {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let bytes = name.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(drop)
}
