//! Limits the cost of one container for a tool that looks at all containers of a node: a container may have any number of addresses,
//! routes and rules.
//!
//! A static variable, because thread-local data would be one more mapping at every start of a plugin.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::Error;

/// The rest for the dumps of a container's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How long all of them may take.
    pub time: Duration,
    /// How many bytes of their answers may be collected.
    pub bytes: usize,
}

/// What the memory for a collected answer needs beside its bytes.
const OVERHEAD: usize = 64;

static LEFT: Mutex<Option<Budget>> = Mutex::new(None);

/// Runs `work`. In it, dumps of the sockets that are [`of_container`](crate::netlink::Socket::of_container) take from the budget, and fail
/// once it is used up. One thread at a time may do so.
pub fn within<T>(budget: &mut Budget, work: impl FnOnce() -> T) -> T {
    let set = |left| std::mem::replace(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner), left);
    set(Some(*budget));
    let outcome = work();
    *budget = set(None).unwrap_or(*budget);
    outcome
}

/// Measures one dump.
pub(crate) struct Meter {
    since: Instant,
}

impl Meter {
    pub(crate) fn start() -> Meter {
        Meter { since: Instant::now() }
    }

    /// Takes from the budget the time since the last call, and what these answers need.
    ///
    /// # Errors
    /// The budget is used up.
    pub(crate) fn spend(&mut self, answers: usize, bytes: usize) -> Result<(), Error> {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left) = left.as_mut() else { return Ok(()) };
        let now = Instant::now();
        left.time = left.time.saturating_sub(now - self.since);
        left.bytes = left.bytes.saturating_sub(bytes + answers * OVERHEAD);
        self.since = now;
        if left.time.is_zero() || left.bytes == 0 {
            return Err(exceeded());
        }
        Ok(())
    }
}

/// The error of a dump beyond the budget.
pub(crate) fn exceeded() -> Error {
    Error::new(Errno::ENOBUFS, "the container has too much to list")
}
