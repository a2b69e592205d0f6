//! What becomes of a lease that the container has: T1, T2, the expiry, and the servers' answers.

use std::net::Ipv4Addr;

use super::{FIRST_WAIT, Machine, Renewal, State, Try, seconds};
use crate::action::{Action, Peer, Way};
use crate::lease::{Lease, Millis, NEVER};
use crate::message::{Kind, Reply, Verdict, build};

/// The least pause between two renewals, except for short leases (RFC 2131, section 4.4.5).
const LEAST_PAUSE: Millis = 60_000;

impl Machine {
    pub(super) fn wake_bound(&mut self, now: Millis) -> Vec<Action> {
        let Some(expires_at) = self.lease.as_ref().map(|lease| lease.expires_at) else { return Vec::new() };
        if now < expires_at {
            return self.renew(now, None);
        }
        // The daemon did not run, or the machine slept. The server may not have given the address to another client.
        let xid = (self.random)();
        let until = now.saturating_add(self.timing.answer);
        let this = Try { xid, began: now, until, sent: 0, sent_at: now, next: now, refused: 0 };
        let log = Action::Log("lease expired meanwhile, asking for it again".to_owned());
        [vec![log], self.reboot(this, now)].concat()
    }

    /// Sends a request that prolongs the lease: to the server before T2, to all servers afterwards.
    pub(super) fn renew(&mut self, now: Millis, before: Option<Renewal>) -> Vec<Action> {
        let Some(lease) = &self.lease else { return self.give_up(now) };
        if now >= lease.expires_at {
            return self.expire();
        }
        let is_rebinding = now >= lease.rebind_at;
        let end = if is_rebinding { lease.expires_at } else { lease.rebind_at };
        // Half of the time that is left, but not too often.
        let least = least_pause(lease);
        let next = now.saturating_add(((end - now) / 2).max(least)).min(end);
        let (address, peer) = (lease.address, Peer::from(lease));
        let xid = (self.random)();
        let began = before.map_or(now, |before| before.began);
        let message = build(&self.client, Kind::Renew { address }, xid, seconds(now - began));
        let listen_until = now.saturating_add(self.timing.answer);
        let this = Renewal { xid, began, sent_at: now, listen_until, next };
        let was_rebinding = matches!(self.state, State::Rebinding(_));
        let (way, log) = match is_rebinding {
            true => (Way::Broadcast, (!was_rebinding).then_some("renewal time expired, rebinding")),
            false => (Way::Unicast(peer), before.is_none().then_some("renewing lease")),
        };
        self.state = if is_rebinding { State::Rebinding(this) } else { State::Renewing(this) };
        let log = log.map(|text| Action::Log(text.to_owned()));
        log.into_iter().chain([Action::Send { way, message }]).collect()
    }

    pub(super) fn prolonged(
        &mut self,
        reply: &Reply,
        from: [u8; 6],
        sent: Millis,
        now: Millis,
    ) -> Vec<Action> {
        let Some(lease) = &self.lease else { return Vec::new() };
        let (address, expires_at) = (lease.address, lease.expires_at);
        match reply.verdict {
            Verdict::Ack if reply.address == address && self.hold(reply, from, sent, now) => Vec::new(),
            Verdict::Ack if reply.address == address => self.acknowledged(reply, from, sent, "renewed"),
            Verdict::Ack => {
                let why = format!("gives {} instead of {}", reply.address, address);
                self.ignore(reply, why)
            }
            Verdict::Nak => {
                self.is_withdrawn = reply.server.is_some_and(|server| self.is_own(server, now));
                (self.held, self.earlier) = (None, Some((reply.xid, sent)));
                let refusal = format!(
                    "{} refuses {}: {}; asking for the same address once more",
                    text(reply.server),
                    address,
                    reply.text
                );
                // A lease that expired meanwhile has as long as any other answer.
                let left = Some(expires_at).filter(|end| *end > now).unwrap_or(NEVER);
                let until = now.saturating_add(self.timing.answer).min(left);
                let actions = self.select(now, until, 0, 0);
                [vec![Action::Log(refusal)], actions].concat()
            }
            Verdict::Offer => Vec::new(),
        }
    }

    /// Keeps another server's answer to a request to all: the lease's own server has as long as the first wait for an answer.
    fn hold(&mut self, reply: &Reply, from: [u8; 6], sent: Millis, now: Millis) -> bool {
        let is_own = reply.server.is_some_and(|server| self.is_own(server, now));
        let is_usable = self.lease_of(reply, from, sent).is_ok();
        let State::Rebinding(this) = &mut self.state else { return false };
        if is_own || !is_usable {
            return false;
        }
        this.listen_until = this.listen_until.min(now.saturating_add(FIRST_WAIT));
        self.held.get_or_insert_with(|| (Box::new(reply.clone()), from));
        true
    }

