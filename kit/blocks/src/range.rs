//! The ranges of a network, and what all nodes of a domain must agree on.

use std::net::IpAddr;
use std::{fmt, iter};

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::block::{Block, Size, bits, from_bits};
use crate::text;

/// One range of a network's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Range {
    /// What all nodes of the domain must agree on.
    #[serde(flatten)]
    pub fixed: Fixed,
    /// The gateway, which no container gets.
    pub gateway: IpAddr,
    /// Networks whose addresses no container gets.
    #[serde(default, with = "text::list")]
    pub exclude: Vec<IpNetwork>,
    /// Containers get its addresses only if they request them, so its blocks have one address each.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_request: bool,
}

/// The part of a range that all nodes of the domain must agree on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fixed {
    /// The subnet.
    #[serde(with = "text")]
    pub subnet: IpNetwork,
    /// The first address.
    pub range_start: IpAddr,
    /// The last address.
    pub range_end: IpAddr,
    /// The size of its blocks.
    pub block_size: Size,
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subnet, start, end) = (self.subnet, self.range_start, self.range_end);
        write!(f, "{subnet} from {start} to {end} in blocks of {}", self.block_size.count())
    }
}

impl Fixed {
    /// Checks a range that was read.
    ///
    /// # Errors
    /// Start and end are not in the subnet in this order, or a block is larger than the subnet.
    pub fn check(&self) -> Result<(), String> {
        let (start, end) = (self.range_start, self.range_end);
        if !self.subnet.contains(start) || !self.subnet.contains(end) || start > end {
            return Err(format!("{self}: the addresses are not in the subnet"));
        }
        // So that no block has addresses of two subnets.
        let host_bits = if self.subnet.is_ipv4() { 32 } else { 128 } - self.subnet.prefix();
        if host_bits < 32 && self.block_size.count() > 1 << host_bits {
            return Err(format!("{self}: a block is larger than the subnet"));
        }
        Ok(())
    }

    /// The usual size of a block, or that of a smaller subnet.
    pub fn usual_size(subnet: IpNetwork) -> Size {
        let host_bits = if subnet.is_ipv4() { 32 } else { 128 } - subnet.prefix();
        let smaller = 1u32.checked_shl(host_bits.into()).and_then(|size| Size::try_from(size).ok());
        smaller.map_or_else(Size::default, |size| size.min(Size::default()))
    }

    /// The block with the address.
    pub fn block(&self, ip: IpAddr) -> Block {
        Block::of(ip, self.block_size)
    }

    /// Whether the blocks of the ranges share no address.
    fn is_apart(&self, other: &Fixed) -> bool {
        let outer =
            |range: &Fixed| (range.block(range.range_start).first, range.block(range.range_end).last());
        let ((start, end), (first, last)) = (outer(self), outer(other));
        end < first || last < start
    }

    /// Whether a block of this size, or of another one, shares addresses with the blocks of the range.
    pub fn is_near(&self, block: &Block) -> bool {
        self.block(self.range_start).first <= block.last() && block.first <= self.block(self.range_end).last()
    }

    /// Whether the range has the address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.range_start <= ip && ip <= self.range_end
    }

    /// The part of the block that belongs to the range: its first and its last address.
    pub fn part_of(&self, block: &Block) -> Option<(IpAddr, IpAddr)> {
        let (first, last) = (block.first.max(self.range_start), block.last().min(self.range_end));
        (block.size == self.block_size && first.is_ipv4() == self.subnet.is_ipv4() && first <= last)
            .then_some((first, last))
    }
}

impl Range {
    /// Whether no container gets the address.
    fn is_reserved(&self, ip: IpAddr) -> bool {
        ip == self.gateway || self.exclude.iter().any(|network| network.contains(ip))
    }

    /// The addresses of the block that containers may get.
    pub fn addresses(&self, block: &Block) -> impl Iterator<Item = IpAddr> {
        let is_ipv4 = self.fixed.subnet.is_ipv4();
        let part = self.fixed.part_of(block).map(|(first, last)| bits(first)..=bits(last));
        part.into_iter()
            .flatten()
            .map(move |bits| from_bits(bits, is_ipv4))
            .filter(|ip| !self.is_reserved(*ip))
    }

    /// The first block that `is_taken` does not have, from a place that the hint decides. Skips blocks without an address for
    /// containers. Its steps are as many as the taken blocks and the excluded networks.
    pub fn free_block(&self, hint: u64, is_taken: impl Fn(&Block) -> bool) -> Option<Block> {
        let size = self.fixed.block_size.count();
        let (low, high) = (bits(self.fixed.range_start) / size, bits(self.fixed.range_end) / size);
        let from = low + u128::from(hint) % (high - low).saturating_add(1);
        let below = || {
            from.checked_sub(1).filter(|last| *last >= low).and_then(|last| self.search(low, last, &is_taken))
        };
        self.search(from, high, &is_taken).or_else(below)
    }

