//! ADD: reserves one address from every range set, or none at all.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::remark;
use cni_common::spec::{CniError, IpConfig};

use super::config::{Config, with_prefix};
use super::owner::Owner;
use super::pending::PendingFile;
use super::reservations::{Reservation, Reservations};
use super::set::RangeSet;
use super::store::Store;

/// How many addresses are tried one by one before the directory is listed. Round robin nearly always finds a
/// free one at once. If the set is nearly full or the last address is unknown, listing is cheaper than trying
/// all addresses.
const TRIES: usize = 8;

/// Reserves an address of each set for the attachment. The store must be locked.
///
/// # Errors
/// The reference's texts. All addresses that this call reserved are released first.
pub fn allocate(
    reservations: &mut Reservations,
    attachment: &Attachment<'_>,
    config: &Config,
) -> Result<Vec<IpConfig>, CniError> {
    let held = reservations.of(attachment)?;
    allocate_beside(reservations, attachment, config, held, &[])
}

/// As [`allocate`], for a caller that knows what [`Reservations::of`] says of the attachment, and [`Store::last_reserved`] of the first
/// sets.
///
/// # Errors
/// As [`allocate`].
pub fn allocate_beside(
    reservations: &mut Reservations,
    attachment: &Attachment<'_>,
    config: &Config,
    held: Vec<Reservation>,
    last: &[Option<IpAddr>],
) -> Result<Vec<IpConfig>, CniError> {
    let mut attempt = Attempt { reservations, attachment, held, last, reserved: Vec::new() };
    attempt.reserve_in_all_sets(config).inspect_err(|_| attempt.undo())
}

struct Attempt<'a> {
    reservations: &'a mut Reservations,
    attachment: &'a Attachment<'a>,
    held: Vec<Reservation>,
    last: &'a [Option<IpAddr>],
    reserved: Vec<IpAddr>,
}

