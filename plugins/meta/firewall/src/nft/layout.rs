//! Names and rules of the table `inet cni_firewall`. Nothing here sends requests to the kernel.
//!
//! ```text
//! set pods4, pods6       addresses that this table opens; the comment of an element is the owner label
//! set others4, others6   addresses that iptables or firewalld opens; the owner metadata tells which
//! set guarded            bridges with a policy other than "open"
//! set strict             those with the policy "strict"
//! set self               BRIDGE . BRIDGE for each guarded bridge
//! set noicc              BRIDGE . BRIDGE for each isolated bridge
//! set legacy             the families whose chain FORWARD of iptables-legacy has our rules
//! chain admin            for the operator, who may drop packets or set the mark; never changed
//! chain forward          filter, hook forward, priority -5
//! chain mark-20          meta mark set meta mark | 0x100000
//! chain unmark           filter, hook forward, priority 300: clears the mark
//! ```
//!
//! A verdict "accept" ends only its own base chain, so this table cannot open another one. It marks packets, and
//! the forward chain accepts marked packets in iptables' chain `FORWARD`. The mark exists only within the hook: a packet keeps the mark
//! that a container has set if its macvlan is on a virtual link of the node, so `forward` clears the bit first.
//!
//! nf_tables cannot compare two registers, hence the set `self`. The sets have names of links, not indexes, so that a bridge
//! that is made again stays guarded.

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{
    End, ct_bits, family, invert_mark_bit, mark_bit_is_set, read_address, set_mark_bit,
};
use ferrule_kernel::nftables::{
    ChainType, CtKey, DataType, Expr, Family, Hook, HookPoint, MetaKey, Policy, Register, STATE_KNOWN,
    STATE_NEW, STATUS_DNAT, Table, Verdict, link_key,
};
use ferrule_kit::fixed_chain::FixedChain;

/// The table of this plugin.
pub const TABLE: Table<'static> = Table::new(Family::Inet, "cni_firewall");
/// The table's comment.
pub const TABLE_COMMENT: &str = "Ferrule firewall: addresses of containers, layout 1";
/// The chain of the operator.
pub const ADMIN: &str = "admin";
/// The base chain that decides.
pub const FORWARD: &str = "forward";
/// The base chain that clears the mark.
pub const UNMARK: &str = "unmark";
/// Bridges with a policy.
pub const GUARDED: &str = "guarded";
/// Bridges that only their own containers reach.
pub const STRICT: &str = "strict";
/// Guarded bridges as pairs.
pub const SELF: &str = "self";
/// Isolated bridges as pairs.
pub const NOICC: &str = "noicc";
/// Families whose legacy chain `FORWARD` has our rules.
pub const LEGACY: &str = "legacy";

const R1: Register = Register::R1;
const PAIR: [DataType; 2] = [DataType::IfName; 2];

/// All sets, each with the type of its keys.
pub const SETS: [(&str, &[DataType]); 9] = [
    ("pods4", &[DataType::Ipv4Addr]),
    ("pods6", &[DataType::Ipv6Addr]),
    ("others4", &[DataType::Ipv4Addr]),
    ("others6", &[DataType::Ipv6Addr]),
    (GUARDED, &[DataType::IfName]),
    (STRICT, &[DataType::IfName]),
    (SELF, &PAIR),
    (NOICC, &PAIR),
    (LEGACY, &[DataType::IfName]),
];

/// The set of the addresses that this table opens.
pub const fn pods(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "pods4",
        IpFamily::V6 => "pods6",
    }
}

/// The set of the addresses that another backend opens.
pub const fn others(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "others4",
        IpFamily::V6 => "others6",
    }
}

/// The name of the chain that sets this bit of the mark.
pub fn mark_chain(bit: u8) -> String {
    format!("mark-{bit}")
}

/// The chains with fixed rules, in the order of their creation.
pub fn chains(bit: u8) -> [FixedChain; 3] {
    let filter = |priority| {
        let (chain_type, point, policy) = (ChainType::Filter, HookPoint::Forward, Policy::Accept);
        Some(Hook { chain_type, point, priority, policy })
    };
    let (mark, forward) = (mark_chain(bit), forward(bit));
    let jumps = forward.iter().filter(|rule| rule.ends_with(&[jump(&mark)])).count();
    [
        FixedChain { name: mark, hook: None, rules: vec![set_mark_bit(bit).to_vec()], jumps },
        FixedChain { name: FORWARD.to_owned(), hook: filter(-5), rules: forward, jumps: 0 },
        FixedChain { name: UNMARK.to_owned(), hook: filter(300), rules: vec![clear(bit)], jumps: 0 },
    ]
}

fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(chain.to_owned()))
}

/// Clears the bit of the mark.
fn clear(bit: u8) -> Vec<Expr> {
    [&mark_bit_is_set(bit)[..], &invert_mark_bit(bit)].concat()
}

fn forward(bit: u8) -> Vec<Vec<Expr>> {
    let drop = [Expr::Verdict(Verdict::Drop)];
    let new = ct_bits(CtKey::State, STATE_NEW, true);
    let no_host_port = ct_bits(CtKey::Status, STATUS_DNAT, false);
    let mut rules = vec![
        clear(bit),
        [&pair()[..], &[is_in(NOICC)], &drop].concat(),
        [&from()[..], &[is_in(GUARDED)], &to(), &[is_in(GUARDED)], &pair(), &[is_not_in(SELF)], &drop]
            .concat(),
        [&to()[..], &[is_in(STRICT)], &pair(), &[is_not_in(SELF)], &new, &no_host_port, &drop].concat(),
        vec![jump(ADMIN)],
    ];
    let known = ct_bits(CtKey::State, STATE_KNOWN, true);
    let host_port = ct_bits(CtKey::Status, STATUS_DNAT, true);
    for (end, set, state) in [
        (End::Source, pods as fn(IpFamily) -> &'static str, &[][..]),
        (End::Destination, pods, &known),
        (End::Destination, pods, &host_port),
        (End::Destination, others, &host_port),
    ] {
        for ip in IpFamily::ALL {
            let address = [&family(ip)[..], &[read_address(end, ip), is_in(set(ip))]].concat();
            rules.push([&address[..], state, &[jump(&mark_chain(bit))]].concat());
        }
    }
    rules
}

fn from() -> [Expr; 1] {
    [Expr::Meta { key: MetaKey::IifName, to: R1 }]
}

fn to() -> [Expr; 1] {
    [Expr::Meta { key: MetaKey::OifName, to: R1 }]
}

/// `iifname . oifname`
fn pair() -> [Expr; 2] {
    let [from] = from();
    [from, Expr::Meta { key: MetaKey::OifName, to: Register::word(4) }]
}

fn is_in(set: &str) -> Expr {
    Expr::Lookup { set: set.to_owned(), from: R1, to: None }
}

fn is_not_in(set: &str) -> Expr {
    Expr::NotIn { set: set.to_owned(), from: R1 }
}

/// The key of a link in a set of pairs.
pub fn pair_key(name: &str) -> Vec<u8> {
    [link_key(name), link_key(name)].concat()
}
