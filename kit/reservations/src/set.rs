//! A range set: alternative ranges. An attachment gets one address from every set.

use std::fmt;
use std::iter;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::range::{Range, RangeSpec};

/// One or more ranges of one family that do not overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    /// Checks each range and all pairs of ranges.
    ///
    /// # Errors
    /// The reference's texts.
    pub fn new(specs: &[RangeSpec]) -> Result<Self, String> {
        let mut ranges: Vec<Range> = Vec::with_capacity(specs.len());
        for spec in specs {
            let range = Range::new(spec)?;
            if ranges.first().is_some_and(|first| first.is_ipv4() != range.is_ipv4()) {
                return Err("mixed address families".into());
            }
            ranges.push(range);
        }
        for (i, one) in ranges.iter().enumerate() {
            if let Some(other) = ranges[i + 1..].iter().find(|other| one.overlaps(other)) {
                return Err(format!("subnets {one} and {other} overlap"));
            }
        }
        if ranges.is_empty() { Err("empty range set".into()) } else { Ok(RangeSet(ranges)) }
    }

    /// Whether this is an IPv4 set.
    pub fn is_ipv4(&self) -> bool {
        self.0.iter().any(Range::is_ipv4)
    }

    /// The range that contains `ip`.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// Whether one of the ranges contains `ip`.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some()
    }

    /// The ranges.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The part of the set between two addresses; `None` if there is none.
    pub fn within(&self, first: IpAddr, last: IpAddr) -> Option<RangeSet> {
        let parts: Vec<Range> = self.0.iter().filter_map(|range| range.part(first, last)).collect();
        (!parts.is_empty()).then_some(RangeSet(parts))
    }

    /// The subnets of the ranges.
    pub fn subnets(&self) -> impl Iterator<Item = IpNetwork> {
        self.0.iter().map(|range| range.subnet)
    }

    /// Whether the sets share an address.
    pub fn overlaps(&self, other: &RangeSet) -> bool {
        self.0.iter().any(|one| other.0.iter().any(|two| one.overlaps(two)))
    }

    /// All assignable addresses, each once, round robin: from the address after `last` up to `last` itself.
    /// If `last` is not in the set, from the first address of the first range.
    ///
    /// Leaves out excluded addresses and the gateway of an address's own range, but not the gateways of other ranges: the reference
    /// assigns those, and its assignments must stay valid.
    pub fn candidates(&self, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        let after = last.and_then(|ip| {
            let index = self.0.iter().position(|range| range.contains(ip))?;
            Some(self.step(index, ip))
        });
        let first = after.or_else(|| self.0.first().map(|range| (0, range.start)));
        let next = move |&(index, ip): &_| Some(self.step(index, ip)).filter(|next| Some(*next) != first);
        let all = iter::successors(first, next);
        all.filter(|(index, ip)| !self.0[*index].is_reserved(*ip)).map(|(_, ip)| ip)
    }

    /// The position after `ip` in range `index`; after the range's last address, the start of the next range.
    fn step(&self, index: usize, ip: IpAddr) -> (usize, IpAddr) {
        match self.0[index].next(ip) {
            Some(next) => (index, next),
            None => {
                let index = (index + 1) % self.0.len();
                (index, self.0[index].start)
            }
        }
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::range::tests::spec;
    use super::*;

    fn candidates(set: &RangeSet, last: Option<&str>) -> Vec<String> {
        set.candidates(last.map(|ip| ip.parse().unwrap())).map(|ip| ip.to_string()).collect()
    }

    #[test]
    fn round_robin_over_two_ranges() {
        let set = RangeSet::new(&[
            spec("192.168.1.0/29", "192.168.1.1", "192.168.1.3", "192.168.1.2"),
            spec("192.168.2.0/30", "", "", ""),
        ])
        .unwrap();
        assert_eq!(set.to_string(), "192.168.1.1-192.168.1.3,192.168.2.1-192.168.2.2");
        assert_eq!(candidates(&set, None), ["192.168.1.1", "192.168.1.3", "192.168.2.2"]);
        assert_eq!(candidates(&set, Some("192.168.1.3")), ["192.168.2.2", "192.168.1.1", "192.168.1.3"]);
        assert_eq!(candidates(&set, Some("192.168.2.2")), ["192.168.1.1", "192.168.1.3", "192.168.2.2"]);
        assert_eq!(candidates(&set, Some("172.16.0.1")), ["192.168.1.1", "192.168.1.3", "192.168.2.2"]);
    }

    #[test]
    fn excluded_networks_are_skipped_at_once() {
        let set = |subnet: &str, start: &str, exclude: &[&str]| {
            let exclude = exclude.iter().map(|text| text.parse().unwrap()).collect();
            RangeSet::new(&[RangeSpec { exclude, ..spec(subnet, start, "", "") }])
        };
        // Nested, at the start, and at the end.
        let small =
            set("10.0.0.0/28", "", &["10.0.0.4", "10.0.0.4/30", "10.0.0.0/31", "10.0.0.12/30"]).unwrap();
        assert_eq!(
            candidates(&small, None),
            ["10.0.0.2", "10.0.0.3", "10.0.0.8", "10.0.0.9", "10.0.0.10", "10.0.0.11"]
        );
        // The last address has been excluded since.
        for last in ["10.0.0.4", "10.0.0.6", "10.0.0.7"] {
            assert_eq!(candidates(&small, Some(last))[..2], ["10.0.0.8", "10.0.0.9"], "{last}");
            assert_eq!(candidates(&small, Some(last)).len(), 6, "{last}");
        }
        let large =
            set("fd00::/64", "", &["fd00::/65", "fd00::8000:0:0:0/66", "fd00::c000:0:0:0/66"]).unwrap();
        assert!(candidates(&large, None).is_empty());
        let most = set("fd00::/64", "fd00::5", &["fd00::/65"]).unwrap();
        assert_eq!(most.candidates(None).next().unwrap().to_string(), "fd00::8000:0:0:0");
        for other in ["10.1.0.1", "10.0.0.0/27", "fd00::1"] {
            let error = set("10.0.0.0/28", "", &[other]).unwrap_err();
            assert!(
                error.starts_with(&format!("exclude {other}"))
                    && error.ends_with("not in network 10.0.0.0/28"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_part_of_a_set() {
        let set = RangeSet::new(&[
            spec("10.0.0.0/28", "", "", ""),
            spec("10.0.1.0/28", "10.0.1.4", "10.0.1.9", ""),
        ])
        .unwrap();
        let within = |first: &str, last: &str| set.within(first.parse().unwrap(), last.parse().unwrap());
        assert_eq!(within("10.0.1.8", "10.0.1.11").unwrap().to_string(), "10.0.1.8-10.0.1.9");
        assert_eq!(
            within("10.0.0.12", "10.0.1.5").unwrap().to_string(),
            "10.0.0.12-10.0.0.14,10.0.1.4-10.0.1.5"
        );
        assert!(within("10.0.1.0", "10.0.1.3").is_none() && within("fd00::", "fd00::ff").is_none());
        let part = within("10.0.0.0", "10.0.0.3").unwrap();
        assert_eq!(candidates(&part, None), ["10.0.0.2", "10.0.0.3"], "without the gateway");
    }

    #[test]
    fn set_with_only_its_gateway_has_no_candidates() {
        let set = RangeSet::new(&[spec("10.0.0.0/24", "10.0.0.1", "10.0.0.1", "")]).unwrap();
        assert!(candidates(&set, None).is_empty());
    }

    #[test]
    fn candidates_at_the_end_of_the_address_space() {
        let top = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let set = RangeSet::new(&[spec("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126", "", "", "")]).unwrap();
        assert_eq!(candidates(&set, None).last().unwrap(), top);
        let set = RangeSet::new(&[spec("255.255.255.252/30", "", "255.255.255.255", "")]).unwrap();
        assert_eq!(candidates(&set, None), ["255.255.255.254", "255.255.255.255"]);
    }

    #[test]
    fn errors_have_the_references_texts() {
        for (specs, msg) in [
            (vec![], "empty range set"),
            (vec![spec("10.0.0.0/24", "", "", ""), spec("fd00::/64", "", "", "")], "mixed address families"),
            (
                vec![spec("10.0.0.0/24", "", "", ""), spec("10.0.0.0/16", "10.0.0.20", "10.0.0.30", "")],
                "subnets 10.0.0.1-10.0.0.254 and 10.0.0.20-10.0.0.30 overlap",
            ),
        ] {
            assert_eq!(RangeSet::new(&specs).unwrap_err(), msg);
        }
    }

    proptest! {
        /// Compares with a list: all addresses in order, rotated, without those that are their own range's
        /// gateway.
        #[test]
        fn candidates_equal_a_rotated_list(
            ranges in prop::collection::vec((0u8..60, 0u8..12, 0u8..64), 1..4),
            last in prop::option::of(0u8..255),
        ) {
            let subnets = ["10.0.0", "10.0.1", "10.0.2"];
            let mut specs = Vec::new();
            let mut all: Vec<(IpAddr, bool)> = Vec::new();
            for ((from, more, gateway), subnet) in ranges.iter().zip(subnets) {
                let to = (from + more).min(63);
                let ip = |n: u8| format!("{subnet}.{n}");
                specs.push(spec(&format!("{subnet}.0/26"), &ip(*from), &ip(to), &ip(*gateway)));
                all.extend((*from..=to).map(|n| (ip(n).parse().unwrap(), n == *gateway)));
            }
            let set = RangeSet::new(&specs).unwrap();
            let last = last.map(|n| format!("10.0.{}.{}", n % 3, n / 4).parse::<IpAddr>().unwrap());
            if let Some(i) = last.and_then(|last| all.iter().position(|(ip, _)| *ip == last)) {
                let middle = (i + 1) % all.len();
                all.rotate_left(middle);
            }
            let expected: Vec<IpAddr> = all.iter().filter(|(_, gateway)| !gateway).map(|(ip, _)| *ip).collect();
            prop_assert_eq!(set.candidates(last).collect::<Vec<_>>(), expected);
        }
    }
}
