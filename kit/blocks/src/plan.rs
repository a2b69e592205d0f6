//! Which blocks to claim, to close, and to give back.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::block::{Block, Size, is_taken};
use crate::ledger::Claim;
use crate::range::Range;

/// The most blocks that are claimed at once.
const MOST: usize = 8;
/// How many blocks of a domain the policies of the manifest let a node have.
pub const SLOTS: u32 = 64;

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
    /// How many blocks are free.
    pub supply: Supply,
}

/// How many blocks of a range set are free. The borders lie so far apart that blocks do not go to and fro between them: if all claim a
/// spare one in plenty, the rest is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply {
    /// Fewer than nodes have one: nodes keep no spare address.
    Scarce,
    /// Nodes claim no spare block, and keep one that they have.
    Enough,
    /// Each network of a node claims a spare one.
    Plenty,
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
        if self.supply == Supply::Scarce { 0 } else { self.part(4).max(1) }
    }

    /// A part of a block.
    fn part(&self, divisor: u32) -> usize {
        usize::try_from(u32::from(self.size) / divisor).unwrap_or(usize::MAX)
    }

    /// How many blocks to claim now.
    pub fn wanted(&self) -> usize {
        let needed = match self.supply {
            Supply::Plenty if !self.uses.is_empty() => self.waiting.max(self.spare()),
            _ => self.waiting,
        };
        needed.saturating_sub(self.free()).div_ceil(self.part(1)).min(MOST)
    }

    /// An empty block that is not needed.
    pub fn surplus(&self, patience: Patience) -> Option<Block> {
        let is_scarce = self.supply == Supply::Scarce;
        let time = if is_scarce { patience.scarce } else { patience.usual };
        let kept = if is_scarce { self.waiting } else { self.waiting.max(self.spare() + self.part(2)) };
        let is_surplus = |used: &&Use| {
            let rest = self.free().saturating_sub(used.capacity);
            used.used == 0 && used.empty_for >= time && (rest >= kept || used.capacity == 0)
        };
        self.uses.iter().rev().find(is_surplus).map(|used| used.block)
    }
}

/// The block to claim next for an address of the set, at a place that depends on the hint. `taken` has the blocks that are claimed.
pub fn next(set: &[Range], hint: u64, taken: &BTreeSet<Block>) -> Option<Block> {
    set.iter().find_map(|range| range.free_block(hint, |block| is_taken(taken, block)))
}

/// How many blocks of the set are free, beside how many nodes, and networks of them, have one.
pub fn supply(set: &[Range], claims: &[Claim]) -> Supply {
    let networks: BTreeSet<_> = claims.iter().map(|claim| (&claim.node, &claim.network)).collect();
    let nodes = networks.iter().map(|(node, _)| node).collect::<BTreeSet<_>>().len();
    let plenty = nodes + networks.len();
    match unclaimed(set, claims, plenty) {
        few if few < nodes => Supply::Scarce,
        some if some < plenty => Supply::Enough,
        _ => Supply::Plenty,
    }
}

/// How many blocks of the set are free; `most` stands for more.
pub fn unclaimed(set: &[Range], claims: &[Claim], most: usize) -> usize {
    let taken: BTreeSet<Block> = claims.iter().map(|claim| claim.block).collect();
    let free = set.iter().flat_map(|range| range.free_blocks(|block| is_taken(&taken, block)));
    free.take(most).count()
}

/// A claim that shares addresses with a block of the set without being one of its blocks: a node has another size.
pub fn contradiction<'c>(set: &[Range], claims: &'c [Claim]) -> Option<&'c Claim> {
    claims.iter().find(|claim| {
        let differs = |range: &Range| range.fixed.block_size != claim.block.size;
        set.iter().any(|range| differs(range) && range.fixed.is_near(&claim.block))
    })
}

