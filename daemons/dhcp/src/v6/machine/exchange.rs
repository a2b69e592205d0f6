//! How often each message is sent until an answer comes.
//!
//! # References
//! RFC 8415, sections 7.6 and 15.

use super::super::duid::Duid;
use super::super::lease::Lease;
use super::super::message::{Kind, build};
use super::{Machine, State};
use crate::action::{Action, Way};
use crate::lease::Millis;

/// How a message is repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The first wait for an answer. It doubles with each message.
    first: Millis,
    /// The longest wait.
    longest: Millis,
    /// How often the message is sent.
    pub(super) times: u32,
}

/// The RFC's values, with one exception: Release is sent twice, not four times, because DEL waits for it.
pub(super) const fn pace(kind: Kind) -> Pace {
    let (first, longest, times) = match kind {
        Kind::Solicit => (1000, 3_600_000, u32::MAX),
        Kind::Request => (1000, 30_000, 10),
        Kind::Confirm => (1000, 4000, u32::MAX),
        Kind::Renew | Kind::Rebind => (10_000, 600_000, u32::MAX),
        Kind::Release => (1000, Millis::MAX, 2),
        Kind::Decline => (1000, Millis::MAX, 4),
    };
    Pace { first, longest, times }
}

/// A message that is repeated until an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Try {
    pub(super) xid: u32,
    began: Millis,
    /// When the exchange ends.
    pub(super) until: Millis,
    /// How many messages were sent.
    pub(super) sent: u32,
    /// When the last message was sent.
    pub(super) sent_at: Millis,
    /// Until when an answer to it is awaited; 0: not now.
    pub(super) listen_until: Millis,
    /// The wait before the next message, and when that is due.
    wait: Millis,
    next: Millis,
}

impl Try {
    /// The same without sockets.
    pub(super) fn quiet(self) -> Self {
        Try { listen_until: 0, ..self }
    }

    /// The last message has left only now.
    pub(super) fn delay(&mut self, now: Millis) {
        let late = now.saturating_sub(self.sent_at);
        self.listen_until = self.listen_until.saturating_add(late);
        self.next = self.next.saturating_add(late);
    }

    /// When the next message is due, or the end.
    pub(super) fn due(&self) -> Millis {
        self.next.min(self.until)
    }
}

impl Machine {
    /// Begins an exchange after a pause.
    pub(super) fn start(&mut self, kind: Kind, now: Millis, pause: Millis, until: Millis) -> Vec<Action> {
        let next = now.saturating_add(pause);
        let xid = (self.random)() & 0x00ff_ffff;
        let this = Try { xid, began: next, until, sent: 0, sent_at: now, listen_until: 0, wait: 0, next };
        self.best = None;
        self.state = State::Exchange(kind, this);
        if pause == 0 { self.send(kind, this, now) } else { Vec::new() }
    }

    /// Sends the message and sets the time of the next one.
    pub(super) fn send(&mut self, kind: Kind, this: Try, now: Millis) -> Vec<Action> {
        let elapsed = u16::try_from(now.saturating_sub(this.began) / 10).unwrap_or(u16::MAX);
        let address = self.subject(kind).map(|lease| lease.address);
        let message = build(&self.client, kind, this.xid, elapsed, self.asked(kind), address);
        let Pace { first, longest, .. } = pace(kind);
        let (wait, spread) = match this.sent {
            0 => (first, first / 10),
            _ if this.wait.saturating_mul(2) > longest => (longest, longest / 10),
            _ => (this.wait * 2, this.wait / 10),
        };
        // The first Solicit is never repeated early: other servers may still make offers.
        let least = if kind == Kind::Solicit && this.sent == 0 { wait + 1 } else { wait - spread };
        let wait = least + Millis::from((self.random)()) % (wait + spread - least + 1);
        self.state = State::Exchange(
            kind,
            Try {
                sent: this.sent.saturating_add(1),
                sent_at: now,
                listen_until: now.saturating_add(wait.min(self.timing.answer)),
                wait,
                next: now.saturating_add(wait),
                ..this
            },
        );
        vec![Action::Send { way: Way::Multicast, message }]
    }

    /// The lease that a message is about.
    fn subject(&self, kind: Kind) -> Option<&Lease> {
        match kind {
            Kind::Solicit | Kind::Confirm | Kind::Renew | Kind::Rebind => self.lease.as_ref(),
            Kind::Request => self.offer.as_ref(),
            Kind::Release | Kind::Decline => self.returned.as_ref(),
        }
    }

    /// The server that a message names, which alone may answer. None: all servers.
    pub(super) fn asked(&self, kind: Kind) -> Option<&Duid> {
        let is_for_one = matches!(kind, Kind::Request | Kind::Renew | Kind::Release | Kind::Decline);
        self.subject(kind).filter(|_| is_for_one).map(|lease| &lease.server)
    }
}
