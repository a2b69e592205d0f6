//! Runs the task of one lease, and starts it again from the lease's file if it panics. So a panic loses no lease: the next task
//! renews it, sets the interface down when it expires, and gives it back at DEL.

use std::time::Duration;

use ferrule_daemon::Pauses;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::clock;
use crate::store::StoredLease;
use crate::worker::{self, Start, Task};

/// What ADD says after a panic.
pub(crate) const INTERNAL: &str = "internal error; see the daemon's log";
/// The pauses after panics. After a task that has run for longer than the longest one, they begin anew.
const PAUSES: Pauses = Pauses::millis(100, 60_000);

/// Runs until the lease ends. Returns why.
pub(crate) async fn run(mut task: Task, mut start: Start) -> String {
    let mut panics = 0_u32;
    let mut was_released = false;
    loop {
        let began = clock::now();
        // An error is a panic, whose text is in the log.
        if let Ok(why) = spawn_local(worker::run(task.clone(), start)).await {
            return why;
        }
        // Without a state file ADD has failed before there was a lease. A lease that cannot be given back ends at the server.
        let state = read(&mut task).await;
        let Some(state) = state.filter(|_| !(was_released && *task.stop.borrow())) else { break };
        was_released = *task.stop.borrow();
        let has_worked = Duration::from_millis(clock::now().saturating_sub(began)) > PAUSES.longest;
        panics = if has_worked { 1 } else { panics.saturating_add(1) };
        let left = Duration::from_millis(state.binding.expires_at().saturating_sub(clock::now()));
        let end = PAUSES.after(panics).min(left);
        task.log(&format!("the work on the lease panicked; it goes on in {end:?}"));
        let _ = timeout(end, task.stopped()).await;
        if state.confirmed && state.binding.expires_at() <= clock::now() {
            task.expire(&state.interface, state.binding.settings()).await;
            break;
        }
        start = Start::Resume(Box::new(state));
    }
    task.forget();
    INTERNAL.to_owned()
}

/// Reads the lease's state file. If it cannot be read, tries again until DEL comes.
async fn read(task: &mut Task) -> Option<StoredLease> {
    loop {
        match task.store.find(&task.id) {
            Ok(state) => return state,
            Err(error) => task.log(&format!("cannot read the lease's file: {error}")),
        }
        if timeout(PAUSES.longest, task.stopped()).await.is_ok() {
            return None;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
