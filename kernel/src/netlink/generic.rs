//! Generic netlink: families of requests that the kernel or its modules register by name.
//!
//! # References
//! linux/genetlink.h.

use nix::errno::Errno;

use super::error::Error;
use super::message::{Message, find_attr, u16_at};
use super::socket::Socket;

/// `GENL_ID_CTRL`: the family that knows the others.
const CONTROL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Length of `struct genlmsghdr`, which precedes the attributes of an answer.
pub const HEADER: usize = 4;

/// A socket for the requests of one family.
pub struct Family {
    /// The socket.
    pub socket: Socket,
    number: u16,
}

impl Family {
    /// Opens the socket in the caller's network namespace. The kernel loads the family's module.
    ///
    /// # Errors
    /// `ENOENT` if the kernel has no such family.
    pub fn open(name: &str) -> Result<Self, Error> {
        let mut socket = Socket::generic()?;
        let request = message(CONTROL, 0, CTRL_CMD_GETFAMILY).attr_text(CTRL_ATTR_FAMILY_NAME, name);
        let bodies = socket.request(request.one_answer())?;
        let id = bodies.first().and_then(|body| find_attr(body.get(HEADER..)?, CTRL_ATTR_FAMILY_ID));
        let number = id.map(|id| u16_at(id, 0)).ok_or_else(|| Error::from(Errno::EPROTO))?;
        Ok(Family { socket, number })
    }

    /// A request of the family, with flags of netlink such as [`F_DUMP`](super::message::F_DUMP).
    pub fn message(&self, command: u8, flags: u16) -> Message {
        message(self.number, flags, command)
    }

    /// As [`Family::message`], with attributes that another encoder has made.
    pub fn encoded(&self, command: u8, flags: u16, attributes: &[u8]) -> Message {
        Message::new(self.number, flags, &[&header(command), attributes].concat())
    }
}

/// `struct genlmsghdr`
const fn header(command: u8) -> [u8; HEADER] {
    [command, 1, 0, 0]
}

/// A message with the header `struct genlmsghdr`.
pub(super) fn message(family: u16, flags: u16, command: u8) -> Message {
    Message::new(family, flags, &header(command))
}
