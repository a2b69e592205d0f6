//! Creates the table, and looks up what a node has of it and of the tables of other firewalls.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Chain, Family, HookPoint, Table, chains};

use super::layout::{self, ADMIN, BASE_CHAINS, FORWARD, SETS, TABLE, TABLE_COMMENT};
use crate::{gate, iptables};

/// The table `filter` of iptables-nft.
pub const fn filter_table(family: IpFamily) -> Table<'static> {
    Table::new(Family::of(family), "filter")
}

/// Firewalld's table.
const FIREWALLD: Table<'static> = Table::new(Family::Inet, "firewalld");

/// What a node has, found with one round trip.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    /// Whether our table is complete.
    pub is_complete: bool,
    /// Whether iptables-nft has the chain `FORWARD` in a family.
    has_forward: [bool; 2],
    /// Whether that chain jumps to the gate, and the gate has its rule.
    has_gate: [bool; 2],
    /// Whether the reference's chain exists in iptables-nft.
    has_reference: [bool; 2],
    /// Whether firewalld has written rules that reject forwarded packets.
    pub has_firewalld: bool,
}

impl Node {
    /// Whether iptables-nft has the chain `FORWARD`.
    pub fn has_forward(&self, family: IpFamily) -> bool {
        self.has_forward[family as usize]
    }

    /// Whether the gate is missing in the chain `FORWARD` of iptables-nft.
    pub fn needs_gate(&self, family: IpFamily) -> bool {
        self.has_forward(family) && !(self.has_gate[family as usize] && self.is_complete)
    }

    /// Whether iptables-nft has the reference's chain.
    pub fn has_reference(&self, family: IpFamily) -> bool {
        self.has_reference[family as usize]
    }
}

/// Looks up the chains of a node.
///
/// # Errors
/// Code 999 if the kernel refuses a lookup.
pub fn look(socket: &mut Socket, bit: u8) -> Result<Node, CniError> {
    let own = layout::chains(bit);
    let mut wanted: Vec<(Table<'_>, &str)> = own.iter().map(|(name, ..)| (TABLE, name.as_str())).collect();
    wanted.push((TABLE, ADMIN));
    for family in IpFamily::ALL {
        wanted.extend(
            [gate::FORWARD, gate::CHAIN, iptables::FORWARD].map(|chain| (filter_table(family), chain)),
        );
    }
    wanted.push((FIREWALLD, "filter_FORWARD"));
    let found = chains(socket, &wanted).context(|| "look up chains")?;
    let at = |index: usize| found.get(index).copied().flatten();
    let of_family =
        |offset: usize| IpFamily::ALL.map(|family| at(own.len() + 1 + 3 * family as usize + offset));
    let is_right = |(index, (name, rules, jumps)): (usize, &(String, Vec<_>, usize))| {
        let base = BASE_CHAINS.iter().find(|(base, _)| base == name).map(|(_, hook)| hook);
        at(index).is_some_and(|chain| {
            chain.uses as usize == rules.len() + jumps
                && base.is_none_or(|hook| chain.base.is_some_and(|base| base.is(hook)))
        })
    };
    let is_forward =
        |chain: Option<Chain>| chain.and_then(|c| c.base).is_some_and(|base| base.is_on(HookPoint::Forward));
    Ok(Node {
        is_complete: own.iter().enumerate().all(is_right) && at(own.len()).is_some(),
        has_forward: of_family(0).map(is_forward),
        has_gate: of_family(1).map(|chain| chain.is_some_and(|chain| chain.uses == gate::USES)),
        has_reference: of_family(2).map(|chain| chain.is_some()),
        has_firewalld: at(own.len() + 7).is_some(),
    })
}

/// Adds to the batch what completes the table from any state. Every request is correct if another process makes the same
/// ones at the same time: the flush in the same batch keeps rules from being added twice.
pub(super) fn establish(batch: &mut Batch, bit: u8) {
    batch.add_table(TABLE, Some(TABLE_COMMENT));
    for ((name, key), id) in SETS.iter().zip(1..) {
        batch.add_set(TABLE, name, id, key, None);
    }
    batch.add_chain(TABLE, ADMIN, None, Some("for the operator: drop, or set the mark"));
    let chains = layout::chains(bit);
    for (name, ..) in &chains {
        let hook = BASE_CHAINS.iter().find(|(base, _)| base == name).map(|(_, hook)| *hook);
        batch.add_chain(TABLE, name, hook, None).flush_chain(TABLE, name);
    }
    for (name, rules, _) in &chains {
        for rule in rules {
            batch.add_rule(TABLE, name, rule, None);
        }
    }
    debug_assert!(batch.len() < Batch::ROOM && chains.iter().any(|(name, ..)| name == FORWARD));
}
