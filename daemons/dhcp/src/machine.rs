//! The life of one IPv4 lease as a state machine. Pure: it gets the time and the server's answers, and returns what to do.
//!
//! ```text
//! Selecting --OFFER--> Requesting --ACK--> Bound --T1--> Renewing --T2--> Rebinding --expiry--> Ended
//!     ^                    |NAK              ^------ACK-----|-------ACK-------|
//!     +--------------------+                 +--ACK-- Rebooting <-- Bound, if it wakes after the expiry
//! ```
//!
//! A NAK to a bound client leads to Selecting once more, but only for the same address: nobody would tell the container of
//! another one.
//!
//! # References
//! RFC 2131, sections 4.4.1 to 4.4.6.

mod renewal;
#[cfg(test)]
mod tests;

use crate::action::{Action, Peer, Timing, Way};
use crate::lease::{Lease, Millis, NEVER};
use crate::message::{Client, Kind, Reply, Verdict, build};

/// How the failure begins if no server has given an address. The reference's tests compare it.
pub(crate) const NO_MORE_TRIES: &str = "no more tries";
/// The first wait for an answer. It doubles with each message.
const FIRST_WAIT: Millis = 500;
/// How often a request for an offered address is sent.
const REQUESTS: u32 = 5;
/// The pause after the first NAK to a new client. It doubles with each NAK.
const FIRST_PAUSE: Millis = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Selecting(Try),
    Requesting(Try, Box<Lease>),
    Rebooting(Try),
    Bound,
    Renewing(Renewal),
    Rebinding(Renewal),
    Ended,
}

/// An exchange that is repeated until an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Try {
    xid: u32,
    began: Millis,
    /// When the exchange ends.
    until: Millis,
    /// How many messages were sent.
    sent: u32,
    /// When the last message was sent.
    sent_at: Millis,
    /// When the next message is due.
    next: Millis,
    /// How many NAKs came.
    refused: u32,
}

/// One message that prolongs the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Renewal {
    xid: u32,
    began: Millis,
    sent_at: Millis,
    /// Until when an answer is awaited.
    listen_until: Millis,
    /// When the next message is due.
    next: Millis,
}

/// The state machine of a lease.
pub(crate) struct Machine {
    client: Client,
    timing: Timing,
    random: Box<dyn FnMut() -> u32>,
    state: State,
    lease: Option<Lease>,
    /// The last offer that was requested. A lost ACK means that the server has given the address.
    offer: Option<Lease>,
    /// An offer to a container that has a lease, from another server than the lease's own. It is taken if that one makes none.
    other: Option<Lease>,
    /// Another server's ACK to a request to all servers, and from where it came. It counts if the lease's own server gives none.
    held: Option<(Box<Reply>, [u8; 6])>,
    /// The transaction whose refusal has led to a search for the lease's address, and when its message was sent.
    earlier: Option<(u32, Millis)>,
    /// Whether the lease's own server has ended it. If the search that follows fails, the lease ends.
    is_withdrawn: bool,
    /// Why the last answer was ignored, and its transaction ID.
    ignored: Option<(u32, String)>,
}

impl Machine {
    fn new(
        client: Client,
        timing: Timing,
        random: Box<dyn FnMut() -> u32>,
        state: State,
        lease: Option<Lease>,
    ) -> Self {
        Machine {
            client,
            timing,
            random,
            state,
            lease,
            offer: None,
            other: None,
            held: None,
            earlier: None,
            is_withdrawn: false,
            ignored: None,
        }
    }

    /// Looks for a lease for at most `limit` milliseconds.
    pub(crate) fn acquire(
        client: Client,
        timing: Timing,
        limit: Millis,
        random: Box<dyn FnMut() -> u32>,
        now: Millis,
    ) -> (Self, Vec<Action>) {
        let mut machine = Machine::new(client, timing, random, State::Ended, None);
        let log = Action::Log("acquiring lease".to_owned());
        let actions = machine.select(now, now.saturating_add(limit), 0, 0);
        (machine, [vec![log], actions].concat())
    }

    /// Goes on with a lease from the disk. [`Machine::wake`] returns the actions that are due.
    pub(crate) fn resume(
        client: Client,
        timing: Timing,
        lease: Lease,
        random: Box<dyn FnMut() -> u32>,
    ) -> Self {
        Machine::new(client, timing, random, State::Bound, Some(lease))
    }

