//! The life of a lease that the container has: Confirm, T1, T2, and the servers' answers.

use super::super::lease::Lease;
use super::super::message::{Kind, Reply, Status, Verdict};
use super::exchange::Try;
use super::{Machine, State, said};
use crate::action::Action;
use crate::lease::{Millis, NEVER};

/// The longest pause before the first Confirm: a daemon that starts may have hundreds of leases.
const CONFIRM_PAUSE: Millis = 1000;
/// How long Confirm is repeated. Without an answer the lease goes on.
const CONFIRM_TIME: Millis = 10_000;

/// How long the lease's own server comes first.
const OWN_FIRST: Millis = 1000;

/// The pause after a search in vain, or a quarter of the time that is left.
const REST: Millis = 60_000;
/// The shortest such pause.
const LEAST_REST: Millis = 1000;

impl Machine {
    pub(super) fn confirm(&mut self, now: Millis) {
        // Never 0: the first message is an action of `wake`.
        let pause = 1 + Millis::from((self.random)()) % CONFIRM_PAUSE;
        self.start(Kind::Confirm, now, pause, now.saturating_add(pause + CONFIRM_TIME));
    }

    pub(super) fn confirmed(&mut self, reply: &Reply, now: Millis) -> Vec<Action> {
        match reply.status {
            Status::Success => {
                (self.state, self.offer, self.earlier) = (State::Bound, None, None);
                vec![Action::Log(format!("{} confirms the address", reply.server))]
            }
            Status::NotOnLink => self.ask_again(said(reply), reply, now),
            _ => self.ignore(reply, format!("{} {}", reply.server, said(reply))),
        }
    }

    pub(super) fn wake_bound(&mut self, now: Millis) -> Vec<Action> {
        let Some(lease) = &self.lease else { return Vec::new() };
        if now >= lease.expires_at && self.rest_until.is_some() {
            return self.expire();
        }
        if now >= lease.expires_at {
            // The daemon did not run, or the machine slept. The address may still be free.
            let log = Action::Log("lease expired meanwhile, asking for it again".to_owned());
            return [vec![log], self.search_again(now)].concat();
        }
        if now >= lease.rebind_at {
            return self.rebind(now);
        }
        let until = lease.rebind_at;
        let log = Action::Log("renewing lease".to_owned());
        [vec![log], self.start(Kind::Renew, now, 0, until)].concat()
    }

    pub(super) fn rebind(&mut self, now: Millis) -> Vec<Action> {
        let until = self.lease.as_ref().map_or(now, |lease| lease.expires_at);
        let log = Action::Log("renewal time expired, rebinding".to_owned());
        [vec![log], self.start(Kind::Rebind, now, 0, until)].concat()
    }

    pub(super) fn prolonged(&mut self, reply: &Reply, this: &Try, now: Millis) -> Vec<Action> {
        let Some(lease) = &self.lease else { return Vec::new() };
        let until = lease.expires_at;
        match reply.status {
            // Only the lease's own server can have forgotten it.
            Status::NoBinding if !self.is_own(&reply.server, now) => self.ask_again(said(reply), reply, now),
            Status::NoBinding => {
                let log = format!("{} {}; requesting the address anew", reply.server, said(reply));
                self.offer = Some(Lease { server: reply.server.clone(), ..lease.clone() });
                self.remember();
                [vec![Action::Log(log)], self.start(Kind::Request, now, 0, until)].concat()
            }
            Status::NotOnLink => self.ask_again(said(reply), reply, now),
            Status::Success if withdraws(reply, lease) => {
                self.ask_again("ends the lease".to_owned(), reply, now)
            }
            Status::Success => match self.read(reply, this) {
                Ok(lease) if self.hold(&lease, now) => Vec::new(),
                Ok(lease) => self.bound(lease, "renewed", this.sent_at),
                Err(why) => self.ignore(reply, why),
            },
            Status::Other(_) => self.ignore(reply, format!("{} {}", reply.server, said(reply))),
        }
    }

    /// Keeps another server's answer to Rebind: the lease's own server has a second more.
    fn hold(&mut self, lease: &Lease, now: Millis) -> bool {
        let is_own = self.is_own(&lease.server, now);
        let State::Exchange(Kind::Rebind, this) = &mut self.state else { return false };
        if !is_own {
            this.listen_until = this.listen_until.min(now.saturating_add(OWN_FIRST));
            self.best.get_or_insert_with(|| (0, lease.clone()));
        }
        !is_own
    }

    /// The lease's own server has not answered.
    pub(super) fn take_best(&mut self, this: &Try) -> Vec<Action> {
        let best = self.best.take();
        best.map_or(Vec::new(), |(_, lease)| self.bound(lease, "renewed", this.sent_at))
    }

    /// An answer of the lease's own server to the message that another answer has refused, while the search runs that this has caused.
    pub(super) fn late(&mut self, reply: &Reply, now: Millis) -> Option<Vec<Action>> {
        let is_searching = matches!(self.state, State::Exchange(Kind::Solicit | Kind::Request, _));
        let (kind, this) = self.earlier.filter(|(_, this)| is_searching && this.xid == reply.xid)?;
        let lease = self.lease.as_ref().filter(|lease| lease.is_from(&reply.server, now))?;
        if reply.verdict == Verdict::Advertise {
            return None;
        }
        self.is_withdrawn |= reply.status == Status::NotOnLink || withdraws(reply, lease);
        match (reply.status, kind) {
            (Status::Success, Kind::Confirm) => Some(self.confirmed(reply, now)),
            (Status::Success, _) => {
                self.read(reply, &this).ok().map(|lease| self.bound(lease, "renewed", this.sent_at))
            }
            _ => None,
        }
    }

    /// Keeps the exchange: the right answer to it may still come.
    fn remember(&mut self) {
        if let State::Exchange(kind, this) = &self.state {
            self.earlier = Some((*kind, *this));
        }
    }

    fn ask_again(&mut self, why: String, reply: &Reply, now: Millis) -> Vec<Action> {
        self.remember();
        self.is_withdrawn = self.is_own(&reply.server, now);
        let log = format!("{} {why}; asking for the same address once more", reply.server);
        [vec![Action::Log(log)], self.search_again(now)].concat()
    }

    /// Searches for a server that gives the same address.
    fn search_again(&mut self, now: Millis) -> Vec<Action> {
        // An expired lease does not limit the time.
        let left =
            self.lease.as_ref().map(|lease| lease.expires_at).filter(|end| *end > now).unwrap_or(NEVER);
        let until = now.saturating_add(self.timing.answer).min(left);
        self.start(Kind::Solicit, now, 0, until)
    }

    /// A search in vain changes nothing: whoever caused it may not be the lease's server. RFC 8415 (sections 18.2.10.1 and 18.2.10.3)
    /// has the client believe any server.
    pub(super) fn keep(&mut self, now: Millis) -> Vec<Action> {
        let Some(lease) = &self.lease else { return Vec::new() };
        let left = lease.expires_at.saturating_sub(now);
        self.rest_until = Some(now.saturating_add(REST.min(left / 4).max(LEAST_REST)));
        (self.state, self.offer, self.earlier) = (State::Bound, None, None);
        vec![Action::Log(format!("no server gives the address again, keeping it for {} s", left / 1000))]
    }
}

/// Whether the server takes back the address of the lease.
fn withdraws(reply: &Reply, lease: &Lease) -> bool {
    reply.addresses.iter().any(|given| given.address == lease.address && given.valid == 0)
}
