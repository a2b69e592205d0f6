//! One range of addresses: the part of a subnet between two addresses, except the gateway.

use cni_common::remark;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// An unchecked range of the configuration, with its texts parsed.
#[derive(Clone, Debug, Default)]
pub struct RangeSpec {
    /// The subnet with its host bits; `None` if the configuration has none.
    pub subnet: Option<SubnetSpec>,
    /// The first address; by default the one after the network address.
    pub start: Option<IpAddr>,
    /// The last address; by default the one before the broadcast address, for IPv6 the subnet's last address.
    pub end: Option<IpAddr>,
    /// The gateway; by default the address after the network address.
    pub gateway: Option<IpAddr>,
    /// Addresses and networks that are not assigned.
    pub exclude: Vec<IpNetwork>,
}

/// A subnet of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubnetSpec {
    /// An address with a prefix length of its family.
    Network(IpNetwork),
    /// An IPv4-mapped IPv6 address. [`Range::new`] refuses it, because address and mask differ in length.
    Mapped,
}

/// A checked range. `start` and `end`, both inclusive, are in `subnet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The subnet.
    pub subnet: IpNetwork,
    /// The first address.
    pub start: IpAddr,
    /// The last address.
    pub end: IpAddr,
    /// The gateway. The result reports it, and it is never assigned.
    pub gateway: IpAddr,
    /// Networks in the subnet whose addresses are never assigned.
    exclude: Vec<IpNetwork>,
}

impl Range {
    /// Checks a range and fills in its defaults.
    ///
    /// The default start and end exclude network and broadcast address; an explicit start or end may be one
    /// of them. A gateway outside the subnet is accepted, because such networks exist.
    ///
    /// # Errors
    /// The reference's texts, and one of ours for a gateway of another family.
    pub fn new(spec: &RangeSpec) -> Result<Self, String> {
        let subnet = match spec.subnet {
            None => return Err("IP <nil> not v4 nor v6".into()),
            Some(SubnetSpec::Mapped) => return Err("IPNet IP and Mask version mismatch".into()),
            Some(SubnetSpec::Network(subnet)) => subnet,
        };
        let bits = if subnet.is_ipv4() { 32 } else { 128 };
        if subnet.prefix() > bits - 2 {
            return Err(format!("Network {subnet} too small to allocate from"));
        }
        let network = subnet.network();
        if subnet.ip() != network {
            let msg = "Network has host bits set. For a subnet mask of length";
            return Err(format!("{msg} {} the network address is {network}", subnet.prefix()));
        }
        let first = offset(network, 1);
        let last = match subnet.broadcast() {
            broadcast @ IpAddr::V4(_) => offset(broadcast, -1),
            all_ones @ IpAddr::V6(_) => all_ones,
        };
        let gateway = spec.gateway.unwrap_or(first);
        if gateway.is_ipv4() != subnet.is_ipv4() {
            return Err(format!("gateway {gateway} and network {subnet} have different address families"));
        }
        let start = spec.start.unwrap_or(first);
        let end = spec.end.unwrap_or(last);
        let is_inside = |ip: IpAddr| ip.is_ipv4() == subnet.is_ipv4() && subnet.contains(ip);
        let not_in = |what: &str, ip: IpAddr| format!("{what} {ip} not in network {subnet}");
        if !is_inside(start) {
            return Err(not_in("RangeStart", start));
        }
        if !is_inside(end) {
            return Err(not_in("RangeEnd", end));
        }
        if start > end {
            // The reference blames the address that it checks second. It accepts a start at the broadcast
            // address without an end, and then assigns addresses outside the subnet.
            // Its tests compare the whole text, so the reason goes to standard error.
            remark!("range start {start} is after range end {end}");
            return Err(if spec.start.is_some() {
                not_in("RangeStart", start)
            } else {
                not_in("RangeEnd", end)
            });
        }
        if let Some(other) =
            spec.exclude.iter().find(|one| !is_inside(one.ip()) || one.prefix() < subnet.prefix())
        {
            return Err(format!("exclude {other} not in network {subnet}"));
        }
        Ok(Range { subnet, start, end, gateway, exclude: spec.exclude.clone() })
    }

    /// Whether this is an IPv4 range.
    pub fn is_ipv4(&self) -> bool {
        self.subnet.is_ipv4()
    }

    /// Whether `ip` lies between start and end.
    pub fn contains(&self, ip: IpAddr) -> bool {
        // `IpAddr` orders all IPv4 addresses before all IPv6 addresses, so this is false for the other
        // family.
        self.start <= ip && ip <= self.end
    }

    /// Whether the two ranges share an address.
    pub fn overlaps(&self, other: &Range) -> bool {
        self.contains(other.start) || other.contains(self.start)
    }

    /// The part of the range between two addresses.
    pub(super) fn part(&self, first: IpAddr, last: IpAddr) -> Option<Range> {
        let (start, end) = (self.start.max(first), self.end.min(last));
        (first.is_ipv4() == self.is_ipv4() && start <= end).then(|| Range { start, end, ..self.clone() })
    }

    /// Networks in the subnet whose addresses are never assigned.
    pub fn exclude(&self) -> &[IpNetwork] {
        &self.exclude
    }

    /// Whether `ip` is never assigned: it is the gateway, or excluded.
    pub fn is_reserved(&self, ip: IpAddr) -> bool {
        ip == self.gateway || self.excluded(ip).is_some()
    }