/// A slot that the node has not used in this domain. The networks of a node, which claim at the same time, begin at different ones.
pub fn free_slot(node: &str, network: &str, claims: &[Claim]) -> u32 {
    let used: BTreeSet<u32> =
        claims.iter().filter(|claim| claim.node == node).map(|claim| claim.slot).collect();
    let begin = u32::try_from(hint(node, network) % u64::from(SLOTS)).unwrap_or_default();
    let slots = (0..SLOTS).map(|n| (begin + n) % SLOTS).chain(SLOTS..);
    slots.into_iter().find(|slot| !used.contains(slot)).unwrap_or_default()
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
    use super::Supply::{Enough, Plenty, Scarce};
    use super::*;
    use crate::range::tests::range;

    const PATIENCE: Patience = Patience { usual: Duration::from_secs(300), scarce: Duration::from_secs(10) };

    fn situation(size: u32, blocks: &[(usize, u64)], waiting: usize, supply: Supply) -> Situation {
        let uses = blocks.iter().zip(0u8..).map(|((used, empty), n)| Use {
            block: Block::of(IpAddr::from([10, 0, n, 0]), size.try_into().unwrap()),
            capacity: size.try_into().unwrap(),
            used: *used,
            empty_for: Duration::from_secs(*empty),
        });
        Situation { uses: uses.collect(), size: size.try_into().unwrap(), waiting, supply }
    }

    #[test]
    fn a_spare_block_is_claimed_before_the_last_address_goes() {
        for (size, blocks, waiting, supply, wanted) in [
            (32, &[][..], 0, Plenty, 0),
            (32, &[], 1, Plenty, 1),
            (32, &[], 40, Plenty, 2),
            (32, &[], 4000, Plenty, 8),
            (32, &[(24, 0)], 0, Plenty, 0),
            (32, &[(25, 0)], 0, Plenty, 1),
            (32, &[(25, 0)], 0, Enough, 0),
            (32, &[(25, 0)], 0, Scarce, 0),
            (32, &[(32, 0)], 1, Enough, 1),
            (32, &[(32, 0)], 1, Scarce, 1),
            (32, &[(32, 0), (0, 9)], 8, Plenty, 0),
            (1, &[(1, 0)], 0, Plenty, 1),
            (1, &[(1, 0)], 0, Scarce, 0),
            (1, &[(1, 0), (0, 0)], 0, Plenty, 0),
            (1, &[(1, 0), (0, 0)], 5, Plenty, 4),
        ] {
            let situation = situation(size, blocks, waiting, supply);
            assert_eq!(situation.wanted(), wanted, "{situation:?}");
        }
    }

    #[test]
    fn empty_blocks_go_back_if_enough_is_left() {
        for (size, blocks, waiting, supply, surplus) in [
            (32, &[(0, 400)][..], 0, Plenty, None),
            (32, &[(0, 400)], 0, Scarce, Some(0)),
            (32, &[(0, 5)], 0, Scarce, None),
            (32, &[(0, 400)], 1, Scarce, None),
            (32, &[(9, 0), (0, 400)], 0, Plenty, None),
            (32, &[(9, 0), (0, 400)], 0, Enough, None),
            (32, &[(8, 0), (0, 400)], 0, Plenty, Some(1)),
            (32, &[(8, 0), (0, 200)], 0, Plenty, None),
            (1, &[(1, 0), (0, 400)], 0, Plenty, None),
            (1, &[(0, 400), (0, 400)], 0, Plenty, Some(1)),
        ] {
            let situation = situation(size, blocks, waiting, supply);
            let expected = surplus.map(|n: usize| situation.uses[n].block);
            assert_eq!(situation.surplus(PATIENCE), expected, "{situation:?}");
            if let Some(block) = expected.filter(|_| waiting == 0) {
                let mut after = situation.clone();
                after.uses.retain(|used| used.block != block);
                assert_eq!(after.wanted(), 0, "it would be claimed again: {situation:?}");
            }
        }
    }

    #[test]
    fn a_block_without_a_usable_address_goes_back() {
        let mut situation = situation(32, &[(32, 0), (0, 400)], 9, Plenty);
        assert_eq!(situation.surplus(PATIENCE), None);
        situation.uses[1].capacity = 0;
        assert_eq!(situation.surplus(PATIENCE), Some(situation.uses[1].block));
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
        let supplies = [0, 1, 2, 3].map(|count| supply(&set, &claims[..count]));
        assert_eq!(supplies, [Plenty, Plenty, Enough, Scarce]);
        assert_eq!([9, 1].map(|most| unclaimed(&set, &claims[..2], most)), [2, 1]);
        let other = [claim("10.0.0.8", 8, "c"), claim("10.9.0.0", 8, "c"), claim("10.0.0.12", 2, "c")];
        assert_eq!(contradiction(&set, &claims), None);
        assert_eq!(contradiction(&set, &other[..1]), Some(&other[0]));
        assert_eq!(contradiction(&set, &other[1..2]), None);
        assert_eq!(contradiction(&set, &other[1..]), Some(&other[2]));
        // Two blocks of the set have addresses of the first one, and one has the last one.
        let next = |count| next(&set, 0, &other[..count].iter().map(|claim| claim.block).collect());
        assert_eq!([1, 3].map(|count| unclaimed(&set, &other[..count], 9)), [2, 2]);
        assert_eq!([1, 3].map(|count| next(count).unwrap().first.to_string()), ["10.0.0.0", "10.0.0.0"]);
        let most = [&claims[..2], &other].concat();
        assert_eq!(unclaimed(&set, &most, 9), 0);
    }

    /// What all nodes claim in plenty they need not give back.
    #[test]
    fn spare_blocks_do_not_go_to_and_fro() {
        for (nodes, last) in (1..5).flat_map(|nodes| (nodes..40).map(move |last| (nodes, last))) {
            let set = [range("10.0.0.0/24", "10.0.0.0", &format!("10.0.0.{last}"), 1, &[])];
            let first: Vec<Claim> =
                (0..nodes).map(|n| claim(&format!("10.0.0.{n}"), 1, &format!("{n}"))).collect();
            let spare = first.iter().zip(nodes..).map(|(claim, n)| Claim {
                block: Block::of(IpAddr::from([10, 0, 0, n]), 1.try_into().unwrap()),
                ..claim.clone()
            });
            if supply(&set, &first) == Plenty {
                let all: Vec<Claim> = first.iter().cloned().chain(spare).collect();
                assert_ne!(supply(&set, &all), Scarce, "{nodes} nodes, the last address is {last}");
            }
        }
    }

    #[test]
    fn a_node_uses_each_slot_once() {
        let mut claims = Vec::new();
        let begins: BTreeSet<u32> = (0..8).map(|n| free_slot("a", &format!("net{n}"), &claims)).collect();
        assert!(begins.len() > 6, "{begins:?}");
        let slots: Vec<u32> = (0..=SLOTS)
            .map(|_| {
                let slot = free_slot("a", "net", &claims);
                claims.push(Claim { slot, ..claim("10.0.0.0", 4, "a") });
                slot
            })
            .collect();
        assert_eq!(slots[slots.len() - 1], SLOTS, "beyond the quota");
        assert_eq!(slots.iter().collect::<BTreeSet<_>>(), (0..=SLOTS).collect::<Vec<_>>().iter().collect());
        let freed = claims.remove(7).slot;
        assert_eq!((free_slot("a", "net", &claims), free_slot("b", "net", &claims) < SLOTS), (freed, true));
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
