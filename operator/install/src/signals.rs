//! Signals that end a command. Their handlers only note them, and the command asks between two steps, so that it
//! restores the files first.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// A signal with this number has ended the command. A shell's exit status is then 128 more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ended by signal {0}")]
pub struct Stopped(pub u8);

/// The last signal that has asked for the end, or 0.
#[derive(Debug)]
pub struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Catches SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn catch() -> io::Result<Self> {
        let last = Arc::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_usize(signal, Arc::clone(&last), signal.unsigned_abs() as usize)?;
        }
        Ok(Signals(last))
    }

    /// Fails if a signal has asked for the end.
    ///
    /// # Errors
    /// The signal.
    pub fn check(&self) -> Result<(), Stopped> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Stopped(signal as u8)),
        }
    }
}