    /// The last address of the largest excluded network that contains `ip`.
    fn excluded(&self, ip: IpAddr) -> Option<IpAddr> {
        self.exclude.iter().filter(|one| one.contains(ip)).map(IpNetwork::broadcast).max()
    }

    /// The address after `ip` in the range, or after the excluded network that contains it; `None` at the end and for an
    /// address outside.
    pub fn next(&self, ip: IpAddr) -> Option<IpAddr> {
        let last = self.excluded(ip).unwrap_or(ip);
        (self.contains(ip) && last < self.end).then(|| offset(last, 1))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// The address at the distance `by`. Callers make sure that it exists in the family.
fn offset(ip: IpAddr, by: i8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add_signed(by.into())).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add_signed(by.into())).into(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The range of a configuration. Empty texts stand for missing keys.
    pub(in super::super) fn spec(subnet: &str, start: &str, end: &str, gateway: &str) -> RangeSpec {
        let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        let subnet = Some(SubnetSpec::Network(subnet.parse().unwrap()));
        RangeSpec { subnet, start: ip(start), end: ip(end), gateway: ip(gateway), exclude: Vec::new() }
    }

    #[test]
    fn defaults() {
        let range = Range::new(&spec("10.1.2.0/24", "", "", "")).unwrap();
        assert_eq!(
            (range.to_string().as_str(), range.gateway.to_string().as_str()),
            ("10.1.2.1-10.1.2.254", "10.1.2.1")
        );
        let range = Range::new(&spec("2001:db8::/64", "", "", "")).unwrap();
        assert_eq!(range.to_string(), "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff");
        let range = Range::new(&spec("10.1.2.0/30", "", "", "")).unwrap();
        assert_eq!(range.to_string(), "10.1.2.1-10.1.2.2");
        let range = Range::new(&spec("0.0.0.0/0", "", "", "")).unwrap();
        assert_eq!(range.to_string(), "0.0.0.1-255.255.255.254");
    }

    #[test]
    fn network_and_broadcast_addresses_can_be_explicit() {
        let range = Range::new(&spec("10.1.2.0/24", "10.1.2.0", "10.1.2.255", "192.0.2.1")).unwrap();
        assert_eq!(range.to_string(), "10.1.2.0-10.1.2.255");
        assert_eq!(range.gateway.to_string(), "192.0.2.1");
    }

    #[test]
    fn errors_have_the_references_texts() {
        for (subnet, start, end, gateway, msg) in [
            ("10.1.2.0/31", "", "", "", "Network 10.1.2.0/31 too small to allocate from"),
            ("10.1.2.0/32", "", "", "", "Network 10.1.2.0/32 too small to allocate from"),
            ("fd00::/127", "", "", "", "Network fd00::/127 too small to allocate from"),
            (
                "10.1.2.3/24",
                "",
                "",
                "",
                "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
            ),
            ("10.1.2.0/24", "10.1.3.1", "", "", "RangeStart 10.1.3.1 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "fd00::1", "", "", "RangeStart fd00::1 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "", "10.1.3.1", "", "RangeEnd 10.1.3.1 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "10.1.2.9", "10.1.2.8", "", "RangeStart 10.1.2.9 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "", "10.1.2.0", "", "RangeEnd 10.1.2.0 not in network 10.1.2.0/24"),
            ("10.1.2.0/24", "10.1.2.255", "", "", "RangeStart 10.1.2.255 not in network 10.1.2.0/24"),
            (
                "10.1.2.0/24",
                "",
                "",
                "fd00::1",
                "gateway fd00::1 and network 10.1.2.0/24 have different address families",
            ),
        ] {
            assert_eq!(Range::new(&spec(subnet, start, end, gateway)).unwrap_err(), msg);
        }
        assert_eq!(Range::new(&RangeSpec::default()).unwrap_err(), "IP <nil> not v4 nor v6");
    }

    proptest! {
        /// A range behaves like the list of its addresses.
        #[test]
        fn range_equals_a_list(a in 0u8..64, b in 0u8..64, c in 0u8..64, d in 0u8..64, v4: bool) {
            let address = |n: u8| if v4 { format!("10.0.0.{n}") } else { format!("fd00::{n:x}") };
            let range = |from: u8, to: u8| {
                let subnet = if v4 { "10.0.0.0/26" } else { "fd00::/122" };
                Range::new(&spec(subnet, &address(from), &address(to), ""))
            };
            prop_assert_eq!(range(a, b).is_ok(), a <= b);
            if let (Ok(one), Ok(two)) = (range(a, b), range(c, d)) {
                let list: Vec<u8> = (a..=b).collect();
                prop_assert_eq!(one.overlaps(&two), list.iter().any(|n| (c..=d).contains(n)));
                prop_assert_eq!(one.overlaps(&two), two.overlaps(&one));
                for n in 0..64 {
                    let ip: IpAddr = address(n).parse().unwrap();
                    prop_assert_eq!(one.contains(ip), list.contains(&n));
                    let next = list.iter().position(|m| *m == n).and_then(|i| list.get(i + 1));
                    prop_assert_eq!(one.next(ip), next.map(|m| address(*m).parse().unwrap()));
                }
                let foreign: IpAddr = if v4 { "fd00::5" } else { "10.0.0.5" }.parse().unwrap();
                prop_assert!(!one.contains(foreign));
            }
        }
    }
}
