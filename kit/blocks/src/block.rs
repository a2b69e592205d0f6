//! A block: a fixed, aligned part of the address space. Its name follows from its first address alone, so two nodes that want the same
//! address of a domain always name the same object.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

/// The size, if the configuration has none.
const USUAL: u32 = 32;
/// The largest size.
const LARGEST: u32 = 65_536;
/// The longest name of a domain: it is a label of DNS, and the value of a label of Kubernetes.
const LONGEST: usize = 63;

/// How many addresses a block has: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Size(u32);

impl Default for Size {
    fn default() -> Size {
        Size(USUAL)
    }
}

impl TryFrom<u32> for Size {
    type Error = String;

    fn try_from(size: u32) -> Result<Size, String> {
        match size.is_power_of_two() && size <= LARGEST {
            true => Ok(Size(size)),
            false => Err(format!("blockSize {size} is no power of two from 1 to {LARGEST}")),
        }
    }
}

impl From<Size> for u32 {
    fn from(size: Size) -> u32 {
        size.0
    }
}

impl Size {
    /// One address.
    pub const ONE: Size = Size(1);

    /// The number of addresses.
    pub fn count(self) -> u128 {
        self.0.into()
    }
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Block {
    /// Its first address, a multiple of the size.
    pub first: IpAddr,
    /// The number of its addresses.
    pub size: Size,
}

impl Block {
    /// The block of this size that has the address.
    pub fn of(ip: IpAddr, size: Size) -> Block {
        Block { first: from_bits(bits(ip) / size.count() * size.count(), ip.is_ipv4()), size }
    }

    /// Whether the first address fits the size.
    pub fn is_aligned(&self) -> bool {
        Block::of(self.first, self.size) == *self
    }

    /// The last address.
    pub fn last(&self) -> IpAddr {
        from_bits(bits(self.first) + (self.size.count() - 1), self.first.is_ipv4())
    }

    /// The block as a network.
    pub fn network(&self) -> IpNetwork {
        let all = if self.first.is_ipv4() { 32 } else { 128 };
        // The size is a power of two, and the first address a multiple of it.
        let bits = u8::try_from(self.size.0.trailing_zeros()).unwrap_or_default();
        IpNetwork::new(self.first, all - bits).unwrap_or_else(|_| self.first.into())
    }

    /// Whether the block has the address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.first <= ip && ip <= self.last()
    }

    /// Whether the blocks share an address.
    pub fn overlaps(&self, other: &Block) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// The name of the object that is the claim.
    pub fn name(&self, domain: &str) -> String {
        let parts: Vec<String> = match self.first {
            IpAddr::V4(ip) => ip.octets().iter().map(u8::to_string).collect(),
            IpAddr::V6(ip) => ip.segments().iter().map(|part| format!("{part:04x}")).collect(),
        };
        format!("{domain}.{}", parts.join("-"))
    }

    /// The first address of the block that has this name.
    pub fn first_of(name: &str, domain: &str) -> Option<IpAddr> {
        let text = name.strip_prefix(domain)?.strip_prefix('.')?;
        let separator = if text.matches('-').count() == 3 { "." } else { ":" };
        let first = text.replace('-', separator).parse().ok()?;
        (Block { first, size: Size::ONE }.name(domain) == name).then_some(first)
    }
}

/// Whether the block shares an address with one of these.
pub fn is_taken(taken: &BTreeSet<Block>, block: &Block) -> bool {
    // Of two blocks one has the other one, or they share no address.
    let inner = taken.range(Block { size: Size::ONE, ..*block }..).next();
    inner.is_some_and(|other| other.first <= block.last())
        || (0..=LARGEST.ilog2()).any(|power| taken.contains(&Block::of(block.first, Size(1 << power))))
}

/// Checks the name of a layer-2 domain: a label of DNS.
///
/// # Errors
/// Says what it has to be.
pub fn check_domain(domain: &str) -> Result<(), String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_outer = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-' && is_inner(*byte));
    let bytes = domain.as_bytes();
    let is_label = bytes.len() <= LONGEST && bytes.iter().all(|byte| is_inner(*byte));
    if is_label && is_outer(bytes.first()) && is_outer(bytes.last()) {
        return Ok(());
    }
    Err(format!("domain {domain:?} is no name of at most {LONGEST} lower-case letters, digits and hyphens"))
}

/// The address as a number.
pub(crate) fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// The address with this number. Callers stay inside of the family.
pub(crate) fn from_bits(bits: u128, is_ipv4: bool) -> IpAddr {
    match (is_ipv4, u32::try_from(bits)) {
        (true, Ok(bits)) => Ipv4Addr::from_bits(bits).into(),
        (true, Err(_)) => Ipv4Addr::BROADCAST.into(),
        (false, _) => Ipv6Addr::from_bits(bits).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(ip: &str, size: u32) -> Block {
        Block::of(ip.parse().unwrap(), size.try_into().unwrap())
    }

    #[test]
    fn names_follow_from_the_address_alone() {
        assert_eq!(block("10.0.0.45", 32).name("lan"), "lan.10-0-0-32");
        assert_eq!(block("fd00::ff", 16).name("lan"), "lan.fd00-0000-0000-0000-0000-0000-0000-00f0");
        assert_eq!(block("10.0.0.45", 1).name("lan"), "lan.10-0-0-45");
        for name in ["lan.10-0-0-32", "lan.fd00-0020-0000-0000-0000-0000-0000-00f0"] {
            assert_eq!(
                Block::first_of(name, "lan").map(|first| Block::of(first, Size::ONE).name("lan")).unwrap(),
                name
            );
        }
        for name in [
            "lan",
            "lan.",
            "lan.10-0-0",
            "lan.10-0-0-032",
            "lan.fd00-20-0-0-0-0-0-f0",
            "lan.x",
            "l.10-0-0-32",
        ] {
            assert_eq!(Block::first_of(name, "lan"), None, "{name}");
        }
        for (ip, size, last) in [
            ("255.255.255.255", 65_536, "255.255.255.255"),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 2, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("10.0.0.45", 32, "10.0.0.63"),
            ("10.0.0.45", 1, "10.0.0.45"),
        ] {
            assert_eq!(block(ip, size).last(), last.parse::<IpAddr>().unwrap(), "{ip} {size}");
        }
        let networks = [block("10.0.0.45", 32), block("fd00::9", 1)].map(|one| one.network().to_string());
        assert_eq!(networks, ["10.0.0.32/27", "fd00::9/128"]);
        assert!(block("10.0.0.45", 32).overlaps(&block("10.0.0.40", 8)));
        assert!(!block("10.0.0.45", 8).overlaps(&block("10.0.0.32", 8)));
        assert!(!block("0.0.0.0", 8).contains("::1".parse().unwrap()));
    }

    #[test]
    fn bad_sizes_and_domains() {
        for size in [0, 3, 33, 131_072] {
            assert!(Size::try_from(size).unwrap_err().starts_with(&format!("blockSize {size} ")));
        }
        for domain in ["", "-a", "a-", "A", "a.b", "a/b", "ä", &"a".repeat(64)] {
            assert!(check_domain(domain).is_err(), "{domain:?}");
        }
        for domain in ["a", "lan-1", "0", &"a".repeat(63)] {
            check_domain(domain).unwrap();
        }
        let decoded: Result<Block, _> = serde_json::from_str(r#"{"first":"10.0.0.0","size":3}"#);
        assert!(decoded.is_err());
        assert!(!Block { first: "10.0.0.1".parse().unwrap(), size: Size::default() }.is_aligned());
    }
}
