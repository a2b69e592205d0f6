//! Which blocks to claim, to close, and to give back.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::block::{Block, Size};
use crate::ledger::Claim;
use crate::range::Range;

/// The most blocks that are claimed at once.
const MOST: usize = 8;

/// An open block of a range set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The block.
    pub block: Block,
    /// How many addresses containers may get.
    pub capacity: usize,
    /// How many of them are used.
    pub used: usize,
    /// For how long none was used.
    pub empty_for: Duration,
}

impl Use {
    /// The use of a block of this set.
    pub fn of(set: &[Range], block: Block, used: &BTreeSet<IpAddr>, empty_for: Duration) -> Use {
        let addresses = || set.iter().flat_map(|range| range.addresses(&block));
        let taken = used.range(block.first..=block.last());
        // An address that has been excluded since is used, and no part of the capacity.
        let used = addresses().filter(|ip| used.contains(ip)).count();
        let empty_for = if taken.count() == 0 { empty_for } else { Duration::ZERO };
        Use { block, capacity: addresses().count(), used, empty_for }
    }
}

/// A range set of a network on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Its open blocks.
    pub uses: Vec<Use>,
    /// The size of its largest block.
    pub size: Size,
    /// How many ADDs wait for an address.
    pub waiting: usize,
    /// Fewer blocks are free than nodes have one: nobody keeps a spare address.
    pub is_scarce: bool,
}

/// How long a block has to be empty before it is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// While there are enough blocks.
    pub usual: Duration,
    /// While blocks are scarce. An ADD that has waited for the block gets its address in this time.
    pub scarce: Duration,
}

impl Situation {
    /// How many addresses are free.
    pub fn free(&self) -> usize {
        self.uses.iter().map(|used| used.capacity.saturating_sub(used.used)).sum()
    }

    /// With how few free addresses another block is claimed: a quarter of a block, but at least one address.
    fn spare(&self) -> usize {
        if self.is_scarce { 0 } else { self.part(4).max(1) }
    }

    /// A part of a block.
    fn part(&self, divisor: u32) -> usize {
        usize::try_from(u32::from(self.size) / divisor).unwrap_or(usize::MAX)
    }

    /// How many blocks to claim now.
    pub fn wanted(&self) -> usize {
        let needed = match self.uses.is_empty() {
            true => self.waiting,
            false => self.waiting.max(self.spare()),
        };
        needed.saturating_sub(self.free()).div_ceil(self.part(1)).min(MOST)
    }

    /// An empty block that is not needed.
    pub fn surplus(&self, patience: Patience) -> Option<Block> {
        let time = if self.is_scarce { patience.scarce } else { patience.usual };
        let kept = if self.is_scarce { self.waiting } else { self.waiting.max(self.spare() + self.part(2)) };
        let is_surplus = |used: &&Use| {
            let rest = self.free().saturating_sub(used.capacity);
            used.used == 0 && used.empty_for >= time && rest >= kept
        };
        self.uses.iter().rev().find(is_surplus).map(|used| used.block)
    }
}

/// The block to claim next for an address of the set, at a place that depends on the hint. `taken` has the blocks that are claimed.
pub fn next(set: &[Range], hint: u64, taken: &BTreeSet<Block>) -> Option<Block> {
    set.iter().find_map(|range| range.free_block(hint, |block| taken.contains(block)))
}

/// Whether fewer blocks of the set are free than stores have one.
pub fn is_scarce(set: &[Range], claims: &[Claim]) -> bool {
    let stores: BTreeSet<&str> = claims.iter().map(|claim| &*claim.store).collect();
    unclaimed(set, claims, stores.len()) < stores.len()
}

/// How many blocks of the set are free; `most` stands for more.
pub fn unclaimed(set: &[Range], claims: &[Claim], most: usize) -> usize {
    let taken: BTreeSet<Block> = claims.iter().map(|claim| claim.block).collect();
    let free = set.iter().flat_map(|range| range.free_blocks(|block| taken.contains(block)));
    free.take(most).count()
}

/// A claim that shares addresses with a block of the set without being one of its blocks: a node has another size.
pub fn contradiction<'c>(set: &[Range], claims: &'c [Claim]) -> Option<&'c Claim> {
    claims.iter().find(|claim| {
        let differs = |range: &Range| range.fixed.block_size != claim.block.size;
        set.iter().any(|range| differs(range) && range.fixed.is_near(&claim.block))
    })
}

/// The first slot that the node has not used in this domain.
pub fn free_slot(node: &str, claims: &[Claim]) -> u32 {
    let used: BTreeSet<u32> =
        claims.iter().filter(|claim| claim.node == node).map(|claim| claim.slot).collect();
    (0..).find(|slot| !used.contains(slot)).unwrap_or_default()
}

