//! The life of one IPv6 lease as a state machine. Pure: it gets the time and the servers' answers, and returns what to do.
//!
//! ```text
//! Solicit --Advertise--> Request --Reply--> Probing --free--> Bound --T1--> Renew --T2--> Rebind --expiry--> Ended
//!    ^                      |                  | duplicate      ^             |             |
//!    |<------refused--------+                  v                +----Reply----+----Reply----+
//!    +--------------------------------------Decline             +--Confirm <-- a restart of the daemon
//! ```
//!
//! A server that no longer knows the lease of a bound client is asked for the same address again: no plugin would tell the
//! container of another one. Messages go to all servers by multicast; the option of a unicast address is ignored.
//!
//! The first Solicit is sent at once, not after a random pause: pods do not start all at the same moment, and ADD waits.
//!
//! # References
//! RFC 8415, sections 15 and 18.2.

mod exchange;
mod renewal;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::duid::Duid;
use super::lease::Lease;
use super::message::{Client, Kind, Reply, Status, Verdict};
use crate::action::{Action, Timing};
use crate::lease::{Millis, NEVER};
use crate::machine::NO_MORE_TRIES;
use exchange::{Try, pace};

/// The pause after the first refusal of a new client. It doubles with each one.
const FIRST_PAUSE: Millis = 1000;
/// The preference of a server that is taken at once.
const HIGHEST_PREFERENCE: u8 = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// A message is sent until an answer comes.
    Exchange(Kind, Try),
    /// Another host may have the address. If so, a new search ends at this time.
    Probing(Millis),
    Bound,
    Ended,
}

/// The state machine of a lease.
pub(crate) struct Machine {
    client: Client,
    timing: Timing,
    random: Box<dyn FnMut() -> u32>,
    state: State,
    lease: Option<Lease>,
    /// The best offer until now, and its server's preference.
    best: Option<(u8, Lease)>,
    /// The offer that was requested. A lost Reply means that the server has given the address.
    offer: Option<Lease>,
    /// What Release and Decline give back.
    returned: Option<Lease>,
    /// How often servers have refused an offer.
    refused: u32,
    /// The exchange in which a refusal has led to a search for the lease's address.
    earlier: Option<(Kind, Try)>,
    /// Whether the lease's own server has ended it. If the search that follows fails, the lease ends.
    is_withdrawn: bool,
    /// When a bound machine asks again, if a search was in vain.
    rest_until: Option<Millis>,
    /// Why the last answer was ignored, and its transaction ID.
    ignored: Option<(u32, String)>,
    /// The codes of options of the last lease with something that no container can use.
    unusable: BTreeSet<u16>,
}

