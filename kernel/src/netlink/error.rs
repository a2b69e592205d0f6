//! Why a netlink request failed, and whether the kernel may have made the change all the same.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The error code in the kernel's answer, or of the system call.
    pub errno: Errno,
    /// The kernel's explanation (extended ACK); may be empty.
    pub explanation: String,
    pub(super) is_answer_lost: bool,
    pub(super) is_unsent: bool,
}

impl Error {
    pub(crate) fn new(errno: Errno, explanation: impl Into<String>) -> Self {
        Error { errno, explanation: explanation.into(), is_answer_lost: false, is_unsent: false }
    }

    /// Whether the kernel has not got the request: it has refused nothing, and the same request may succeed later.
    pub fn is_unsent(&self) -> bool {
        self.is_unsent
    }

    /// Whether the outcome is unknown: the kernel has got the request, but its answer could not be received. A
    /// caller that undoes changes has to undo this one too.
    pub fn is_answer_lost(&self) -> bool {
        self.is_answer_lost
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_answer_lost {
            f.write_str("the kernel's answer is lost: ")?;
        }
        match self.errno {
            // Only bridges answer so: BR_MAX_PORTS in net/bridge/br_private.h, and number 0 is no port.
            Errno::EXFULL => f.write_str("the bridge has 1023 ports, the most that the kernel allows")?,
            errno => write!(f, "{}", errno.desc().to_lowercase())?,
        }
        if !self.explanation.is_empty() {
            write!(f, " ({})", self.explanation)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Error::from(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error::new(errno, "")
    }
}