/// A place that is another one for most nodes and networks, and always the same for one (FNV-1a).
pub fn hint(node: &str, network: &str) -> u64 {
    let bytes = node.bytes().chain([0]).chain(network.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The last bits of neighbouring names would be neighbours too.
    hash ^ (hash >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::tests::range;

    const PATIENCE: Patience = Patience { usual: Duration::from_secs(300), scarce: Duration::from_secs(10) };

    fn situation(size: u32, blocks: &[(usize, u64)], waiting: usize, is_scarce: bool) -> Situation {
        let uses = blocks.iter().zip(0u8..).map(|((used, empty), n)| Use {
            block: Block::of(IpAddr::from([10, 0, n, 0]), size.try_into().unwrap()),
            capacity: size.try_into().unwrap(),
            used: *used,
            empty_for: Duration::from_secs(*empty),
        });
        Situation { uses: uses.collect(), size: size.try_into().unwrap(), waiting, is_scarce }
    }

    #[test]
    fn a_spare_block_is_claimed_before_the_last_address_goes() {
        for (size, blocks, waiting, is_scarce, wanted) in [
            (32, &[][..], 0, false, 0),
            (32, &[], 1, false, 1),
            (32, &[], 40, false, 2),
            (32, &[], 4000, false, 8),
            (32, &[(24, 0)], 0, false, 0),
            (32, &[(25, 0)], 0, false, 1),
            (32, &[(25, 0)], 0, true, 0),
            (32, &[(32, 0)], 1, true, 1),
            (32, &[(32, 0), (0, 9)], 8, false, 0),
            (1, &[(1, 0)], 0, false, 1),
            (1, &[(1, 0)], 0, true, 0),
            (1, &[(1, 0), (0, 0)], 0, false, 0),
            (1, &[(1, 0), (0, 0)], 5, false, 4),
        ] {
            let situation = situation(size, blocks, waiting, is_scarce);
            assert_eq!(situation.wanted(), wanted, "{situation:?}");
        }
    }

    #[test]
    fn empty_blocks_go_back_if_enough_is_left() {
        for (size, blocks, waiting, is_scarce, surplus) in [
            (32, &[(0, 400)][..], 0, false, None),
            (32, &[(0, 400)], 0, true, Some(0)),
            (32, &[(0, 5)], 0, true, None),
            (32, &[(0, 400)], 1, true, None),
            (32, &[(9, 0), (0, 400)], 0, false, None),
            (32, &[(8, 0), (0, 400)], 0, false, Some(1)),
            (32, &[(8, 0), (0, 200)], 0, false, None),
            (1, &[(1, 0), (0, 400)], 0, false, None),
            (1, &[(0, 400), (0, 400)], 0, false, Some(1)),
        ] {
            let situation = situation(size, blocks, waiting, is_scarce);
            let expected = surplus.map(|n: usize| situation.uses[n].block);
            assert_eq!(situation.surplus(PATIENCE), expected, "{situation:?}");
            if let Some(block) = expected.filter(|_| waiting == 0) {
                let mut after = situation.clone();
                after.uses.retain(|used| used.block != block);
                assert_eq!(after.wanted(), 0, "it would be claimed again: {situation:?}");
            }
        }
    }

    fn claim(first: &str, size: u32, store: &str) -> Claim {
        Claim {
            block: Block::of(first.parse().unwrap(), size.try_into().unwrap()),
            uid: first.to_owned(),
            version: "1".to_owned(),
            node: store.to_owned(),
            store: store.to_owned(),
            network: "net".to_owned(),
            boot: "boot".to_owned(),
            machine: "m".to_owned(),
            slot: 0,
        }
    }

    #[test]
    fn scarcity_and_contradictions() {
        let set = [range("10.0.0.0/28", "10.0.0.1", "10.0.0.14", 4, &[])];
        let claims = [claim("10.0.0.0", 4, "a"), claim("10.0.0.4", 4, "b"), claim("10.0.0.8", 4, "b")];
        assert!(!is_scarce(&set, &claims[..2]) && is_scarce(&set, &claims) && !is_scarce(&set, &[]));
        assert_eq!([9, 1].map(|most| unclaimed(&set, &claims[..2], most)), [2, 1]);
        let other = [claim("10.0.0.8", 8, "c"), claim("10.9.0.0", 8, "c"), claim("10.0.0.12", 2, "c")];
        assert_eq!(contradiction(&set, &claims), None);
        assert_eq!(contradiction(&set, &other[..1]), Some(&other[0]));
        assert_eq!(contradiction(&set, &other[1..2]), None);
        assert_eq!(contradiction(&set, &other[1..]), Some(&other[2]));
    }

    #[test]
    fn a_node_uses_each_slot_once() {
        let mut claims = Vec::new();
        for expected in 0..3 {
            let slot = free_slot("a", &claims);
            assert_eq!(slot, expected);
            claims.push(Claim { slot, ..claim("10.0.0.0", 4, "a") });
        }
        claims.remove(1);
        assert_eq!((free_slot("a", &claims), free_slot("b", &claims)), (1, 0));
    }

    #[test]
    fn nodes_begin_at_different_places() {
        let set = [range("10.0.0.0/16", "10.0.0.1", "10.0.255.254", 32, &[])];
        let places: BTreeSet<Block> =
            (0..20).filter_map(|n| next(&set, hint(&format!("node-{n}"), "net"), &BTreeSet::new())).collect();
        assert!(places.len() > 17, "{places:?}");
    }

    #[test]
    fn an_excluded_address_keeps_its_block() {
        let set = [range("10.0.0.0/28", "10.0.0.1", "10.0.0.14", 4, &["10.0.0.6/32"])];
        let block = Block::of("10.0.0.4".parse().unwrap(), 4.try_into().unwrap());
        let of = |used: &[&str]| {
            let used = used.iter().map(|ip| ip.parse().unwrap()).collect();
            Use::of(&set, block, &used, PATIENCE.usual)
        };
        assert_eq!((of(&[]).capacity, of(&[]).used, of(&[]).empty_for), (3, 0, PATIENCE.usual));
        assert_eq!((of(&["10.0.0.6"]).used, of(&["10.0.0.6"]).empty_for), (0, Duration::ZERO));
        assert_eq!(of(&["10.0.0.5", "10.0.0.8"]).used, 1);
    }
}