impl Machine {
    fn new(client: Client, timing: Timing, random: Box<dyn FnMut() -> u32>) -> Self {
        Machine {
            client,
            timing,
            random,
            state: State::Bound,
            lease: None,
            best: None,
            offer: None,
            returned: None,
            refused: 0,
            earlier: None,
            is_withdrawn: false,
            rest_until: None,
            ignored: None,
            unusable: BTreeSet::new(),
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
        let mut machine = Machine::new(client, timing, random);
        let mut actions = vec![Action::Log("acquiring lease".to_owned())];
        actions.extend(machine.start(Kind::Solicit, now, 0, now.saturating_add(limit)));
        (machine, actions)
    }

    /// Goes on with a lease from the disk. Before T1 it asks the servers whether the address still fits the link, which may be
    /// another one by now. [`Machine::wake`] returns the actions that are due.
    pub(crate) fn resume(
        client: Client,
        timing: Timing,
        lease: Lease,
        random: Box<dyn FnMut() -> u32>,
        now: Millis,
    ) -> Self {
        let is_before_t1 = now < lease.renew_at;
        let mut machine = Machine { lease: Some(lease), ..Machine::new(client, timing, random) };
        if is_before_t1 {
            machine.confirm(now);
        }
        machine
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

    /// Whether it waits for the answer to a Release.
    pub(crate) fn is_releasing(&self) -> bool {
        matches!(self.state, State::Exchange(Kind::Release, _))
    }

    /// Whether an answer may come.
    pub(crate) fn is_listening(&self) -> bool {
        matches!(&self.state, State::Exchange(_, this) if this.listen_until != 0)
    }

    /// When [`Machine::wake`] is due.
    pub(crate) fn deadline(&self) -> Millis {
        match &self.state {
            State::Exchange(_, this) if this.listen_until != 0 => this.due().min(this.listen_until),
            State::Exchange(_, this) => this.due(),
            State::Bound => self.lease.as_ref().map_or(NEVER, |lease| {
                lease.renew_at.max(self.rest_until.map_or(0, |rest| rest.min(lease.expires_at)))
            }),
            State::Probing(_) | State::Ended => NEVER,
        }
    }

    /// The time has come. Safe to call too early.
    pub(crate) fn wake(&mut self, now: Millis) -> Vec<Action> {
        if now < self.deadline() {
            return Vec::new();
        }
        match self.state.clone() {
            State::Exchange(Kind::Rebind, this) if self.best.is_some() => self.take_best(&this),
            State::Exchange(kind, this) if now < this.due() => {
                // No answer. The sockets close until the next message.
                self.state = State::Exchange(kind, this.quiet());
                Vec::new()
            }
            State::Exchange(Kind::Solicit, this) if now < this.until && self.best.is_some() => {
                self.request(this.until, now)
            }
            State::Exchange(kind, this) if now >= this.until || this.sent >= pace(kind).times => {
                self.unanswered(kind, this.until, now)
            }
            State::Exchange(kind, this) => self.send(kind, this, now),
            State::Bound => self.wake_bound(now),
            State::Probing(_) | State::Ended => Vec::new(),
        }
    }

    /// An exchange ends without an answer: it has lasted for too long, or its message was sent often enough.
    fn unanswered(&mut self, kind: Kind, until: Millis, now: Millis) -> Vec<Action> {
        match kind {
            Kind::Solicit | Kind::Request | Kind::Decline if now >= until => self.give_up(now),
            Kind::Solicit | Kind::Request | Kind::Decline => self.start(Kind::Solicit, now, 0, until),
            Kind::Confirm => {
                self.state = State::Bound;
                Vec::new()
            }
            Kind::Renew => self.rebind(now),
            Kind::Rebind => self.expire(),
            Kind::Release => {
                self.state = State::Ended;
                vec![Action::Log("no server has confirmed the release".to_owned())]
            }
        }
    }

    /// The last message has left only now.
    pub(crate) fn sent(&mut self, now: Millis) {
        if let State::Exchange(_, this) = &mut self.state {
            this.delay(now);
        }
    }

    /// An answer of a server.
    pub(crate) fn receive(&mut self, reply: &Reply, now: Millis) -> Vec<Action> {
        if let Some(actions) = self.late(reply, now) {
            return actions;
        }
        let State::Exchange(kind, this) = self.state.clone() else { return Vec::new() };
        if this.sent == 0 || reply.xid != this.xid {
            return Vec::new();
        }
        if let Some(server) = self.asked(kind).filter(|server| **server != reply.server) {
            let why = format!("{} answers instead of {server}", reply.server);
            return self.ignore(reply, why);
        }
        match (kind, reply.verdict) {
            (Kind::Solicit, Verdict::Advertise) => self.advertised(reply, &this, now),
            (Kind::Solicit, Verdict::Reply { rapid_commit: true })
                if self.client.rapid_commit && (!self.is_bound() || self.is_own(&reply.server, now)) =>
            {
                self.given(reply, &this)
            }
            (Kind::Solicit, _) | (_, Verdict::Advertise) => Vec::new(),
            (Kind::Request, _) if reply.status == Status::Success => self.given(reply, &this),
            (Kind::Request, _) => self.refuse(reply, this.until, now),
            (Kind::Confirm, _) => self.confirmed(reply, now),
            (Kind::Renew | Kind::Rebind, _) => self.prolonged(reply, &this, now),
            (Kind::Decline, _) => self.start(Kind::Solicit, now, 0, this.until),
            (Kind::Release, _) => {
                self.state = State::Ended;
                Vec::new()
            }
        }
    }

    /// Whether no other host has the address that [`Action::Probe`] names.
    pub(crate) fn probed(&mut self, is_free: bool, now: Millis) -> Vec<Action> {
        let State::Probing(until) = self.state else { return Vec::new() };
        let Some(lease) = self.offer.take() else { return Vec::new() };
        if is_free {
            return self.bound(lease, "acquired", now);
        }
        let why = format!("{} gives {}, which another host has", lease.server, lease.address);
        self.returned = Some(lease);
        let actions = self.start(Kind::Decline, now, 0, until);
        self.ignored = Some((0, why.clone()));
        [vec![Action::Log(format!("{why}: declined"))], actions].concat()
    }

    /// Gives the lease back. Also gives back an address that the server may have given already.
    pub(crate) fn release(&mut self, now: Millis) -> Vec<Action> {
        if self.is_releasing() {
            return Vec::new();
        }
        self.state = State::Ended;
        self.returned = self.lease().cloned();
        (self.lease, self.offer) = (None, None);
        if self.returned.is_none() {
            return Vec::new();
        }
        let actions = self.start(Kind::Release, now, 0, NEVER);
        [vec![Action::Log("releasing lease".to_owned())], actions].concat()
    }

    /// Ends without a message: the container is gone.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    fn advertised(&mut self, reply: &Reply, this: &Try, now: Millis) -> Vec<Action> {
        if reply.status != Status::Success {
            return self.ignore(reply, format!("{} {}", reply.server, said(reply)));
        }
        let offer = match self.read(reply, this) {
            Ok(offer) => offer,
            Err(why) => return self.ignore(reply, why),
        };
        let is_own = self.is_own(&reply.server, now);
        if is_own || self.best.as_ref().is_none_or(|(preference, _)| reply.preference > *preference) {
            self.best = Some((reply.preference, offer));
        }
        // The client waits for all offers after its first message, and takes the first one afterwards. A container that has a lease
        // waits for its own server: each machine on the link can claim the highest preference.
        let is_best = is_own || this.sent > 1 || reply.preference == HIGHEST_PREFERENCE && !self.is_bound();
        if is_best { self.request(this.until, now) } else { Vec::new() }
    }

    /// The lease in an answer. A container that has an address can use no other one.
    fn read(&mut self, reply: &Reply, this: &Try) -> Result<Lease, String> {
        let had = self.lease.as_ref().map(|lease| lease.address);
        let lease = Lease::of(reply, had, this.sent_at)?;
        self.unusable = reply.settings(lease.address).1;
        Ok(lease)
    }

    fn request(&mut self, until: Millis, now: Millis) -> Vec<Action> {
        self.offer = self.best.take().map(|(_, offer)| offer);
        // Saved first: if the daemon is killed, the next one knows which address to give back.
        [vec![Action::Save], self.start(Kind::Request, now, 0, until)].concat()
    }

    /// The answer to Request, or to Solicit with rapid commit.
    fn given(&mut self, reply: &Reply, this: &Try) -> Vec<Action> {
        match self.read(reply, this) {
            Err(why) => self.ignore(reply, why),
            Ok(lease) if self.is_bound() => self.bound(lease, "acquired", this.sent_at),
            Ok(lease) => {
                let address = lease.address;
                self.offer = Some(lease);
                self.state = State::Probing(this.until);
                vec![Action::Save, Action::Probe(address)]
            }
        }
    }

    fn refuse(&mut self, reply: &Reply, until: Millis, now: Millis) -> Vec<Action> {
        let pause = (FIRST_PAUSE << self.refused.min(16)).min(self.timing.pause);
        self.refused += 1;
        let why = format!("{} {}", reply.server, said(reply));
        self.offer = None;
        let actions = self.start(Kind::Solicit, now, pause, until);
        self.ignored = Some((reply.xid, why.clone()));
        [vec![Action::Log(why)], actions].concat()
    }

    fn bound(&mut self, mut lease: Lease, verb: &str, since: Millis) -> Vec<Action> {
        if let Some(held) = &self.lease {
            lease.succeed(held, since);
        }
        let seconds = lease.expires_at.saturating_sub(since) / 1000;
        let mut log = format!("lease {verb}, {} from {} for {seconds} s", lease.address, lease.server);
        if !self.unusable.is_empty() {
            log += &format!(", with unusable values in the options {:?}", self.unusable);
        }
        (self.lease, self.offer, self.earlier) = (Some(lease), None, None);
        (self.refused, self.is_withdrawn, self.rest_until) = (0, false, None);
        self.state = State::Bound;
        vec![Action::Save, Action::Log(log), Action::Bound]
    }

    /// Whether this is the server that has given the lease.
    fn is_own(&self, server: &Duid, now: Millis) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_from(server, now))
    }

    /// Ignores an answer. Only the first one of an exchange gets a line in the log: a thousand may come in a second.
    fn ignore(&mut self, reply: &Reply, why: String) -> Vec<Action> {
        let is_first = self.ignored.as_ref().is_none_or(|(xid, _)| *xid != reply.xid);
        let log = Action::Log(format!("{why}: ignored"));
        self.ignored = Some((reply.xid, why));
        if is_first { vec![log] } else { Vec::new() }
    }

    fn give_up(&mut self, now: Millis) -> Vec<Action> {
        if let Some(lease) = &self.lease {
            let is_over = self.is_withdrawn || now >= lease.expires_at;
            return if is_over { self.expire() } else { self.keep(now) };
        }
        // A lost Reply: the server may have given the address.
        let mut actions = self.release(now);
        self.state = State::Ended;
        let why = self.ignored.take().map_or(String::new(), |(_, why)| format!("; {why}"));
        actions.push(Action::Fail(format!("{NO_MORE_TRIES} for an IPv6 address{why}")));
        actions
    }

    fn expire(&mut self) -> Vec<Action> {
        (self.state, self.lease) = (State::Ended, None);
        vec![Action::Expire]
    }
}

/// What a server says if it gives no address.
fn said(reply: &Reply) -> String {
    let text = if reply.text.is_empty() { String::new() } else { format!(": {}", reply.text) };
    format!("answers {:?}{text}", reply.status)
}
