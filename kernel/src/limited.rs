//! A system call that may block without limit, with a time limit.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Calls `work` in another thread. Returns `None` if it does not end within the limit; the thread then runs until the process
/// exits.
///
/// Not a channel of std: its thread-local data is the reason for one more mapping at every start of a plugin.
///
/// # Errors
/// No thread can be started.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let outcome = Arc::new((Mutex::new(None), Condvar::new()));
    let shared = Arc::clone(&outcome);
    thread::Builder::new().spawn(move || {
        let value = work();
        let (slot, changed) = &*shared;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        changed.notify_one();
    })?;
    let (slot, changed) = &*outcome;
    let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = changed.wait_timeout_while(slot, limit, |value| value.is_none());
    Ok(waited.unwrap_or_else(PoisonError::into_inner).0.take())
}
