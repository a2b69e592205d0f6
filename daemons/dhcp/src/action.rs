//! What the state machine of a lease wants to be done.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::frame::BROADCAST;
use crate::lease::{Lease, Millis};

/// Limits of the daemon's flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// The longest wait for an answer to one message.
    pub(crate) answer: Millis,
    /// The longest pause between two attempts.
    pub(crate) pause: Millis,
    /// The limit for one lease or one renewal.
    pub(crate) limit: Millis,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To 255.255.255.255, from 0.0.0.0.
    Broadcast,
    /// From the leased address to the server, by the container's routes if it has the address.
    Unicast(Peer),
    /// From the leased address to the server, without a wait for its MAC address: the link may go at any time.
    Direct(Peer),
    /// To all DHCPv6 servers of the link, from the link-local address.
    Multicast,
}

/// The ends of a unicast message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The leased address.
    pub(crate) address: Ipv4Addr,
    pub(crate) server: Ipv4Addr,
    /// The destination of a frame, if the kernel does not find it out.
    pub(crate) mac: [u8; 6],
}

impl From<&Lease> for Peer {
    /// A server on the link is reached by a broadcast frame: its MAC address may have changed, such as that of a bridge when
    /// a port is added.
    fn from(lease: &Lease) -> Self {
        let network =
            |address: Ipv4Addr| u32::from(address).checked_shr(32 - u32::from(lease.prefix)).unwrap_or(0);
        let is_on_link = network(lease.address) == network(lease.server);
        let mac = if is_on_link { BROADCAST } else { lease.server_mac };
        Peer { address: lease.address, server: lease.server, mac }
    }
}

/// What a machine wants to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this message.
    Send { way: Way, message: Vec<u8> },
    /// Write the lease to the disk. It is not confirmed yet while the machine is not bound.
    Save,
    /// A line for the log.
    Log(String),
    /// Find out whether another host has this address. Always the last one.
    Probe(Ipv6Addr),
    /// The lease is there, or is prolonged.
    Bound,
    /// There is no lease, because of this.
    Fail(String),
    /// The address must not be used any longer.
    Expire,
}
