//! Blocks of addresses as intervals.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::{IpBlock, IpFamily};

/// The first and the last address of intervals, in order, neither overlapping nor adjacent.
pub(crate) type Intervals = Vec<(IpAddr, IpAddr)>;

type Numbers = Vec<(u128, u128)>;

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn address(family: IpFamily, number: u128) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::V4(Ipv4Addr::from(number as u32)),
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

fn last(family: IpFamily) -> u128 {
    if family == IpFamily::V4 { u32::MAX.into() } else { u128::MAX }
}

/// Reads `ADDRESS/LENGTH`. Bits behind the length do not count. The API server takes `::ffff:10.0.0.0/104` for 10.0.0.0/8.
fn cidr(text: &str) -> Result<(IpFamily, u128, u128), String> {
    let bad = || format!("{text:?} is no CIDR");
    let (ip, length) = text.split_once('/').ok_or_else(bad)?;
    let ip: IpAddr = ip.parse().map_err(|_| bad())?;
    if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let length: u32 = length.parse().map_err(|_| bad())?;
    let family = IpFamily::of(ip);
    let bits = family.bits().into();
    let host_bits = bits_below(bits, length).ok_or_else(bad)?;
    let (first, last) = (number(ip) & !host_bits, number(ip) | host_bits);
    Ok(match [first, last].map(|end| address(family, end).to_canonical()) {
        [IpAddr::V4(first), IpAddr::V4(last)] => (IpFamily::V4, number(first.into()), number(last.into())),
        _ => (family, first, last),
    })
}

fn bits_below(bits: u32, length: u32) -> Option<u128> {
    match bits.checked_sub(length)? {
        0 => Some(0),
        host => Some(u128::MAX >> (128 - host)),
    }
}

/// A block without its exceptions.
pub(crate) fn read(block: &IpBlock) -> Result<(IpFamily, Intervals), String> {
    let (family, first, last) = cidr(&block.cidr)?;
    let mut left: Numbers = vec![(first, last)];
    for except in &block.except {
        let (other, from, to) = cidr(except)?;
        if other != family {
            return Err(format!("{except:?} is not of the family of {:?}", block.cidr));
        }
        left = left
            .into_iter()
            .flat_map(|(first, last)| {
                let before = (first < from).then(|| (first, last.min(from.saturating_sub(1))));
                let after = (last > to).then(|| (first.max(to.saturating_add(1)), last));
                before.into_iter().chain(after)
            })
            .collect();
    }
    Ok((family, intervals(family, left)))
}

/// Blocks of one family as one.
pub(crate) fn union(family: IpFamily, all: impl IntoIterator<Item = (IpAddr, IpAddr)>) -> Intervals {
    intervals(family, all.into_iter().map(|(first, last)| (number(first), number(last))).collect())
}

fn intervals(family: IpFamily, mut all: Numbers) -> Intervals {
    all.sort_unstable();
    let mut joined = Numbers::new();
    for (first, last) in all {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined.into_iter().map(|(first, last)| (address(family, first), address(family, last))).collect()
}

/// Whether it is every address of its family.
pub(crate) fn is_whole(family: IpFamily, intervals: &[(IpAddr, IpAddr)]) -> bool {
    matches!(intervals, [(from, to)] if number(*from) == 0 && number(*to) == last(family))
}

pub(crate) fn contains(intervals: &[(IpAddr, IpAddr)], address: IpAddr) -> bool {
    let behind = intervals.partition_point(|(first, _)| *first <= address);
    behind
        .checked_sub(1)
        .and_then(|at| intervals.get(at))
        .is_some_and(|(first, last)| IpFamily::of(*first) == IpFamily::of(address) && address <= *last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cidr: &str, except: &[&str]) -> Result<String, String> {
        let except = except.iter().map(|except| except.to_string()).collect();
        let (_, all) = read(&IpBlock { cidr: cidr.into(), except })?;
        Ok(all.iter().map(|(first, last)| format!("{first}-{last}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_block_is_what_its_exceptions_leave() {
        for (cidr, except, left) in [
            ("10.0.0.0/8", &[][..], "10.0.0.0-10.255.255.255"),
            ("10.0.0.7/24", &[], "10.0.0.0-10.0.0.255"),
            ("10.0.0.0/24", &["10.0.0.0/25"], "10.0.0.128-10.0.0.255"),
            ("10.0.0.0/24", &["10.0.0.128/25", "10.0.0.0/26"], "10.0.0.64-10.0.0.127"),
            ("10.0.0.0/24", &["10.0.0.4/32", "10.0.0.5/32"], "10.0.0.0-10.0.0.3 10.0.0.6-10.0.0.255"),
            ("10.0.0.0/24", &["10.0.0.0/8"], ""),
            ("0.0.0.0/0", &["255.255.255.255/32", "0.0.0.0/32"], "0.0.0.1-255.255.255.254"),
            ("::/0", &["ffff::/16", "::/1"], "8000::-fffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fd00::1/128", &[], "fd00::1-fd00::1"),
            ("::ffff:10.0.0.0/120", &["10.0.0.0/25"], "10.0.0.128-10.0.0.255"),
            ("10.0.0.0/24", &["::ffff:10.0.0.0/121"], "10.0.0.128-10.0.0.255"),
            ("::ffff:0.0.0.0/95", &[], "::fffe:0:0-::ffff:255.255.255.255"),
        ] {
            assert_eq!(text(cidr, except).as_deref(), Ok(left), "{cidr} {except:?}");
        }
    }

    #[test]
    fn what_is_no_block() {
        for bad in [
            "",
            "/",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0/8",
            "10.0.0.0/8/8",
            "010.0.0.0/8",
            "a/8",
        ] {
            assert!(text(bad, &[]).is_err(), "{bad}");
            assert!(text("10.0.0.0/8", &[bad]).is_err(), "{bad}");
        }
        assert!(text("10.0.0.0/8", &["::/0"]).is_err());
    }

    #[test]
    fn the_whole_family_is_known() {
        let halves = ["0.0.0.0/1", "128.0.0.0/1"]
            .map(|cidr| read(&IpBlock { cidr: cidr.into(), except: Vec::new() }).unwrap().1);
        let joined = union(IpFamily::V4, halves.into_iter().flatten());
        assert!(is_whole(IpFamily::V4, &joined));
        assert!(contains(&joined, [1, 2, 3, 4].into()));
        assert!(!contains(&joined, "::1".parse().unwrap()));
        assert!(!is_whole(IpFamily::V6, &joined));
    }
}
