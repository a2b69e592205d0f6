//! Runs passes over the attachments when the kernel's messages mean [`damage`], when the [`schedule`] allows it.

pub mod damage;
pub mod schedule;

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::notices::{Notice, Notices};

use self::damage::Damage;
use self::schedule::Schedule;

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

/// Runs a pass at the start and after each damage, until `is_ended`. A pass returns whether nothing is left to repair. `plugins`
/// are the names of the processes whose changes of the ruleset are no damage.
///
/// # Errors
/// The kernel sends no messages, or the first pass fails. `say` gets the errors of later ones.
pub fn watch(
    plugins: &[&str],
    pace: Pace,
    pass: &mut dyn FnMut() -> Result<bool, CniError>,
    say: &mut dyn FnMut(String),
    is_ended: &dyn Fn() -> bool,
) -> Result<(), CniError> {
    let (mut notices, mut route) = open().context(|| "listen to changes")?;
    let mut damage = Damage::new(plugins);
    let mut load =
        |damage: &mut Damage| route.links(None).map(|links| damage.load(&links)).context(|| "list the links");
    load(&mut damage)?;
    let mut schedule = Schedule::new(pace.period, pace.most, Instant::now());
    let mut is_first = true;
    while !is_ended() {
        let now = Instant::now();
        if damage.settle(now) {
            schedule.damaged(now);
        }
        if schedule.next() <= now {
            schedule.start(now);
            let outcome = pass();
            schedule.end(matches!(outcome, Ok(true)), Instant::now());
            match outcome {
                Err(error) if is_first => return Err(error),
                Err(error) => say(error.to_string()),
                Ok(_) => {}
            }
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