    /// The lease, or the offer that may become one.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref().or(self.offer.as_ref())
    }

    /// The client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the container may use the address.
    pub(crate) fn is_bound(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether there is nothing more to do.
    pub(crate) fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether an answer may come.
    pub(crate) fn is_listening(&self) -> bool {
        match &self.state {
            State::Selecting(this) => this.sent > 0,
            State::Requesting(..) | State::Rebooting(_) => true,
            State::Renewing(this) | State::Rebinding(this) => this.listen_until != 0,
            State::Bound | State::Ended => false,
        }
    }

    /// When [`Machine::wake`] is due.
    pub(crate) fn deadline(&self) -> Millis {
        match &self.state {
            State::Selecting(this) | State::Requesting(this, _) | State::Rebooting(this) => {
                this.next.min(this.until)
            }
            State::Bound => self.lease.as_ref().map_or(NEVER, |lease| lease.renew_at),
            State::Renewing(this) | State::Rebinding(this) => {
                if this.listen_until == 0 {
                    this.next
                } else {
                    this.listen_until.min(this.next)
                }
            }
            State::Ended => NEVER,
        }
    }

    /// The time has come. Safe to call too early.
    pub(crate) fn wake(&mut self, now: Millis) -> Vec<Action> {
        if now < self.deadline() {
            return Vec::new();
        }
        match self.state.clone() {
            State::Selecting(this) if now >= this.until => self.give_up(now),
            State::Selecting(this) => match self.other.take() {
                Some(offer) => self.accept(this, offer, now),
                None => self.discover(this, now),
            },
            State::Requesting(this, _) if now >= this.until => self.give_up(now),
            State::Requesting(this, _) if this.sent >= REQUESTS => {
                self.select(now, this.until, 0, this.refused)
            }
            State::Requesting(this, offered) => self.request(this, offered, now),
            State::Rebooting(this) if now >= this.until => self.expire(),
            State::Rebooting(this) => self.reboot(this, now),
            State::Bound => self.wake_bound(now),
            State::Renewing(this) | State::Rebinding(this) if now < this.next || self.held.is_some() => {
                self.unanswered(this)
            }
            State::Renewing(this) | State::Rebinding(this) => self.renew(now, Some(this)),
            State::Ended => Vec::new(),
        }
    }

    /// The last message has left only now.
    pub(crate) fn sent(&mut self, now: Millis) {
        match &mut self.state {
            State::Selecting(this) | State::Requesting(this, _) | State::Rebooting(this) => {
                this.next = this.next.saturating_add(now.saturating_sub(this.sent_at));
            }
            State::Renewing(this) | State::Rebinding(this) => {
                this.listen_until = this.listen_until.saturating_add(now.saturating_sub(this.sent_at));
            }
            State::Bound | State::Ended => {}
        }
    }

    /// An answer of a server has come from this MAC address.
    pub(crate) fn receive(&mut self, reply: &Reply, from: [u8; 6], now: Millis) -> Vec<Action> {
        if let Some(actions) = self.late(reply, from, now) {
            return actions;
        }
        match self.state.clone() {
            State::Selecting(this) if this.sent > 0 && reply.xid == this.xid => {
                self.offered(this, reply, from, now)
            }
            State::Requesting(this, offer) if reply.xid == this.xid && reply.server == Some(offer.server) => {
                match reply.verdict {
                    Verdict::Ack if reply.address != offer.address => {
                        self.ignore(reply, format!("gives {} instead of {}", reply.address, offer.address))
                    }
                    Verdict::Ack => self.acknowledged(reply, from, this.sent_at, "acquired"),
                    Verdict::Nak => {
                        let refused = this.refused + 1;
                        let pause = (FIRST_PAUSE << refused.min(16).saturating_sub(1)).min(self.timing.pause);
                        let log = Action::Log(format!(
                            "{} refuses {}: {}",
                            offer.server, offer.address, reply.text
                        ));
                        let actions = self.select(now, this.until, pause, refused);
                        [vec![log], actions].concat()
                    }
                    Verdict::Offer => Vec::new(),
                }
            }
            State::Rebooting(this) if reply.xid == this.xid => self.prolonged(reply, from, this.sent_at, now),
            State::Renewing(this) if reply.xid == this.xid && this.listen_until != 0 => {
                // The request went to one server.
                match self.lease.as_ref().map(|lease| lease.server) {
                    Some(server) if reply.server.is_some_and(|other| other != server) => {
                        self.ignore(reply, format!("answers instead of {server}"))
                    }
                    _ => self.prolonged(reply, from, this.sent_at, now),
                }
            }
            State::Rebinding(this) if reply.xid == this.xid && this.listen_until != 0 => {
                self.prolonged(reply, from, this.sent_at, now)
            }
            _ => Vec::new(),
        }
    }

    /// Gives the lease back and ends. Also gives back an address that the server may have given already.
    pub(crate) fn release(&mut self) -> Vec<Action> {
        let lease = self.lease().cloned();
        self.state = State::Ended;
        let Some(lease) = lease else { return Vec::new() };
        (self.lease, self.offer) = (None, None);
        let kind = Kind::Release { address: lease.address, server: lease.server };
        let message = build(&self.client, kind, (self.random)(), 0);
        vec![
            Action::Log("releasing lease".to_owned()),
            Action::Send { way: Way::Direct(Peer::from(&lease)), message },
        ]
    }

    /// Ends without a message: the container is gone.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    fn select(&mut self, now: Millis, until: Millis, pause: Millis, refused: u32) -> Vec<Action> {
        let xid = (self.random)();
        let next = now.saturating_add(pause);
        let this = Try { xid, began: now, until, sent: 0, sent_at: now, next, refused };
        self.other = None;
        self.state = State::Selecting(this);
        if pause == 0 { self.discover(this, now) } else { Vec::new() }
    }

    fn discover(&mut self, this: Try, now: Millis) -> Vec<Action> {
        let wanted = self.lease.as_ref().map(|lease| lease.address);
        let (this, send) = self.send(this, Kind::Discover { wanted }, now);
        self.state = State::Selecting(this);
        vec![send]
    }

    fn offered(&mut self, this: Try, reply: &Reply, from: [u8; 6], now: Millis) -> Vec<Action> {
        let is_wanted = self.lease.as_ref().is_none_or(|lease| lease.address == reply.address);
        if reply.verdict != Verdict::Offer || !is_wanted {
            return Vec::new();
        }
        // An offer may omit the mask; the ACK decides.
        let offer = match Lease::of(reply, Some(32), from, now) {
            Ok(offer) => offer,
            Err(why) => return self.ignore(reply, why),
        };
        if !self.is_bound() || self.is_own(offer.server, now) {
            return self.accept(this, offer, now);
        }
        // Each machine on the link can make an offer. The lease's own server has as long as the first wait for an answer.
        self.other.get_or_insert(offer);
        Vec::new()
    }

    fn accept(&mut self, this: Try, offer: Lease, now: Millis) -> Vec<Action> {
        self.offer = Some(offer.clone());
        // The request has the `secs` of the message that was answered: relays forward both to the same servers (RFC 2131, section 3.1).
        let this = Try { sent: 0, began: this.began + (now - this.sent_at), ..this };
        // Saved first: if the daemon is killed, the next one knows which address to give back.
        let mut actions = self.request(this, Box::new(offer), now);
        actions.insert(0, Action::Save);
        actions
    }

    fn request(&mut self, this: Try, offer: Box<Lease>, now: Millis) -> Vec<Action> {
        let kind = Kind::Select { address: offer.address, server: offer.server };
        let (this, send) = self.send(this, kind, now);
        self.state = State::Requesting(this, offer);
        vec![send]
    }

    fn reboot(&mut self, this: Try, now: Millis) -> Vec<Action> {
        let Some(address) = self.lease.as_ref().map(|lease| lease.address) else { return self.give_up(now) };
        let (this, send) = self.send(this, Kind::Reboot { address }, now);
        self.state = State::Rebooting(this);
        vec![send]
    }

    /// Broadcasts a message and sets the time of the next: twice as long after this one as before, give or take a tenth.
    fn send(&mut self, this: Try, kind: Kind, now: Millis) -> (Try, Action) {
        let message = build(&self.client, kind, this.xid, seconds(now - this.began));
        let wait = (FIRST_WAIT << this.sent.min(16)).min(self.timing.answer);
        let jitter = Millis::from((self.random)()) % (wait / 5 + 1);
        let next = now.saturating_add(wait - wait / 10 + jitter);
        (
            Try { sent: this.sent + 1, sent_at: now, next, ..this },
            Action::Send { way: Way::Broadcast, message },
        )
    }

    /// Ignores an answer. Only the first one of an exchange gets a line in the log: a thousand may come in a second.
    fn ignore(&mut self, reply: &Reply, why: String) -> Vec<Action> {
        let is_first = self.ignored.as_ref().is_none_or(|(xid, _)| *xid != reply.xid);
        let server = reply.server.map_or("a server".to_owned(), |server| server.to_string());
        let why = if why.starts_with(&server) { why } else { format!("{server} {why}") };
        let log = Action::Log(format!("{why}: ignored"));
        self.ignored = Some((reply.xid, why));
        if is_first { vec![log] } else { Vec::new() }
    }

    fn give_up(&mut self, now: Millis) -> Vec<Action> {
        if let Some(lease) = &self.lease {
            let is_over = self.is_withdrawn || now >= lease.expires_at;
            return if is_over { self.expire() } else { self.keep(now) };
        }
        // A lost ACK: the server may have given the address.
        let mut actions = self.release();
        let why = self.ignored.take().map_or(String::new(), |(_, why)| format!("; {why}"));
        actions.push(Action::Fail(format!("{NO_MORE_TRIES}{why}")));
        actions
    }
}

fn seconds(millis: Millis) -> u16 {
    u16::try_from(millis / 1000).unwrap_or(u16::MAX)
}
