//! Waits for the kernel's messages about changes in this network namespace.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
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

/// Two sockets that get the messages. They belong to the network namespace in which they were opened.
pub struct Notices {
    route: Socket,
    netfilter: Socket,
    datagram: Vec<u8>,
}

impl Notices {
    /// Opens the sockets. Each change from now on gets a message.
    ///
    /// # Errors
    /// The kernel has no nf_tables or no rtnetlink, or refuses the groups.
    pub fn open() -> Result<Self, netlink::Error> {
        let open = |protocol, groups: &[u32]| -> Result<Socket, netlink::Error> {
            let mut socket = Socket::new(protocol)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            // Without CAP_NET_ADMIN the buffer keeps its size, and messages are lost sooner.
            let _ = setsockopt(&socket, RcvBufForce, &BUFFER);
            groups.iter().try_for_each(|group| socket.add_membership(*group))?;
            Ok(socket)
        };
        Ok(Notices {
            route: open(NETLINK_ROUTE, &notice::GROUPS)?,
            netfilter: open(NETLINK_NETFILTER, &[nftables::notice::GROUP])?,
            datagram: Vec::with_capacity(DATAGRAM),
        })
    }

    /// Waits for messages until the limit or until a signal. Returns those that have come.
    ///
    /// # Errors
    /// That of a system call.
    pub fn wait(&mut self, limit: Duration) -> Result<Vec<Notice>, netlink::Error> {
        let mut sockets =
            [&self.route, &self.netfilter].map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
        // Rounded up: a shorter wait would end before the caller has something to do.
        let limit = PollTimeout::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX);
        match poll(&mut sockets, limit) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut found = Vec::new();
        let Notices { route, netfilter, datagram } = self;
        receive(route, datagram, &mut found, |message| notice::Notice::parse(message).map(Notice::Link))?;
        let of_ruleset = |message: &Received<'_>| nftables::notice::Notice::parse(message);
        receive(netfilter, datagram, &mut found, |message| of_ruleset(message).map(Notice::Ruleset))?;
        Ok(found)
    }
}

/// Adds the notices of all datagrams that are there.
fn receive(
    socket: &Socket,
    datagram: &mut Vec<u8>,
    found: &mut Vec<Notice>,
    parse: impl Fn(&Received<'_>) -> Option<Notice>,
) -> io::Result<()> {
    for _ in 0..MOST {
        datagram.clear();
        match socket.recv_from(datagram, MSG_DONTWAIT | MSG_TRUNC) {
            // A process may send to a group, too.
            Ok((_, sender)) if sender.port_number() != 0 => {}
            Ok((len, _)) if len > datagram.len() => found.push(Notice::Lost),
            Ok(_) => found.extend(messages(datagram).filter_map(|message| parse(&message))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => found.push(Notice::Lost),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