    /// No answer, or only one of another server. The sockets close until the next message.
    pub(super) fn unanswered(&mut self, this: Renewal) -> Vec<Action> {
        if let Some((reply, from)) = self.held.take() {
            return self.acknowledged(&reply, from, this.sent_at, "renewed");
        }
        let quiet = Renewal { listen_until: 0, ..this };
        self.state = match self.state {
            State::Renewing(_) => State::Renewing(quiet),
            _ => State::Rebinding(quiet),
        };
        Vec::new()
    }

    /// The lease of an ACK. The container keeps the prefix length that it has: no plugin would tell it another one.
    fn lease_of(&self, reply: &Reply, from: [u8; 6], sent: Millis) -> Result<Lease, String> {
        let known = self.lease.as_ref().map(|lease| lease.prefix);
        Lease::of(&Reply { prefix: known.or(reply.prefix), ..reply.clone() }, None, from, sent)
    }

    /// An answer of the lease's own server to the request that another answer has refused, while the search runs that this has caused.
    pub(super) fn late(&mut self, reply: &Reply, from: [u8; 6], now: Millis) -> Option<Vec<Action>> {
        let is_searching = matches!(self.state, State::Selecting(_) | State::Requesting(..));
        let (_, sent) = self.earlier.filter(|(xid, _)| is_searching && *xid == reply.xid)?;
        let lease = self
            .lease
            .as_ref()
            .filter(|lease| reply.server.is_some_and(|server| lease.is_from(server, now)))?;
        match reply.verdict {
            Verdict::Ack if reply.address == lease.address => {
                Some(self.acknowledged(reply, from, sent, "renewed"))
            }
            Verdict::Nak => {
                self.is_withdrawn = true;
                None
            }
            _ => None,
        }
    }

    pub(super) fn acknowledged(
        &mut self,
        reply: &Reply,
        from: [u8; 6],
        sent: Millis,
        verb: &str,
    ) -> Vec<Action> {
        let mut lease = match self.lease_of(reply, from, sent) {
            Ok(lease) => lease,
            // The lease goes on without this answer.
            Err(why) if self.is_bound() => return self.ignore(reply, why),
            Err(why) => {
                let mut actions = self.release();
                actions.push(Action::Fail(why));
                return actions;
            }
        };
        if let Some(held) = &self.lease {
            lease.succeed(held, sent);
        }
        let seconds = lease.expires_at.saturating_sub(sent) / 1000;
        let mut log = format!("lease {verb}, {} from {} for {seconds} s", lease.address, lease.server);
        if !reply.ignored.is_empty() {
            log += &format!(", with unusable values in the options {:?}", reply.ignored);
        }
        self.lease = Some(lease);
        (self.offer, self.held, self.earlier, self.is_withdrawn) = (None, None, None, false);
        self.state = State::Bound;
        vec![Action::Save, Action::Log(log), Action::Bound]
    }

    /// Whether this is the server that has given the lease.
    pub(super) fn is_own(&self, server: Ipv4Addr, now: Millis) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_from(server, now))
    }

    /// A search in vain changes nothing: whoever caused it may not be the lease's server. RFC 2131 (section 4.4.5) has a client believe
    /// the NAK of any server.
    pub(super) fn keep(&mut self, now: Millis) -> Vec<Action> {
        let Some(lease) = &self.lease else { return Vec::new() };
        let left = lease.expires_at.saturating_sub(now) / 1000;
        let next = now.saturating_add(least_pause(lease)).min(lease.expires_at);
        let xid = (self.random)();
        let this = Renewal { xid, began: now, sent_at: now, listen_until: 0, next };
        let is_rebinding = now >= lease.rebind_at;
        self.state = if is_rebinding { State::Rebinding(this) } else { State::Renewing(this) };
        (self.offer, self.earlier) = (None, None);
        vec![Action::Log(format!("no server gives the address again, keeping it for {left} s"))]
    }

    pub(super) fn expire(&mut self) -> Vec<Action> {
        self.state = State::Ended;
        self.lease = None;
        vec![Action::Expire]
    }
}

/// The least time between two renewals of the lease.
fn least_pause(lease: &Lease) -> Millis {
    LEAST_PAUSE.min((lease.expires_at - lease.renew_at) / 4)
}

fn text(server: Option<Ipv4Addr>) -> String {
    server.map_or("a server".to_owned(), |server| server.to_string())
}
