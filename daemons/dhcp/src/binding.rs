//! What client and server have agreed on, in either family, and the state machine of it. Pure.

use ferrule_dhcp::wire::{self, Family, Key};
use serde::{Deserialize, Serialize};

use crate::action::{Action, Timing};
use crate::lease::{Lease, Millis};
use crate::machine::Machine;
use crate::message::{self, Client};
use crate::{frame, v6};

/// The identity of a lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) key: Key,
    pub(crate) family: Family,
}

impl Id {
    /// The text with which the daemon's messages about this lease begin.
    pub(crate) fn name(&self) -> String {
        let end = if self.family == Family::Ipv6 { " IPv6" } else { "" };
        message::name(&self.key) + end
    }
}

/// The client and its lease. In a state file the addresses tell the family; that of IPv4 is as old as the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Binding {
    V4 { client: Client, lease: Lease },
    V6 { client: v6::message::Client, lease: v6::lease::Lease },
}

impl Binding {
    pub(crate) fn family(&self) -> Family {
        match self {
            Binding::V4 { .. } => Family::Ipv4,
            Binding::V6 { .. } => Family::Ipv6,
        }
    }

    pub(crate) fn expires_at(&self) -> Millis {
        match self {
            Binding::V4 { lease, .. } => lease.expires_at,
            Binding::V6 { lease, .. } => lease.expires_at,
        }
    }

    /// What the container gets.
    pub(crate) fn settings(&self) -> &wire::Lease {
        match self {
            Binding::V4 { lease, .. } => &lease.settings,
            Binding::V6 { lease, .. } => &lease.settings,
        }
    }
}

/// What a client needs for a lease of each family.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    pub(crate) options: wire::Options,
    pub(crate) rapid_commit: bool,
}

/// A number for transaction IDs and jitter.
pub(crate) type Random = Box<dyn FnMut() -> u32>;

/// The state machine of a lease of either family.
pub(crate) enum Protocol {
    V4(Box<Machine>),
    V6(Box<v6::machine::Machine>),
}

macro_rules! either {
    ($protocol:expr, $machine:ident => $work:expr) => {
        match $protocol {
            Protocol::V4($machine) => $work,
            Protocol::V6($machine) => $work,
        }
    };
}

impl Protocol {
    /// Looks for a lease for at most `limit` milliseconds.
    pub(crate) fn acquire(
        id: &Id,
        mac: [u8; 6],
        wishes: Wishes,
        (timing, limit): (Timing, Millis),
        random: Random,
        now: Millis,
    ) -> (Self, Vec<Action>) {
        match id.family {
            Family::Ipv4 => {
                let client = Client::new(mac, &id.key, wishes.options);
                let (machine, actions) = Machine::acquire(client, timing, limit, random, now);
                (Protocol::V4(Box::new(machine)), actions)
            }
            Family::Ipv6 => {
                let client = v6::message::Client::new(&id.key, wishes.rapid_commit);
                let (machine, actions) = v6::machine::Machine::acquire(client, timing, limit, random, now);
                (Protocol::V6(Box::new(machine)), actions)
            }
        }
    }

    /// Goes on with a lease from the disk. [`Protocol::wake`] returns the actions that are due.
    pub(crate) fn resume(binding: Binding, timing: Timing, random: Random, now: Millis) -> Self {
        match binding {
            Binding::V4 { client, lease } => {
                Protocol::V4(Box::new(Machine::resume(client, timing, lease, random)))
            }
            Binding::V6 { client, lease } => {
                let machine = v6::machine::Machine::resume(client, timing, lease, random, now);
                Protocol::V6(Box::new(machine))
            }
        }
    }

    /// What the state file keeps: the lease, or the offer that may become one.
    pub(crate) fn binding(&self) -> Option<Binding> {
        Some(match self {
            Protocol::V4(machine) => {
                Binding::V4 { client: machine.client().clone(), lease: machine.lease()?.clone() }
            }
            Protocol::V6(machine) => {
                Binding::V6 { client: machine.client().clone(), lease: machine.lease()?.clone() }
            }
        })
    }

    /// Whether the container may use the address.
    pub(crate) fn is_bound(&self) -> bool {
        either!(self, machine => machine.is_bound())
    }

    /// Whether there is nothing more to do.
    pub(crate) fn has_ended(&self) -> bool {
        either!(self, machine => machine.has_ended())
    }

    /// Whether it waits for a server to confirm the release. DHCPv4 has no such answer.
    pub(crate) fn is_releasing(&self) -> bool {
        matches!(self, Protocol::V6(machine) if machine.is_releasing())
    }

    /// Whether an answer may come.
    pub(crate) fn is_listening(&self) -> bool {
        either!(self, machine => machine.is_listening())
    }

    /// When [`Protocol::wake`] is due.
    pub(crate) fn deadline(&self) -> Millis {
        either!(self, machine => machine.deadline())
    }

    /// The time has come. Safe to call too early.
    pub(crate) fn wake(&mut self, now: Millis) -> Vec<Action> {
        either!(self, machine => machine.wake(now))
    }

    /// The last message has left only now: on a busy machine it takes long to open the sockets. The wait for its answer begins.
    pub(crate) fn sent(&mut self, now: Millis) {
        either!(self, machine => machine.sent(now));
    }

    /// These bytes have come through the sockets: a frame with DHCPv4, or a message of DHCPv6.
    pub(crate) fn receive(&mut self, bytes: &[u8], now: Millis) -> Vec<Action> {
        let actions = match self {
            Protocol::V4(machine) => frame::parse(bytes).and_then(|(mac, content)| {
                let reply = message::parse(machine.client(), content)?;
                Some(machine.receive(&reply, mac, now))
            }),
            Protocol::V6(machine) => {
                v6::message::parse(machine.client(), bytes).map(|reply| machine.receive(&reply, now))
            }
        };
        actions.unwrap_or_default()
    }

    /// The outcome of [`Action::Probe`], which only DHCPv6 wants.
    pub(crate) fn probed(&mut self, is_free: bool, now: Millis) -> Vec<Action> {
        match self {
            Protocol::V4(_) => Vec::new(),
            Protocol::V6(machine) => machine.probed(is_free, now),
        }
    }

    /// Gives the lease back and ends.
    pub(crate) fn release(&mut self, now: Millis) -> Vec<Action> {
        match self {
            Protocol::V4(machine) => machine.release(),
            Protocol::V6(machine) => machine.release(now),
        }
    }

    /// Ends without a message: the container is gone.
    pub(crate) fn end(&mut self) {
        either!(self, machine => machine.end());
    }
}
