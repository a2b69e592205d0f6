//! Sends and receives datagrams.

use std::io;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{ReceiveTimeout, SndBufForce};
use nix::sys::socket::{MsgFlags, setsockopt};
use nix::sys::time::TimeVal;

use super::super::error::Error;
use super::{DEFAULT_SEND_LIMIT, NO_ANSWER_WAIT, Socket};

impl Socket {
    pub(super) fn send(&self, datagram: &[u8]) -> Result<(), Error> {
        if datagram.len() > DEFAULT_SEND_LIMIT {
            // Without it sending fails with `EMSGSIZE`.
            let _ = setsockopt(&self.socket, SndBufForce, &(datagram.len() * 2));
        }
        loop {
            match self.socket.send(datagram, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error { is_unsent: true, ..Error::from(error) }),
            }
        }
    }

    /// Throws away what the kernel still has to send. A dump ends only when it has been received, and until then the
    /// kernel starts no other one on this socket (`EBUSY`).
    pub(super) fn drain(&mut self) {
        while self.receive_now(MsgFlags::MSG_DONTWAIT).is_ok() {}
    }

    /// Makes room for an answer of this size in bytes, which may be larger than those of a dump.
    pub(in crate::netlink) fn make_room(&mut self, size: usize) {
        self.buffer.clear();
        self.buffer.reserve(size);
    }

    /// Receives one datagram.
    ///
    /// # Errors
    /// `ETIMEDOUT` without a message, or the error of the system call.
    pub(super) fn receive(&mut self) -> Result<(), Error> {
        match self.receive_now(MsgFlags::MSG_DONTWAIT) {
            Err(error) if error.errno == Errno::EAGAIN => {}
            outcome => return outcome,
        }
        let wait = TimeVal::new(NO_ANSWER_WAIT.as_secs().cast_signed(), 0);
        setsockopt(&self.socket, ReceiveTimeout, &wait)?;
        self.receive_now(MsgFlags::empty()).map_err(|error| match error.errno {
            Errno::EAGAIN => Error::new(Errno::ETIMEDOUT, format!("no answer within {NO_ANSWER_WAIT:?}")),
            _ => error,
        })
    }

    fn receive_now(&mut self, flags: MsgFlags) -> Result<(), Error> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, flags.bits()) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