    /// All blocks that `is_taken` does not have.
    pub fn free_blocks(&self, is_taken: impl Fn(&Block) -> bool) -> impl Iterator<Item = Block> {
        let size = self.fixed.block_size.count();
        let (low, high) = (bits(self.fixed.range_start) / size, bits(self.fixed.range_end) / size);
        let after = move |block: &Block| bits(block.first) / size + 1;
        let first = self.search(low, high, &is_taken);
        iter::successors(first, move |block| self.search(after(block), high, &is_taken))
    }

    fn search(&self, mut unit: u128, last: u128, is_taken: impl Fn(&Block) -> bool) -> Option<Block> {
        let size = self.fixed.block_size;
        while unit <= last {
            let block = Block { first: from_bits(unit * size.count(), self.fixed.subnet.is_ipv4()), size };
            let covers =
                |network: &&IpNetwork| network.contains(block.first) && network.contains(block.last());
            unit = match self.exclude.iter().filter(covers).map(|network| network.broadcast()).max() {
                Some(end) => bits(end) / size.count(),
                None if !is_taken(&block) && self.addresses(&block).next().is_some() => return Some(block),
                None => unit,
            }
            .checked_add(1)?;
        }
        None
    }
}

/// What the domain's object has to say so that it has the wanted ranges too; `None` if it has them.
///
/// # Errors
/// A wanted range contradicts a known one, or another wanted one: it has another subnet with the same addresses, or a block of it has addresses
/// of a block of the other.
pub fn joined(known: &[Fixed], wanted: &[Fixed]) -> Result<Option<Vec<Fixed>>, String> {
    let mut all = known.to_vec();
    for range in wanted {
        if all.contains(range) {
            continue;
        }
        let overlaps = |other: &&Fixed| {
            let (one, two) = (range.subnet, other.subnet);
            one.is_ipv4() == two.is_ipv4()
                && (one.contains(two.ip()) || two.contains(one.ip()))
                && (one != two || !range.is_apart(other))
        };
        if let Some(other) = all.iter().find(overlaps) {
            return Err(format!("it has the range {other}, not {range}"));
        }
        all.push(range.clone());
    }
    Ok((all.len() > known.len()).then_some(all))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    pub(crate) fn range(subnet: &str, start: &str, end: &str, size: u32, exclude: &[&str]) -> Range {
        let subnet: IpNetwork = subnet.parse().unwrap();
        let [range_start, range_end] = [start, end].map(|ip| ip.parse().unwrap());
        let block_size = size.try_into().unwrap();
        let fixed = Fixed { subnet, range_start, range_end, block_size };
        let exclude = exclude.iter().map(|text| text.parse().unwrap()).collect();
        Range {
            fixed,
            gateway: from_bits(bits(subnet.network()) + 1, subnet.is_ipv4()),
            exclude,
            on_request: false,
        }
    }

    fn all_blocks(range: &Range) -> Vec<Block> {
        let mut taken = BTreeSet::new();
        while let Some(block) = range.free_block(0, |block| taken.contains(block)) {
            assert!(taken.insert(block));
        }
        taken.into_iter().collect()
    }

    #[test]
    fn every_usable_address_is_in_one_block() {
        let range = range("10.0.0.0/26", "10.0.0.1", "10.0.0.62", 16, &["10.0.0.16/28", "10.0.0.32/29"]);
        let blocks = all_blocks(&range);
        let firsts: Vec<String> = blocks.iter().map(|block| block.first.to_string()).collect();
        assert_eq!(firsts, ["10.0.0.0", "10.0.0.32", "10.0.0.48"]);
        let counts: Vec<usize> = blocks.iter().map(|block| range.addresses(block).count()).collect();
        assert_eq!(counts, [14, 8, 15], "without the gateway and the last address");
    }

    #[test]
    fn one_address_for_each_claim() {
        let range = range("10.0.0.0/29", "10.0.0.1", "10.0.0.6", 1, &["10.0.0.4/32"]);
        let blocks = all_blocks(&range);
        assert_eq!(
            blocks.iter().map(|block| block.first.to_string()).collect::<Vec<_>>(),
            ["10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.6"]
        );
        assert_eq!(range.free_block(3, |_| false).unwrap().first.to_string(), "10.0.0.5", "4 is excluded");
        assert_eq!(
            range.free_block(5, |block| block.first.to_string() == "10.0.0.6").unwrap().first.to_string(),
            "10.0.0.2"
        );
    }

    #[test]
    fn large_excluded_networks_are_skipped_at_once() {
        let last = "fd00::ffff:ffff:ffff:ffff";
        let most = range("fd00::/64", "fd00::1", last, 16, &["fd00::/65", "fd00::8000:0:0:0/66"]);
        assert_eq!(most.free_block(7, |_| false).unwrap().first.to_string(), "fd00::c000:0:0:0");
        let all = range("fd00::/64", "fd00::1", last, 16, &["fd00::/64"]);
        assert_eq!(all.free_block(7, |_| false), None);
        let whole = range("::/0", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1, &["::/1"]);
        assert_eq!(whole.free_block(u64::MAX, |_| false).unwrap().first.to_string(), "8000::");
    }

    #[test]
    fn contradictions_are_refused() {
        let fixed = |subnet: &str, start: &str, end: &str, size| range(subnet, start, end, size, &[]).fixed;
        let known = [
            fixed("10.0.0.0/24", "10.0.0.1", "10.0.0.254", 32),
            fixed("fd00::/64", "fd00::1", "fd00::ffff", 16),
        ];
        assert_eq!(joined(&known, &known[1..]), Ok(None));
        let other = fixed("10.0.1.0/24", "10.0.1.1", "10.0.1.254", 8);
        assert_eq!(joined(&known, std::slice::from_ref(&other)).unwrap().unwrap()[2], other);
        for wanted in [
            fixed("10.0.0.0/24", "10.0.0.1", "10.0.0.254", 16),
            fixed("10.0.0.0/24", "10.0.0.1", "10.0.0.200", 32),
            fixed("10.0.0.0/16", "10.0.0.1", "10.0.255.254", 32),
            fixed("10.0.0.64/26", "10.0.0.65", "10.0.0.126", 32),
            fixed("fd00::/48", "fd00::1", "fd00::ffff", 16),
        ] {
            assert!(
                joined(&known, std::slice::from_ref(&wanted)).unwrap_err().contains(", not "),
                "{wanted}"
            );
        }
        // The blocks of the first one end with 15, or with 11.
        for (size, start, is_valid) in
            [(8, 15, false), (4, 12, true), (8, 16, true), (1, 12, false), (1, 16, true)]
        {
            let first = fixed("10.1.0.0/24", "10.1.0.1", "10.1.0.11", if size == 1 { 8 } else { size });
            let twice = [first, fixed("10.1.0.0/24", &format!("10.1.0.{start}"), "10.1.0.29", size)];
            assert_eq!(joined(&known, &twice).is_ok(), is_valid, "{size} {start}");
        }
    }

    #[test]
    fn sizes_fit_the_subnet() {
        for (subnet, size) in [
            ("10.0.0.0/24", 32),
            ("10.0.0.0/29", 8),
            ("10.0.0.0/30", 4),
            ("fd00::/64", 32),
            ("fd00::/126", 4),
        ] {
            assert_eq!(Fixed::usual_size(subnet.parse().unwrap()).count(), size, "{subnet}");
        }
        let fixed = |size| range("10.0.0.0/29", "10.0.0.1", "10.0.0.6", size, &[]).fixed;
        assert!(fixed(8).check().is_ok() && fixed(16).check().is_err());
        assert!(range("10.0.0.0/29", "10.0.0.6", "10.0.0.1", 1, &[]).fixed.check().is_err());
        assert!(range("10.0.0.0/29", "10.0.0.1", "fd00::1", 1, &[]).fixed.check().is_err());
    }

    proptest! {
        /// Two nodes with the same size always name the same address's block alike, and no two blocks share an address.
        #[test]
        fn blocks_of_one_size_never_overlap(a: u32, b: u32, power in 0u32..17) {
            let size = Size::try_from(1 << power).unwrap();
            let [one, two] = [a, b].map(|bits| Block::of(from_bits(bits.into(), true), size));
            prop_assert_eq!(one.overlaps(&two), one == two);
            prop_assert_eq!(one.name("d") == two.name("d"), one == two);
            prop_assert!(one.contains(from_bits(a.into(), true)) && one.is_aligned());
        }

        /// From every place, each usable address is found once.
        #[test]
        fn blocks_cover_the_range(start in 0u8..64, more in 0u8..64, power in 0u32..6, hint: u64, exclude in 0u8..16) {
            let end = start.saturating_add(more).min(63);
            let exclude = format!("10.0.0.{}/30", exclude * 4);
            let range = range("10.0.0.0/26", &format!("10.0.0.{start}"), &format!("10.0.0.{end}"), 1 << power, &[&exclude]);
            let (mut taken, mut found) = (BTreeSet::new(), Vec::new());
            while let Some(block) = range.free_block(hint, |block| taken.contains(block)) {
                prop_assert!(taken.insert(block));
                found.extend(range.addresses(&block));
            }
            found.sort();
            let all = (start..=end).map(|n| IpAddr::from([10, 0, 0, n]));
            let expected: Vec<IpAddr> = all.filter(|ip| !range.is_reserved(*ip)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
