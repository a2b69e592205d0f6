//! The table with the addresses of undecided pods. The plugin `policy` makes it, and each ADD adds the pod's addresses before the pod's
//! first process starts.
//!
//! ```text
//! set ingress4, ingress6   addresses to which nothing passes
//! set egress4, egress6     addresses from which nothing passes
//! set links                the node's ends of those pods' links: also nothing with another source passes from them
//! chain forward            filter, hook forward, priority -20: drops all of it
//! chain input              filter, hook input, priority -20: the same from those pods to the node, except neighbour discovery
//! chain answers            lets pass what belongs to a connection that the node has begun
//! ```
//!
//! No rule of `forward` asks conntrack: a connection that an earlier pod of an address has left is an established one. Nothing is
//! on the hook `output`, so the node itself always reaches a pod. In `input` an answer is for an address of the node, so that the node has
//! begun the connection; without conntrack nothing is an answer.
//!
//! The comment of each element names the pod ([`crate::comment`]); its owner metadata name the attachment, for DEL and GC of the plugin.
//! The daemon releases a pod by deleting its elements of all sets in one batch.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::matches::{End, family, read_address};
use ferrule_kernel::nftables::{
    Batch, Chain, ChainType, CmpOp, CtKey, DIRECTION_REPLY, DataType, Error, Expr, Family, Hook, HookPoint,
    MetaKey, PayloadBase, Policy, Register, Table, Verdict, chains as find_chains, is_dormant,
};
use ferrule_kit::check::ensure;
use ferrule_kit::fixed_chain::{self, FixedChain};

use crate::Direction;

/// The table.
pub const TABLE: Table<'static> = Table::new(Family::Inet, "ferrule_pods");
/// The table's comment.
pub const COMMENT: &str = "Ferrule policy: pods for which nothing is decided yet, layout 1";
/// The set of the node's ends of links.
pub const LINKS: &str = "links";
/// The priority of both base chains: before all that accepts.
pub const PRIORITY: i32 = -20;

/// All sets, each with the type of its keys.
pub const SETS: [(&str, DataType); 5] = [
    ("ingress4", DataType::Ipv4Addr),
    ("ingress6", DataType::Ipv6Addr),
    ("egress4", DataType::Ipv4Addr),
    ("egress6", DataType::Ipv6Addr),
    (LINKS, DataType::IfName),
];

const R1: Register = Register::R1;
const ANSWERS: &str = "answers";
const ICMPV6: u8 = 58;
/// Neighbour solicitation and advertisement. The kernel takes none that a router has forwarded.
const NEIGHBOURS: [u8; 2] = [135, 136];

/// The set of a direction and a family.
pub const fn set(direction: Direction, family: IpFamily) -> &'static str {
    match (direction, family) {
        (Direction::Ingress, IpFamily::V4) => "ingress4",
        (Direction::Ingress, IpFamily::V6) => "ingress6",
        (Direction::Egress, IpFamily::V4) => "egress4",
        (Direction::Egress, IpFamily::V6) => "egress6",
    }
}

fn chains() -> [FixedChain; 3] {
    let drop = || Expr::Verdict(Verdict::Drop);
    let accept = || Expr::Verdict(Verdict::Accept);
    let cmp = |value| Expr::Cmp { register: R1, op: CmpOp::Eq, value: vec![value] };
    let within = |end, direction, ip: IpFamily, verdict| {
        let lookup = Expr::Lookup { set: set(direction, ip).to_owned(), from: R1, to: None };
        [&family(ip)[..], &[read_address(end, ip), lookup, verdict]].concat()
    };
    let link = Expr::Meta { key: MetaKey::IifName, to: R1 };
    let from_link = vec![link, Expr::Lookup { set: LINKS.to_owned(), from: R1, to: None }, drop()];
    let mut forward: Vec<_> = IpFamily::ALL
        .into_iter()
        .flat_map(|ip| {
            [
                within(End::Destination, Direction::Ingress, ip, drop()),
                within(End::Source, Direction::Egress, ip, drop()),
            ]
        })
        .collect();
    forward.push(from_link.clone());
    let neighbour = |kind| {
        let mut rule = family(IpFamily::V6).to_vec();
        rule.extend([Expr::Meta { key: MetaKey::L4Proto, to: R1 }, cmp(ICMPV6)]);
        rule.push(Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 1, to: R1 });
        rule.extend([cmp(kind), accept()]);
        rule
    };
    let to_answers = || Expr::Verdict(Verdict::Goto(ANSWERS.to_owned()));
    let mut input: Vec<_> = NEIGHBOURS.into_iter().map(neighbour).collect();
    input.extend(IpFamily::ALL.map(|ip| within(End::Source, Direction::Egress, ip, to_answers())));
    input.push(from_link);
    let answer = vec![Expr::Ct { key: CtKey::Direction, to: R1 }, cmp(DIRECTION_REPLY), accept()];
    let base = |point| {
        Some(Hook { chain_type: ChainType::Filter, point, priority: PRIORITY, policy: Policy::Accept })
    };
    let chain = |name: &str, hook, rules, jumps| FixedChain { name: name.to_owned(), hook, rules, jumps };
    [
        chain(ANSWERS, None, vec![answer, vec![drop()]], 2),
        chain("forward", base(HookPoint::Forward), forward, 0),
        chain("input", base(HookPoint::Input), input, 0),
    ]
}

/// Adds to the batch what completes the table from any state. Elements stay. Right if others do the same at the same time.
pub fn establish(batch: &mut Batch) {
    batch.add_table(TABLE, Some(COMMENT));
    for ((name, key), id) in SETS.iter().zip(1..) {
        batch.add_set(TABLE, name, id, &[*key], None);
    }
    fixed_chain::establish(batch, TABLE, &chains());
}

/// Whether all chains exist with as many rules as they should have: one round trip.
///
/// # Errors
/// Code 999 if the kernel refuses to read one.
pub fn seems_complete(socket: &mut Socket) -> Result<bool, CniError> {
    let own = chains();
    let found = find(socket, &own).context(|| "read chains")?;
    Ok(own.iter().zip(found).all(|(chain, found)| found.is_some_and(|found| chain.seems_right(found))))
}

/// Checks the chains and their rules, and that the kernel does not pass over the table.
///
/// # Errors
/// Code 999 with the first one that is missing or altered.
pub fn check(socket: &mut Socket) -> Result<(), CniError> {
    let step = format!("check table {TABLE}");
    let own = chains();
    let found = find(socket, &own).context(|| &step)?;
    own.iter().zip(found).try_for_each(|(chain, found)| chain.check(socket, TABLE, found, &step))?;
    ensure(!is_dormant(socket, TABLE).context(|| &step)?, || format!("table {TABLE} is dormant"))
}

fn find(socket: &mut Socket, own: &[FixedChain; 3]) -> Result<Vec<Option<Chain>>, Error> {
    find_chains(socket, &own.each_ref().map(|chain| (TABLE, chain.name.as_str())))
}
