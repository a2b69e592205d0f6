//! Netlink answers that a plugin cannot receive: the kernel has got the request, but the plugin does not learn
//! what came of it. `strace` makes one receive of a call fail.

use std::fmt;

use anyhow::ensure;
use cni_runner::Exec;

use super::place::Place;
use super::strace;

/// The system call that receives an answer.
const RECEIVE: &str = "recvfrom";

/// The nth receive of a call, counted from 1, fails with this error.
#[derive(Debug, Clone)]
pub struct LostAnswer {
    nth: usize,
    error: &'static str,
}

impl fmt::Display for LostAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "receive {} failed with {}", self.nth, self.error)
    }
}

impl LostAnswer {
    /// Makes the call, which must succeed, and returns one value for each of its receives. The errors alternate: an
    /// I/O error, and a receive buffer that was too small.
    pub fn all(place: &impl Place, exec: &Exec) -> anyhow::Result<Vec<LostAnswer>> {
        let log = strace::record(place, exec, &["-e", &format!("trace={RECEIVE}")])?;
        let receives = log.lines().filter(|line| line.starts_with(RECEIVE)).count();
        ensure!(receives > 0, "strace found no {RECEIVE} in {}", exec.command);
        let errors = ["EIO", "ENOBUFS"].into_iter().cycle();
        Ok((1..=receives).zip(errors).map(|(nth, error)| LostAnswer { nth, error }).collect())
    }

    /// Makes the call, in which this receive fails. Returns whether the call has succeeded.
    pub fn inject(&self, place: &impl Place, exec: &Exec) -> anyhow::Result<bool> {
        let trace = format!("trace={RECEIVE}");
        let inject = format!("inject={RECEIVE}:error={}:when={}", self.error, self.nth);
        let status = place.run(|| strace::run(exec, &["-e", &trace, "-e", &inject, "-o", "/dev/null"]))??;
        ensure!(status.code().is_some(), "{}: {self}: {status}", exec.command);
        Ok(status.success())
    }
}
