//! Creates and checks the table, and reads what a node has of it and of the tables of other firewalls.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Chain, Family, HookPoint, Table, chains};
use ferrule_kit::check::ensure;
use ferrule_kit::fixed_chain::{self, altered};

use super::layout::{self, ADMIN, SETS, TABLE, TABLE_COMMENT};
use crate::forward_chain::{self, filter_table};

/// Firewalld's table.
const FIREWALLD: Table<'static> = Table::new(Family::Inet, "firewalld");

/// What a node has, read with one round trip.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    /// Whether our table is complete.
    pub is_complete: bool,
    /// Whether firewalld has written rules that reject forwarded packets.
    pub has_firewalld: bool,
    /// What iptables-nft has, for IPv4 and IPv6.
    iptables: [Iptables; 2],
}

/// What iptables-nft has in one family.
#[derive(Clone, Copy, Debug, Default)]
pub struct Iptables {
    /// Whether it has the chain `FORWARD`.
    pub has_forward: bool,
    /// Whether that jumps to the forward chain, and this has its rule.
    pub is_open: bool,
    /// Whether it has the reference's chain.
    pub has_reference: bool,
}

impl Node {
    /// What iptables-nft has in a family.
    pub fn iptables(&self, family: IpFamily) -> Iptables {
        self.iptables[family as usize]
    }
}

/// Reads the chains of a node.
///
/// # Errors
/// Code 999 if the kernel refuses to read one.
pub fn node(socket: &mut Socket, bit: u8) -> Result<Node, CniError> {
    let own = layout::chains(bit);
    let of_iptables = |family| {
        [forward_chain::FORWARD, forward_chain::CHAIN, forward_chain::CNI_FORWARD]
            .map(|name| (filter_table(family), name))
    };
    let mut wanted = vec![(FIREWALLD, "filter_FORWARD"), (TABLE, ADMIN)];
    wanted.extend(IpFamily::ALL.into_iter().flat_map(of_iptables));
    wanted.extend(own.iter().map(|chain| (TABLE, chain.name.as_str())));
    let mut found = chains(socket, &wanted).context(|| "read chains")?.into_iter();
    let mut next = || found.next().flatten();
    let (firewalld, admin) = (next(), next());
    let is_on_forward = |chain: Chain| chain.base.is_some_and(|base| base.is_on(HookPoint::Forward));
    let iptables = IpFamily::ALL.map(|_| Iptables {
        has_forward: next().is_some_and(is_on_forward),
        is_open: next().is_some_and(|chain| chain.uses == forward_chain::USES),
        has_reference: next().is_some(),
    });
    let are_right = own.iter().all(|chain| next().is_some_and(|found| chain.seems_right(found)));
    Ok(Node { is_complete: admin.is_some() && are_right, has_firewalld: firewalld.is_some(), iptables })
}

/// Adds to the batch what completes the table from any state. Right if others do the same at the same time.
pub(super) fn establish(batch: &mut Batch, bit: u8) {
    batch.add_table(TABLE, Some(TABLE_COMMENT));
    for ((name, key), id) in SETS.iter().zip(1..) {
        batch.add_set(TABLE, name, id, key, None);
    }
    batch.add_chain(TABLE, ADMIN, None, Some("for the operator: drop, or set the mark"));
    fixed_chain::establish(batch, TABLE, &layout::chains(bit));
}

/// Checks the chains of the table.
///
/// # Errors
/// Code 999 with the first one that is missing or altered.
pub(super) fn check(socket: &mut Socket, bit: u8) -> Result<(), CniError> {
    let step = "check the firewall";
    let own = layout::chains(bit);
    let names: Vec<_> =
        own.iter().map(|chain| (TABLE, chain.name.as_str())).chain([(TABLE, ADMIN)]).collect();
    let mut found = chains(socket, &names).context(|| step)?;
    ensure(found.pop().flatten().is_some(), || altered(TABLE, ADMIN))?;
    own.iter().zip(found).try_for_each(|(chain, found)| chain.check(socket, TABLE, found, step))
}
