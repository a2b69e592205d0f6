//! A lease: an address of a server, and until when the container may use it. Pure.

use std::net::Ipv4Addr;

use ferrule_dhcp::wire;
use serde::{Deserialize, Serialize};

use crate::message::Reply;
use crate::settings::is_host;

/// Milliseconds since the machine booted, also while it slept (`CLOCK_BOOTTIME`).
pub(crate) type Millis = u64;
/// A time that never comes.
pub(crate) const NEVER: Millis = Millis::MAX;

/// The lease time in seconds if the server says none, as in the reference.
const DEFAULT_TIME: u32 = 3600;
/// The lease time that means for ever (RFC 2131, section 3.3).
const INFINITE: u32 = u32::MAX;

/// The server that has given a lease which another one has prolonged since, and until when it has given it. Until then only this
/// server can end the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Guarantor<S> {
    server: S,
    until: Millis,
}

impl<S: Clone + PartialEq> Guarantor<S> {
    /// The server that can end a lease which `last` has prolonged last.
    pub(crate) fn server<'a>(this: Option<&'a Self>, last: &'a S, now: Millis) -> &'a S {
        this.filter(|this| now < this.until).map_or(last, |this| &this.server)
    }

    /// The guarantor after another server has prolonged a lease that `last` has given until `until`.
    pub(crate) fn next(this: Option<&Self>, last: &S, until: Millis, now: Millis) -> Self {
        let next = || Guarantor { server: last.clone(), until };
        this.filter(|this| now < this.until).cloned().unwrap_or_else(next)
    }
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) server: Ipv4Addr,
    /// The MAC address from which the answer came: the server's, or that of a router towards it.
    pub(crate) server_mac: [u8; 6],
    /// When the daemon asks the server to prolong the lease (T1).
    pub(crate) renew_at: Millis,
    /// From when any server may prolong the lease (T2).
    pub(crate) rebind_at: Millis,
    /// From when the address must not be used.
    pub(crate) expires_at: Millis,
    /// Older files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) guarantor: Option<Guarantor<Ipv4Addr>>,
    /// What the container gets beside the address.
    pub(crate) settings: wire::Lease,
}

impl Lease {
    /// The lease of an ACK to a request that was sent at `sent`. An offer or a renewal may omit the subnet mask: `prefix` is the
    /// one to use then.
    ///
    /// # Errors
    /// No container can use what the server gives.
    pub(crate) fn of(
        reply: &Reply,
        prefix: Option<u8>,
        server_mac: [u8; 6],
        sent: Millis,
    ) -> Result<Self, String> {
        let [renew_at, rebind_at, expires_at] = times(reply.times).map(|time| sent.saturating_add(time));
        let address = reply.address;
        let server = reply.server.ok_or("a server without a valid server identifier")?;
        // The reference's text.
        let prefix = reply.prefix.or(prefix).ok_or("DHCP option Subnet Mask not found in DHCPACK")?;
        if !can_be_leased(address, prefix) || address == server {
            return Err(format!("{server} gives {address}/{prefix}, which no container can have"));
        }
        let settings = wire::Lease { address: format!("{address}/{prefix}"), ..reply.settings.clone() };
        let guarantor = None;
        Ok(Lease {
            address,
            prefix,
            server,
            server_mac,
            renew_at,
            rebind_at,
            expires_at,
            guarantor,
            settings,
        })
    }

    /// Whether this server can end the lease.
    pub(crate) fn is_from(&self, server: Ipv4Addr, now: Millis) -> bool {
        *Guarantor::server(self.guarantor.as_ref(), &self.server, now) == server
    }

    /// Takes the place of the lease that the container has. Another server must not shorten what the lease's own server has given.
    pub(crate) fn succeed(&mut self, held: &Lease, now: Millis) {
        if !held.is_from(self.server, now) {
            let known = held.guarantor.as_ref();
            self.guarantor = Some(Guarantor::next(known, &held.server, held.expires_at, now));
            self.expires_at = self.expires_at.max(held.expires_at);
        }
    }
}

/// Whether a host can have the address in a subnet with this prefix length: not the subnet's own, nor its broadcast address.
fn can_be_leased(address: Ipv4Addr, prefix: u8) -> bool {
    let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let number = address.to_bits() & host;
    is_host(address) && (prefix >= 31 || (number != 0 && number != host))
}

/// T1, T2 and the lease time in milliseconds. Values in the wrong order count as absent; RFC 2131, section 4.4.5, has the
/// defaults 1/2 and 7/8.
fn times([lease, t1, t2]: [Option<u32>; 3]) -> [Millis; 3] {
    let lease = lease.unwrap_or(DEFAULT_TIME).max(1);
    if lease == INFINITE {
        return [NEVER; 3];
    }
    let lease = Millis::from(lease) * 1000;
    let before = |time: Option<u32>, limit: Millis| {
        time.map(|time| Millis::from(time) * 1000).filter(|time| (1..limit).contains(time))
    };
    let t2 = before(t2, lease).unwrap_or(lease / 8 * 7);
    let t1 = before(t1, t2).unwrap_or((lease / 2).min(t2 / 2 + t2 / 4));
    [t1, t2, lease]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_host_can_have() {
        for (address, prefix, expected) in [
            ([10, 0, 0, 5], 24, true),
            ([10, 0, 0, 0], 24, false),
            ([10, 0, 0, 255], 24, false),
            ([10, 0, 0, 255], 16, true),
            ([10, 0, 0, 0], 31, true),
            ([10, 0, 0, 0], 32, true),
            ([10, 0, 0, 5], 1, true),
            ([0, 0, 0, 0], 32, false),
            ([0, 0, 0, 1], 24, false),
            ([127, 0, 0, 1], 8, false),
            ([169, 254, 7, 7], 16, true),
            ([224, 0, 0, 1], 24, false),
            ([239, 255, 255, 254], 24, false),
            ([240, 0, 0, 1], 24, true),
            ([255, 255, 255, 255], 32, false),
        ] {
            assert_eq!(can_be_leased(address.into(), prefix), expected, "{address:?}/{prefix}");
        }
    }

    #[test]
    fn another_server_ends_a_lease_only_after_the_time_of_the_first() {
        let first = Guarantor::next(None, &1, 100, 0);
        assert_eq!([99, 100].map(|now| *Guarantor::server(Some(&first), &2, now)), [1, 2]);
        assert_eq!(Guarantor::next(Some(&first), &2, 500, 99), first);
        assert_eq!(Guarantor::next(Some(&first), &2, 500, 100), Guarantor { server: 2, until: 500 });
    }

    #[test]
    fn times_follow_the_rfc() {
        assert_eq!(times([Some(8), None, None]), [4000, 7000, 8000]);
        assert_eq!(times([None, None, None]), [1_800_000, 3_150_000, 3_600_000]);
        assert_eq!(times([Some(100), Some(10), Some(20)]), [10_000, 20_000, 100_000]);
        // T2 is beyond the lease, T1 beyond T2, or both are zero.
        assert_eq!(times([Some(80), Some(10), Some(90)]), [10_000, 70_000, 80_000]);
        assert_eq!(times([Some(80), Some(75), None]), [40_000, 70_000, 80_000]);
        assert_eq!(times([Some(80), Some(0), Some(0)]), [40_000, 70_000, 80_000]);
        assert_eq!(times([Some(80), None, Some(20)]), [15_000, 20_000, 80_000]);
        assert_eq!(times([Some(u32::MAX), Some(1), Some(2)]), [NEVER; 3]);
        assert_eq!(times([Some(0), None, None]), [500, 875, 1000]);
    }
}
