//! ADD: one address out of every range set, or none at all.

use std::collections::HashSet;
use std::net::IpAddr;

use cni_common::spec::{CniError, IpConfig};

use super::config::{Config, with_prefix};
use super::draft::Draft;
use super::ledger::{Ledger, Reservation};
use super::owner::{Holder, Owner};
use super::set::RangeSet;
use super::store::Store;

/// How many addresses are tried one by one before the folder is listed. Round robin nearly always hits a free one at
/// once; where the set is nearly full, or nobody knows whose turn it is, a list is cheaper than a walk.
const TRIES: usize = 8;

/// Reserves an address of each set for `owner`. The store must be locked.
///
/// # Errors
/// In the reference's words, after everything that was reserved here, and nothing else, has been given back.
pub fn allocate(
    store: &Store,
    ledger: &mut Ledger<'_>,
    owner: &Owner<'_>,
    config: &Config,
) -> Result<Vec<IpConfig>, CniError> {
    let held = ledger.held_by(owner)?;
    let mut attempt = Attempt { store, ledger, owner, held, made: Vec::new() };
    let outcome = attempt.all_sets(config);
    if outcome.is_err() {
        attempt.undo();
    }
    outcome
}

struct Attempt<'a, 'b> {
    store: &'a Store,
    ledger: &'a mut Ledger<'b>,
    owner: &'a Owner<'a>,
    held: Vec<Reservation>,
    made: Vec<IpAddr>,
}

impl Attempt<'_, '_> {
    fn all_sets(&mut self, config: &Config) -> Result<Vec<IpConfig>, CniError> {
        let mut requested = config.requested.clone();
        let mut ips = Vec::with_capacity(config.sets.len());
        for (i, set) in config.sets.iter().enumerate() {
            let position = requested.iter().position(|ip| set.contains(*ip));
            let wanted = position.map(|position| requested.remove(position));
            let ip = self.one_set(i, set, wanted).map_err(|error| CniError {
                msg: format!("failed to allocate for range {i}: {}", error.msg),
                ..error
            })?;
            if let Some(range) = set.range_of(ip) {
                let address = with_prefix(ip, range.subnet());
                ips.push(IpConfig { address, gateway: Some(range.gateway()), interface: None });
            }
        }
        if requested.is_empty() {
            return Ok(ips);
        }
        let unused: Vec<String> = requested.iter().map(IpAddr::to_string).collect();
        Err(CniError::internal(format!("failed to allocate all requested IPs: {}", unused.join(" ")))
            .with_details("no range set has room for them: each gives one address"))
    }

    fn one_set(&mut self, i: usize, set: &RangeSet, wanted: Option<IpAddr>) -> Result<IpAddr, CniError> {
        let is_gateway = |ip: IpAddr| set.range_of(ip).is_some_and(|range| range.gateway() == ip);
        if let Some(ip) = wanted.filter(|ip| is_gateway(*ip)) {
            return Err(CniError::internal(format!("requested ip {ip} is subnet's gateway")));
        }
        let kept = self.take_over(set)?.filter(|ip| !is_gateway(*ip));
        let mut draft = self.store.draft(self.owner)?;
        let ip = match wanted.or(kept) {
            Some(ip) => self.this_one(set, ip, &mut draft)?,
            None => self.any(i, set, &mut draft)?,
        };
        self.made.push(ip);
        self.ledger.added(ip, self.owner.holder());
        self.store.set_last_reserved(i, ip)?;
        Ok(ip)
    }

    /// Gives back what this very attachment had in the set before the machine last started, and names one of these
    /// addresses, so that it can have it again.
    ///
    /// The specification does not let an attachment be added twice, so what it has since then is an error. But after
    /// a crash nobody has called DEL, and the container could never start again.
    fn take_over(&mut self, set: &RangeSet) -> Result<Option<IpAddr>, CniError> {
        let held: Vec<Reservation> = self.held.iter().filter(|(ip, _)| set.contains(*ip)).cloned().collect();
        if let Some((ip, _)) = held.iter().find(|(ip, _)| !self.store.is_of_earlier_boot(*ip)) {
            let id = self.owner.container_id;
            return Err(CniError::internal(format!(
                "{ip} has been allocated to {id}, duplicate allocation is not allowed"
            )));
        }
        let first = held.first().map(|(ip, _)| *ip);
        for (ip, holder) in held {
            self.evict(ip, holder)?;
        }
        Ok(first)
    }

    fn evict(&mut self, ip: IpAddr, holder: Holder) -> Result<(), CniError> {
        self.store.release(ip)?;
        self.ledger.removed(ip, holder);
        Ok(())
    }

    fn this_one(&mut self, set: &RangeSet, ip: IpAddr, draft: &mut Draft) -> Result<IpAddr, CniError> {
        if self.store.reserve(draft, ip)? || self.reclaim(&[ip], draft)?.is_some() {
            return Ok(ip);
        }
        Err(CniError::internal(format!("requested IP address {ip} is not available in range set {set}")))
    }

    fn any(&mut self, i: usize, set: &RangeSet, draft: &mut Draft) -> Result<IpAddr, CniError> {
        let last = self.store.last_reserved(i);
        let mut candidates = set.candidates(last);
        for ip in candidates.by_ref().take(TRIES) {
            if self.store.reserve(draft, ip)? {
                return Ok(ip);
            }
        }
        let taken: HashSet<IpAddr> = self.store.addresses()?.into_iter().collect();
        for ip in candidates.filter(|ip| !taken.contains(ip)) {
            if self.store.reserve(draft, ip)? {
                return Ok(ip);
            }
        }
        // Everything is taken, so this ends even for IPv6.
        let all: Vec<IpAddr> = set.candidates(last).collect();
        self.reclaim(&all, draft)?
            .ok_or_else(|| CniError::internal(format!("no IP addresses available in range set: {set}")))
    }

    /// Where nothing else is left: takes the first of the taken addresses whose container cannot be alive, since the
    /// machine has started again. Then the first without content, which a power failure leaves of a reservation; but it
    /// may as well be a placeholder, so this does not go without a word.
    fn reclaim(&mut self, taken: &[IpAddr], draft: &mut Draft) -> Result<Option<IpAddr>, CniError> {
        let mut empty = None;
        for ip in taken {
            match self.store.holder(*ip) {
                Some(holder @ (Holder::Attachment { .. } | Holder::Container(_)))
                    if self.store.is_of_earlier_boot(*ip) =>
                {
                    self.evict(*ip, holder)?;
                    return Ok(self.store.reserve(draft, *ip)?.then_some(*ip));
                }
                Some(Holder::Empty) if empty.is_none() && self.store.is_of_earlier_boot(*ip) => {
                    empty = Some(*ip)
                }
                _ => {}
            }
        }
        let Some(ip) = empty else { return Ok(None) };
        eprintln!(
            "host-local: no other address is left: {ip} is taken, whose file is empty and of an earlier boot"
        );
        self.evict(ip, Holder::Empty)?;
        Ok(self.store.reserve(draft, ip)?.then_some(ip))
    }

    fn undo(&mut self) {
        for ip in std::mem::take(&mut self.made) {
            match self.store.release(ip) {
                Ok(()) => self.ledger.removed(ip, self.owner.holder()),
                Err(error) => eprintln!("host-local: cleaning up after the failed ADD: {error}"),
            }
        }
    }
}
