//! Signals that end a command. They are blocked, and read between two steps, so that the command restores
//! the files first.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::failure::{Failure, Step};

/// The blocked signals.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks SIGINT, SIGTERM, SIGHUP, and SIGCHLD, which ends [`Signals::wait`]. A process that is started
    /// later inherits this.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn block() -> Result<Self, Failure> {
        let mask: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect();
        let cannot = || "cannot block signals".to_owned();
        mask.thread_block().step(cannot)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        SignalFd::with_flags(&mask, flags).map(Signals).step(cannot)
    }

    /// Fails if a signal has asked for the end.
    ///
    /// # Errors
    /// The signal.
    pub fn check(&self) -> Result<(), Failure> {
        while let Ok(Some(info)) = self.0.read_signal() {
            match i32::try_from(info.ssi_signo).map(Signal::try_from) {
                Ok(Ok(Signal::SIGCHLD)) => {}
                Ok(Ok(signal)) => return Err(Failure::signal(signal)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until a child process has ended or the time is over.
    ///
    /// # Errors
    /// A signal has asked for the end.
    pub fn wait(&self, limit: Duration) -> Result<(), Failure> {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], limit) {
            Err(error) if error != Errno::EINTR => Err(Failure::new(format!("cannot wait: {error}"))),
            _ => self.check(),
        }
    }
}
