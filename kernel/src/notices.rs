//! Waits for the kernel's messages about changes in this network namespace.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::libc::{MSG_DONTWAIT, MSG_TRUNC};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;

use crate::netlink::message::{Received, messages};
use crate::netlink::{self, notice};
use crate::nftables;

/// The receive buffer of each socket in bytes. A flush of a ruleset of 10,000 rules fits.
const BUFFER: usize = 8 * 1024 * 1024;
/// The longest datagram in bytes that the kernel sends to a group.
const DATAGRAM: usize = 64 * 1024;
/// The most datagrams of one call.
const MOST: usize = 1024;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Of a link, its addresses or its qdiscs.
    Link(notice::Notice),
    /// Of the ruleset.
    Ruleset(nftables::notice::Notice),
    /// The kernel has dropped messages: anything may have changed.
    Lost,
}

/// A socket that gets the messages of some groups of one protocol. It belongs to the network namespace in which it was opened.
pub struct Messages {
    socket: Socket,
    datagram: Vec<u8>,
}

impl Messages {
    /// A socket for groups of rtnetlink, `RTNLGRP_*`. Each change from now on gets a message.
    ///
    /// # Errors
    /// The kernel refuses a group.
    pub fn of_route(groups: &[u32]) -> Result<Self, netlink::Error> {
        Messages::open(NETLINK_ROUTE, groups)
    }

    /// A socket for changes of the ruleset.
    ///
    /// # Errors
    /// The kernel has no nf_tables.
    pub fn of_ruleset() -> Result<Self, netlink::Error> {
        Messages::open(NETLINK_NETFILTER, &[nftables::notice::GROUP])
    }

    fn open(protocol: isize, groups: &[u32]) -> Result<Self, netlink::Error> {
        let mut socket = Socket::new(protocol)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        // Without CAP_NET_ADMIN the buffer keeps its size, and messages are lost sooner.
        let _ = setsockopt(&socket, RcvBufForce, &BUFFER);
        groups.iter().try_for_each(|group| socket.add_membership(*group))?;
        Ok(Messages { socket, datagram: Vec::with_capacity(DATAGRAM) })
    }

    /// Passes on the messages that are there, of 1024 datagrams at most. Waits for none. `None` if the kernel has dropped messages.
    /// Returns whether there may be more.
    ///
    /// # Errors
    /// That of a system call.
    pub fn receive(&mut self, mut each: impl FnMut(Option<&Received<'_>>)) -> io::Result<bool> {
        let Messages { socket, datagram } = self;
        for _ in 0..MOST {
            datagram.clear();
            match socket.recv_from(datagram, MSG_DONTWAIT | MSG_TRUNC) {
                // A process may send to a group, too.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok((len, _)) if len > datagram.len() => each(None),
                Ok(_) => messages(datagram).for_each(|message| each(Some(&message))),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => each(None),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl AsFd for Messages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Messages {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The messages about links and about the ruleset.
pub struct Notices {
    route: Messages,
    ruleset: Messages,
}

impl Notices {
    /// Opens the sockets. Each change from now on gets a message.
    ///
    /// # Errors
    /// The kernel has no nf_tables or no rtnetlink, or refuses the groups.
    pub fn open() -> Result<Self, netlink::Error> {
        Ok(Notices { route: Messages::of_route(&notice::GROUPS)?, ruleset: Messages::of_ruleset()? })
    }

    /// Waits for messages until the limit or until a signal. Returns those that have come.
    ///
    /// # Errors
    /// That of a system call.
    pub fn wait(&mut self, limit: Duration) -> Result<Vec<Notice>, netlink::Error> {
        let mut sockets =
            [&self.route, &self.ruleset].map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
        // Rounded up: a shorter wait would end before the caller has something to do.
        let limit = PollTimeout::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
        match poll(&mut sockets, limit) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut found = Vec::new();
        self.route.receive(|message| {
            found.extend(
                message
                    .map_or(Some(Notice::Lost), |message| notice::Notice::parse(message).map(Notice::Link)),
            );
        })?;
        self.ruleset.receive(|message| {
            let parse = |message| nftables::notice::Notice::parse(message).map(Notice::Ruleset);
            found.extend(message.map_or(Some(Notice::Lost), parse));
        })?;
        Ok(found)
    }
}
