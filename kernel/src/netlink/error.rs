//! Why a netlink request failed, and whether the kernel may have made the change all the same.

use std::fmt;
use std::io;

use nix::errno::Errno;

use super::message::{HEADER, attrs, text, u32_at};

/// `NLM_F_CAPPED`: the error contains only the header of the failed request.
const F_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow, see [`ATTR_MSG`].
const F_ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the kernel's explanation.
const ATTR_MSG: u16 = 1;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The error code in the kernel's answer, or of the system call.
    pub errno: Errno,
    /// The kernel's explanation (extended ACK); may be empty.
    pub explanation: String,
    is_answer_lost: bool,
    is_unsent: bool,
}

impl Error {
    pub(super) fn new(errno: Errno, explanation: impl Into<String>) -> Self {
        Error { errno, explanation: explanation.into(), is_answer_lost: false, is_unsent: false }
    }

    /// The same error, of a request that the kernel has got.
    pub(super) fn with_lost_answer(self) -> Self {
        Error { is_answer_lost: true, ..self }
    }

    /// The same error, of a request that could not be sent.
    pub(super) fn unsent(self) -> Self {
        Error { is_unsent: true, ..self }
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
        write!(f, "{}", self.errno.desc().to_lowercase())?;
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

/// The error in the body of an `NLMSG_ERROR` or `NLMSG_DONE`. `None` if errno is 0.
pub(crate) fn read(flags: u16, body: &[u8]) -> Option<Error> {
    let errno = i32::from_ne_bytes(u32_at(body, 0).to_ne_bytes());
    if errno == 0 {
        return None;
    }
    let mut explanation = String::new();
    if flags & F_ACK_TLVS != 0 {
        // After errno the body has the failed request: its header if capped, otherwise all of it.
        let request = if flags & F_CAPPED != 0 { HEADER } else { u32_at(body, 4) as usize };
        let tlvs = body.get(4 + request..).unwrap_or_default();
        if let Some((_, value)) = attrs(tlvs).find(|(kind, _)| *kind == ATTR_MSG) {
            explanation = text(value);
        }
    }
    Some(Error::new(Errno::from_raw(errno.wrapping_neg()), explanation))
}