impl Attempt<'_> {
    fn reserve_in_all_sets(&mut self, config: &Config) -> Result<Vec<IpConfig>, CniError> {
        let mut requested = config.requested.clone();
        let mut ips = Vec::with_capacity(config.sets.len());
        for (i, set) in config.sets.iter().enumerate() {
            let position = requested.iter().position(|ip| set.contains(*ip));
            let wanted = position.map(|position| requested.remove(position));
            let ip = self.reserve_in_set(i, set, wanted).map_err(|error| CniError {
                msg: format!("failed to allocate for range {i}: {}", error.msg),
                ..error
            })?;
            if let Some(range) = set.range_of(ip) {
                let address = with_prefix(ip, range.subnet);
                ips.push(IpConfig { address, gateway: Some(range.gateway), interface: None });
            }
        }
        if requested.is_empty() {
            return Ok(ips);
        }
        let unused: Vec<String> = requested.iter().map(IpAddr::to_string).collect();
        Err(CniError::internal(format!("failed to allocate all requested IPs: {}", unused.join(" ")))
            .with_details("each range set assigns one address, and no range set is left for these"))
    }

    fn reserve_in_set(
        &mut self,
        i: usize,
        set: &RangeSet,
        wanted: Option<IpAddr>,
    ) -> Result<IpAddr, CniError> {
        let is_gateway = |ip: IpAddr| set.range_of(ip).is_some_and(|range| range.gateway == ip);
        if let Some(ip) = wanted.filter(|ip| is_gateway(*ip)) {
            return Err(CniError::internal(format!("requested ip {ip} is subnet's gateway")));
        }
        let is_reserved = |ip: IpAddr| set.range_of(ip).is_some_and(|range| range.is_reserved(ip));
        if let Some(ip) = wanted.filter(|ip| is_reserved(*ip)) {
            return Err(CniError::internal(format!("requested ip {ip} is excluded from range set {set}")));
        }
        let kept = self.release_own_of_earlier_boot(set)?.filter(|ip| !is_reserved(*ip));
        let mut pending = self.store().pending_file(self.attachment)?;
        let ip = match wanted.or(kept) {
            Some(ip) => self.reserve_requested(set, ip, &mut pending)?,
            None => self.reserve_next(i, set, &mut pending)?,
        };
        self.reserved.push(ip);
        self.reservations.added(ip, Owner::of(self.attachment));
        self.store().set_last_reserved(i, ip)?;
        Ok(ip)
    }

    /// Releases the addresses that this attachment reserved in the set before the last boot. Returns the
    /// first of them, which the attachment gets again.
    ///
    /// The specification forbids adding an attachment twice, so an address reserved since the last boot is an
    /// error. After a crash, however, no runtime has called DEL, and the container could otherwise never
    /// start again.
    fn release_own_of_earlier_boot(&mut self, set: &RangeSet) -> Result<Option<IpAddr>, CniError> {
        let held: Vec<Reservation> = self.held.iter().filter(|(ip, _)| set.contains(*ip)).cloned().collect();
        if let Some((ip, _)) = held.iter().find(|(ip, _)| !self.store().is_of_earlier_boot(*ip)) {
            let id = self.attachment.container_id;
            return Err(CniError::internal(format!(
                "{ip} has been allocated to {id}, duplicate allocation is not allowed"
            )));
        }
        let first = held.first().map(|(ip, _)| *ip);
        for (ip, owner) in held {
            self.reservations.release(ip, owner)?;
        }
        Ok(first)
    }

    fn store(&self) -> &Store {
        &self.reservations.store
    }

    fn reserve_requested(
        &mut self,
        set: &RangeSet,
        ip: IpAddr,
        pending: &mut PendingFile,
    ) -> Result<IpAddr, CniError> {
        if self.store().reserve(pending, ip)? || self.reclaim(&[ip], pending)?.is_some() {
            return Ok(ip);
        }
        Err(CniError::internal(format!("requested IP address {ip} is not available in range set {set}")))
    }

    fn reserve_next(
        &mut self,
        i: usize,
        set: &RangeSet,
        pending: &mut PendingFile,
    ) -> Result<IpAddr, CniError> {
        let last = self.last.get(i).copied().unwrap_or_else(|| self.store().last_reserved(i));
        let mut candidates = set.candidates(last);
        for ip in candidates.by_ref().take(TRIES) {
            if self.store().reserve(pending, ip)? {
                return Ok(ip);
            }
        }
        let taken: BTreeSet<IpAddr> = self.store().addresses()?.into_iter().collect();
        for ip in candidates.filter(|ip| !taken.contains(ip)) {
            if self.store().reserve(pending, ip)? {
                return Ok(ip);
            }
        }
        // Every address of the set has a file now, so this list is no longer than the directory, even for
        // IPv6.
        let all: Vec<IpAddr> = set.candidates(last).collect();
        self.reclaim(&all, pending)?
            .ok_or_else(|| CniError::internal(format!("no IP addresses available in range set: {set}")))
    }

    /// The last resort for a full set: takes an address whose container cannot be running, because the
    /// machine has booted since. Failing that, takes the first address with an empty file from an earlier
    /// boot. A power failure leaves such files, but an administrator may have made one as a placeholder, so
    /// this is logged.
    fn reclaim(&mut self, taken: &[IpAddr], pending: &mut PendingFile) -> Result<Option<IpAddr>, CniError> {
        let mut found = None;
        for ip in taken {
            let owner = match self.store().owner(*ip) {
                None | Some(Owner::Foreign) => continue,
                Some(Owner::Empty) if found.is_some() => continue,
                Some(owner) => owner,
            };
            if self.store().is_of_earlier_boot(*ip) {
                let is_certain = owner != Owner::Empty;
                found = Some((*ip, owner));
                if is_certain {
                    break;
                }
            }
        }
        let Some((ip, owner)) = found else { return Ok(None) };
        if owner == Owner::Empty {
            remark!(
                "host-local: the range set is full: reusing {ip}, whose file is empty and from an earlier boot"
            );
        }
        self.reservations.release(ip, owner)?;
        Ok(self.store().reserve(pending, ip)?.then_some(ip))
    }

    fn undo(&mut self) {
        for ip in std::mem::take(&mut self.reserved) {
            if let Err(error) = self.reservations.release(ip, Owner::of(self.attachment)) {
                remark!("host-local: failed to release an address after a failed ADD: {error}");
            }
        }
    }
}
