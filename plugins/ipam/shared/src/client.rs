//! Asks the daemon. Every wait has a limit.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use cni_common::spec::{CniError, Code};
use ferrule_blocks::wire::{Answer, LONGEST, PROTOCOL, Request};
use ferrule_kernel::unix_stream;

/// Sends the request and waits for the answer until the deadline.
///
/// # Errors
/// Code 11 if the daemon does not answer; else what it says.
pub fn ask(socket: &Path, request: &Request, deadline: Instant) -> Result<(), CniError> {
    let answer = exchange(socket, request, deadline).map_err(|error| {
        let msg =
            format!("the daemon that claims addresses does not answer at {}: {error}", socket.display());
        CniError::new(Code::TryAgainLater, msg).with_remedy("start the daemon: ferrule-node blocks")
    })?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| {
        CniError::internal(format!("the peer at {} is not ferrule-node blocks: {error}", socket.display()))
    })?;
    if let Some(failure) = answer.failure {
        return Err(CniError::new(Code::from(failure.code), failure.msg));
    }
    match answer.ferrule_blocks {
        PROTOCOL => Ok(()),
        theirs => Err(CniError::internal(format!(
            "ferrule-node speaks version {theirs} of the protocol, this plugin version {PROTOCOL}; install both of one release"
        ))),
    }
}

fn exchange(socket: &Path, request: &Request, deadline: Instant) -> io::Result<Vec<u8>> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    unix_stream::exchange(socket, serde_json::to_vec(request)?, LONGEST, left)
}
