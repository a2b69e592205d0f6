//! Reports to one function of the program how long each exchange with the kernel, each helper program and each wait takes, and
//! which errors the kernel answers. Without [`observe`] no clock is read.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::Error;

/// What has happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A step has ended: requests to the kernel, a program, or a wait.
    Step(&'a str, Duration),
    /// The kernel has answered a request of this netlink protocol with an error.
    NetlinkError(&'a str, &'a Error),
}

static OBSERVER: OnceLock<fn(Event<'_>)> = OnceLock::new();

/// Calls `observer` for each event from now on. Only the first call of this function has an effect.
pub fn observe(observer: fn(Event<'_>)) {
    let _ = OBSERVER.set(observer);
}

/// A step that runs until the value is dropped.
pub(crate) struct Running<'a> {
    name: &'a str,
    since: Instant,
}

/// Starts a step, if there is an observer.
pub(crate) fn start(name: &str) -> Option<Running<'_>> {
    OBSERVER.get().map(|_| Running { name, since: Instant::now() })
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(observer) = OBSERVER.get() {
            observer(Event::Step(self.name, self.since.elapsed()));
        }
    }
}

/// Measures a step if there is an observer.
pub fn step<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let _running = start(name);
    work()
}

pub(crate) fn netlink_error(protocol: &str, error: &Error) {
    if let Some(observer) = OBSERVER.get() {
        observer(Event::NetlinkError(protocol, error));
    }
}
