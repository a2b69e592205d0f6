//! IP and MAC addresses. Their masks keep prefixes: two addresses in one subnet have masks in one subnet. Well-known addresses stay.
//! Pure, except for the random key.
//!
//! # References
//! Xu, Fan, Ammar, Moon: Prefix-preserving IP address anonymization (2002). Each bit of an address is inverted or not by a keyed hash
//! of the bits before it. A bit stays if a well-known prefix begins with the bits before it, so that no other address gets a mask
//! within such a prefix.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A prefix, and whether the addresses in it stay as they are. Otherwise only the prefix itself stays.
type Known = (&'static str, u32, bool);

const V4: [Known; 9] = [
    ("0.0.0.0", 8, true),
    ("10.0.0.0", 8, false),
    ("100.64.0.0", 10, false),
    ("127.0.0.0", 8, true),
    ("169.254.0.0", 16, true),
    ("172.16.0.0", 12, false),
    ("192.168.0.0", 16, false),
    ("198.18.0.0", 15, false),
    ("224.0.0.0", 3, true),
];

const V6: [Known; 9] = [
    ("::", 127, true),
    ("::ffff:0:0", 96, false),
    ("64:ff9b::", 96, false),
    ("2000::", 3, false),
    ("2001:db8::", 32, false),
    ("fc00::", 8, false),
    ("fd00::", 8, false),
    ("fe80::", 64, false),
    ("ff00::", 8, true),
];

/// `ff02::1:ff00:0/104`: its last 24 bits are those of an address.
const SOLICITED: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;

#[derive(Default)]
pub(super) struct Addresses {
    key: RandomState,
}

impl Addresses {
    /// An address at the beginning of `rest`: its length, and its mask.
    pub(super) fn at(&self, previous: Option<char>, rest: &str) -> Option<(usize, String)> {
        let first = rest.chars().next()?;
        if !first.is_ascii_hexdigit() && first != ':' {
            return None;
        }
        if previous.is_none_or(|c| !c.is_ascii_hexdigit() && c != ':')
            && let Some(len) = mac(rest)
        {
            return Some((len, self.mac(&rest[..len])));
        }
        if previous.is_none_or(|c| !c.is_alphanumeric() && c != ':')
            && let Some((len, address)) = v6(rest)
        {
            let mask = self.v6(address, prefix(&rest[len..]));
            return Some((len, mask.to_string()));
        }
        if previous.is_some_and(|c| c.is_ascii_digit()) {
            return None;
        }
        if let Some((len, address)) = v4(rest, '.') {
            return Some((len, self.v4(address, prefix(&rest[len..])).to_string()));
        }
        // As in the host names of clouds and of pods.
        if previous.is_none_or(|c| !c.is_alphanumeric())
            && let Some((len, address)) = v4(rest, '-')
        {
            return Some((len, self.v4(address, None).to_string().replace('.', "-")));
        }
        None
    }

    /// With a prefix length, an address whose further bits are 0 is a subnet: these bits stay.
    fn v4(&self, address: Ipv4Addr, prefix: Option<u32>) -> Ipv4Addr {
        let bits = u128::from(address.to_bits());
        let is_kept = |(known, len, stays): &Known| {
            let known = known.parse::<Ipv4Addr>().map_or(0, Ipv4Addr::to_bits);
            *stays && top(bits, 32, *len) == top(known.into(), 32, *len)
        };
        if V4.iter().any(is_kept) {
            return address;
        }
        let known = V4.map(|(known, len, _)| {
            (known.parse::<Ipv4Addr>().map_or(0, |known| u128::from(known.to_bits())), len)
        });
        let masked = self.invert(bits, 32, significant(bits, 32, prefix), &known);
        Ipv4Addr::from_bits(u32::try_from(masked).unwrap_or_default())
    }

    fn v6(&self, address: Ipv6Addr, prefix: Option<u32>) -> Ipv6Addr {
        if let Some(inner) = address.to_ipv4_mapped() {
            return self.v4(inner, None).to_ipv6_mapped();
        }
        let bits = address.to_bits();
        if bits >> 24 == SOLICITED >> 24 {
            let masked = self.key.hash_one(bits) & 0xff_ffff;
            return Ipv6Addr::from_bits(SOLICITED | u128::from(masked));
        }
        let known = V6.map(|(known, len, _)| (known.parse::<Ipv6Addr>().map_or(0, Ipv6Addr::to_bits), len));
        let stays = V6
            .iter()
            .zip(known)
            .any(|((_, _, stays), (known, len))| *stays && top(bits, 128, len) == top(known, 128, len));
        match stays {
            true => address,
            false => Ipv6Addr::from_bits(self.invert(bits, 128, significant(bits, 128, prefix), &known)),
        }
    }

    /// Inverts the first `count` of the `width` bits, or leaves them.
    fn invert(&self, bits: u128, width: u32, count: u32, known: &[(u128, u32)]) -> u128 {
        let mut masked = bits;
        for at in 0..count {
            let before = top(bits, width, at);
            let is_fixed = known.iter().any(|(known, len)| *len > at && top(*known, width, at) == before);
            if !is_fixed && self.key.hash_one((width, at, before)) & 1 == 1 {
                masked ^= 1 << (width - 1 - at);
            }
        }
        masked
    }

    /// Whether it is a group, and whether it is local, stays.
    fn mac(&self, text: &str) -> String {
        let bytes: Vec<u8> = text.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let is_uniform = bytes.iter().all(|byte| *byte == 0) || bytes.iter().all(|byte| *byte == 0xff);
        if is_uniform {
            return text.to_owned();
        }
        let mut masked = self.key.hash_one(&bytes).to_be_bytes().into_iter().cycle();
        let mut masked: Vec<u8> = bytes.iter().map(|_| masked.next().unwrap_or_default()).collect();
        let kept = match bytes[..] {
            [0x33, 0x33, ..] => 2,
            [0x01, 0x00, 0x5e, ..] | [0x01, 0x80, 0xc2, ..] => 3,
            _ => 0,
        };
        masked[..kept].copy_from_slice(&bytes[..kept]);
        masked[0] = masked[0] & !3 | bytes[0] & 3;
        masked.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
    }
}

/// The first bits, as a number.
fn top(bits: u128, width: u32, count: u32) -> u128 {
    if count == 0 { 0 } else { bits >> (width - count) }
}

/// How many bits name a subnet, or the address.
fn significant(bits: u128, width: u32, prefix: Option<u32>) -> u32 {
    let is_subnet = |len: &u32| *len < width && bits << (128 - width + len) == 0;
    prefix.filter(is_subnet).unwrap_or(width)
}

/// The prefix length behind an address.
fn prefix(rest: &str) -> Option<u32> {
    let digits = rest.strip_prefix('/')?;
    digits[..digits.bytes().take_while(u8::is_ascii_digit).count()].parse().ok()
}

/// The length of a MAC address, of 6 bytes or more. One with 8 bytes looks like an IPv6 address and counts as such.
fn mac(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes();
    let is_byte = |at: usize| bytes.get(at..at + 2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    let (mut len, mut count) = (2, usize::from(is_byte(0)));
    while count > 0 && bytes.get(len) == Some(&b':') && is_byte(len + 1) {
        (len, count) = (len + 3, count + 1);
    }
    let is_end = bytes.get(len).is_none_or(|byte| !byte.is_ascii_hexdigit() && *byte != b':');
    (count >= 6 && count != 8 && is_end).then_some(len)
}

fn v6(rest: &str) -> Option<(usize, Ipv6Addr)> {
    let run = rest.bytes().take_while(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte)).count();
    let bytes = rest.as_bytes();
    let is_end = |len: &usize| bytes.get(*len).is_none_or(|byte| !byte.is_ascii_alphanumeric());
    if rest[..run].bytes().filter(|byte| *byte == b':').count() < 2 {
        return None;
    }
    let mut lengths = (2..=run.min(45)).rev().filter(is_end);
    lengths.find_map(|len| match rest[..len].parse().ok()? {
        IpAddr::V6(address) => Some((len, address)),
        IpAddr::V4(_) => None,
    })
}

/// Four numbers with this separator.
fn v4(rest: &str, separator: char) -> Option<(usize, Ipv4Addr)> {
    let (mut octets, mut end) = ([0; 4], 0);
    for (number, octet) in octets.iter_mut().enumerate() {
        if number > 0 {
            end += rest[end..].starts_with(separator).then_some(1)?;
        }
        let digits = rest[end..].bytes().take_while(u8::is_ascii_digit).count();
        *octet = rest[end..end + digits].parse().ok()?;
        end += digits;
    }
    Some((end, octets.into()))
}
