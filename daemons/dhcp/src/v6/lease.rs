//! A lease of an IPv6 address, and until when the container may use it. Pure.
//!
//! # References
//! RFC 8415, sections 14.2 and 21.4 to 21.6.

use std::net::Ipv6Addr;

use ferrule_dhcp::wire;
use serde::{Deserialize, Serialize};

use super::duid::Duid;
use super::message::{Given, Reply};
use super::settings::is_host;
use crate::lease::{Guarantor, Millis, NEVER};

/// The lifetime that means for ever.
const INFINITE: u32 = u32::MAX;

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) address: Ipv6Addr,
    pub(crate) server: Duid,
    /// When the daemon asks the server to prolong the lease (T1).
    pub(crate) renew_at: Millis,
    /// From when any server may prolong the lease (T2).
    pub(crate) rebind_at: Millis,
    /// From when the address must not be used.
    pub(crate) expires_at: Millis,
    /// Older files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guarantor: Option<Guarantor<Duid>>,
    /// What the container gets.
    pub(crate) settings: wire::Lease,
}

impl Lease {
    /// The lease in an answer to a message that was sent at `sent`. A container that has an address can use no other one.
    ///
    /// # Errors
    /// No container can use what the server gives.
    pub(crate) fn of(reply: &Reply, had: Option<Ipv6Addr>, sent: Millis) -> Result<Self, String> {
        let is_usable = |given: &&Given| {
            is_host(given.address) && given.valid > 0 && had.is_none_or(|had| had == given.address)
        };
        let Some(given) = reply.addresses.iter().find(is_usable) else {
            let all: Vec<_> = reply.addresses.iter().map(|given| given.address.to_string()).collect();
            return Err(match (had, all.is_empty()) {
                (_, true) => format!("{} gives no address", reply.server),
                (Some(had), _) => format!("{} gives {} instead of {had}", reply.server, all.join(", ")),
                (None, _) => {
                    format!("{} gives {}, which no container can have", reply.server, all.join(", "))
                }
            });
        };
        let [renew_at, rebind_at, expires_at] =
            times(reply.times, given).map(|time| sent.saturating_add(time));
        let (address, server) = (given.address, reply.server.clone());
        let settings = reply.settings(address).0;
        Ok(Lease { address, server, renew_at, rebind_at, expires_at, guarantor: None, settings })
    }

    /// Whether this server can end the lease.
    pub(crate) fn is_from(&self, server: &Duid, now: Millis) -> bool {
        Guarantor::server(self.guarantor.as_ref(), &self.server, now) == server
    }

    /// Takes the place of the lease that the container has. Another server must not shorten what the lease's own server has given.
    pub(crate) fn succeed(&mut self, held: &Lease, now: Millis) {
        if !held.is_from(&self.server, now) {
            let known = held.guarantor.as_ref();
            self.guarantor = Some(Guarantor::next(known, &held.server, held.expires_at, now));
            self.expires_at = self.expires_at.max(held.expires_at);
        }
    }
}

/// T1, T2 and the valid lifetime in milliseconds. Where the server leaves the times to the client or sets them beyond the lifetime,
/// they are 0.5 and 0.8 of the preferred lifetime, or of the valid one if the server prefers no use of the address.
fn times([t1, t2]: [u32; 2], given: &Given) -> [Millis; 3] {
    if given.valid == INFINITE {
        return [NEVER; 3];
    }
    let millis = |time: u32| Millis::from(time) * 1000;
    let valid = millis(given.valid);
    let base = if given.preferred == 0 { valid } else { millis(given.preferred) };
    let t2 = Some(millis(t2)).filter(|t2| (1..valid).contains(t2)).unwrap_or(base / 5 * 4);
    let t1 = Some(millis(t1)).filter(|t1| (1..=t2).contains(t1)).unwrap_or((base / 2).min(t2));
    [t1, t2, valid]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_rfc() {
        let times = |times, preferred, valid| {
            super::times(times, &Given { address: Ipv6Addr::LOCALHOST, preferred, valid })
        };
        assert_eq!(times([100, 200], 300, 400), [100_000, 200_000, 400_000]);
        assert_eq!(times([0, 0], 100, 400), [50_000, 80_000, 400_000]);
        assert_eq!(times([0, 200], 300, 400), [150_000, 200_000, 400_000]);
        assert_eq!(times([100, 0], 300, 400), [100_000, 240_000, 400_000]);
        assert_eq!(times([200, 200], 300, 400), [200_000, 200_000, 400_000]);
        // Beyond the lifetime, and for ever: the address would be lost.
        assert_eq!(times([400, 500], 300, 400), [150_000, 240_000, 400_000]);
        assert_eq!(times([INFINITE; 2], 300, 400), [150_000, 240_000, 400_000]);
        assert_eq!(times([0, 0], 0, 400), [200_000, 320_000, 400_000]);
        assert_eq!(times([0, 0], 1, 1), [500, 800, 1000]);
        assert_eq!(times([1, 2], INFINITE, INFINITE), [NEVER; 3]);
        assert_eq!(times([0, 0], INFINITE - 1, INFINITE - 1)[2], u64::from(INFINITE - 1) * 1000);
    }
}
