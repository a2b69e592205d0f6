//! Runs the task of one lease, and starts it again from the lease's file if it panics. So a panic loses no lease: the next task
//! renews it, sets the interface down when it expires, and gives it back at DEL.

use std::rc::Rc;
use std::time::Duration;

use ferrule_dhcp::wire::Key;
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::clock;
use crate::lease::Millis;
use crate::log;
use crate::message::name;
use crate::registry::{Daemon, Status};
use crate::store::Record;
use crate::worker::{self, Start};

/// What ADD says after a panic.
pub(crate) const INTERNAL: &str = "internal error; see the daemon's log";
/// The pause after the first panic. It doubles with each one.
const FIRST_PAUSE: Millis = 100;
/// The longest pause. After a task that has run for longer, the pauses begin with the first one.
const LONGEST_PAUSE: Millis = 60_000;

/// Runs until the lease ends. Returns why.
pub(crate) async fn run(
    daemon: &Rc<Daemon>,
    key: &Key,
    mut start: Start,
    status: &Rc<watch::Sender<Status>>,
    mut stop: watch::Receiver<bool>,
) -> String {
    let log = |text: &str| log(&format!("{}: {text}", name(key)));
    let mut pause = FIRST_PAUSE;
    let mut was_released = false;
    loop {
        let began = clock::now();
        let (their_daemon, their_key) = (Rc::clone(daemon), key.clone());
        let (their_status, their_stop) = (Rc::clone(status), stop.clone());
        let work =
            async move { worker::run(&their_daemon, &their_key, start, &their_status, their_stop).await };
        // An error is a panic, whose text is in the log.
        if let Ok(why) = spawn_local(work).await {
            return why;
        }
        // Without a record ADD has failed before there was a lease. A lease that cannot be given back ends at the server.
        let record = recorded(daemon, key, &mut stop).await;
        let Some(record) = record.filter(|_| !(was_released && *stop.borrow())) else { break };
        was_released = *stop.borrow();
        if clock::now().saturating_sub(began) > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        let left = record.lease.expires_at.saturating_sub(clock::now());
        let end = Duration::from_millis(pause.min(left));
        log(&format!("the work on the lease panicked; it goes on in {end:?}"));
        let _ = timeout(end, stop.wait_for(|stop| *stop)).await;
        if record.confirmed && record.lease.expires_at <= clock::now() {
            log("lease expired, bringing interface DOWN");
            record.sandbox.set_down().await;
            break;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        start = Start::Resume(Box::new(record));
    }
    if let Err(error) = daemon.store.remove(key) {
        log(&format!("the lease's file stays: {error}"));
    }
    INTERNAL.to_owned()
}

/// The lease's record. If it cannot be read, tries again until DEL comes.
async fn recorded(daemon: &Daemon, key: &Key, stop: &mut watch::Receiver<bool>) -> Option<Record> {
    loop {
        match daemon.store.read(key) {
            Ok(record) => return record,
            Err(error) => log(&format!("{}: cannot read the lease's file: {error}", name(key))),
        }
        if timeout(Duration::from_millis(LONGEST_PAUSE), stop.wait_for(|stop| *stop)).await.is_ok() {
            return None;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
