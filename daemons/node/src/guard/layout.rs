//! What the table contains. Pure.
//!
//! Chains with a hook see every packet, so they decide by the link or by protocol and port first. The others are named for the
//! packets that they get, and count what they drop.
//!
//! ```text
//! chain prerouting            filter, priority raw: before conntrack and before any address is translated
//!   meta iifkind "veth" iifname != @uplinks goto pod
//!   iifname @bridges udp dport PORT jump to_vxlan
//! chain pod                   packets from the link of a pod
//!   udp dport PORT jump to_vxlan
//!   fib saddr . iif oif missing goto forged
//! chain forged                their source is no address of the pod; unspecified and link-local ones go no further than this node
//! chain forward, input        the same port after DNAT
//! chain to_vxlan              drops what goes to a Node
//! chain arrived               what the VXLAN device gets, still packed: takes what is for it, from a Node, with an inner source of that Node
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{End, address, ct_bits, family, family_of, read_address};
use ferrule_kernel::nftables::{
    ChainType, CmpOp, CtKey, Expr, FIB_SOURCE_BY_INPUT, Family, Hook, HookPoint, MetaKey, PayloadBase,
    Policy, Register, STATUS_DNAT, Table, Verdict,
};
use ipnetwork::IpNetwork;

use crate::cluster::single;
use crate::plan::{Guard, GuardedVxlan};
use crate::table::{Chain, Item, Kind, Layout, Set, disjoint};

pub(super) const TABLE: Table<'static> = Table::new(Family::Inet, "ferrule_guard");
/// The set of links whose pods have sent with other sources.
pub(super) const OFFENDERS: &str = "offenders";
/// The most of them, and how long each stays after its last packet: an hour.
const OFFENDERS_KIND: Kind = Kind::Counts(1024, 3_600_000);

const R1: Register = Register::R1;
const UDP: u8 = 17;
/// The kind of a pod's link.
const POD_LINK: &str = "veth";
// From the start of the UDP header, whose 8 bytes the 8 of VXLAN's follow, then the inner Ethernet header with 14.
const VNI: u32 = 12;
const INNER_KIND: u32 = 28;
const INNER_IP: u32 = 30;
const FAMILIES: [IpFamily; 2] = IpFamily::ALL;

fn hook(point: HookPoint) -> Option<Hook> {
    // `raw` before routing, `filter` behind it.
    let priority = if matches!(point, HookPoint::Prerouting) { -300 } else { 0 };
    Some(Hook { chain_type: ChainType::Filter, point, priority, policy: Policy::Accept })
}

pub(super) fn of(wanted: &Guard, bridges: &[String]) -> Layout {
    let mut prerouting = vec![rule([from_pod_link(), goto("pod")])];
    let mut pod = Vec::new();
    let mut chains = Vec::new();
    if let Some(vxlan) = &wanted.vxlan {
        let port = || to_port(vxlan.port);
        prerouting.push(rule([in_set(MetaKey::IifName, "bridges"), port(), jump("to_vxlan")]));
        pod.push(rule([port(), jump("to_vxlan")]));
        let translated = || [port(), ct_bits(CtKey::Status, STATUS_DNAT, true).to_vec()].concat();
        let mut input = vec![rule([translated(), drop()])];
        if let Some((id, local)) = vxlan.device {
            input.push(rule([port(), has_vni(id), goto("arrived")]));
            chains.push(Chain { name: "arrived", hook: None, rules: arrived(local) });
        }
        let to_nodes = FAMILIES.map(|of| rule([at(End::Destination, of, nodes(of)), drop()])).to_vec();
        let forward = vec![rule([translated(), jump("to_vxlan")])];
        chains.push(Chain { name: "to_vxlan", hook: None, rules: to_nodes });
        chains.push(Chain { name: "forward", hook: hook(HookPoint::Forward), rules: forward });
        chains.push(Chain { name: "input", hook: hook(HookPoint::Input), rules: input });
    }
    if wanted.sources {
        // One byte; nft compares the whole register.
        let is_missing = Expr::Cmp { register: R1, op: CmpOp::Eq, value: vec![0; 4] };
        let no_way_back = vec![Expr::FibLink { flags: FIB_SOURCE_BY_INPUT, to: R1 }, is_missing];
        pod.push(rule([no_way_back, goto("forged")]));
        chains.push(Chain { name: "forged", hook: None, rules: forged() });
    }
    chains.push(Chain { name: "pod", hook: None, rules: pod });
    chains.push(Chain { name: "prerouting", hook: hook(HookPoint::Prerouting), rules: prerouting });
    Layout {
        comment: "ferrule-node: which packets this node takes from pods and from VXLAN",
        chains,
        sets: sets(wanted, bridges),
    }
}

fn sets(wanted: &Guard, bridges: &[String]) -> Vec<Set> {
    let names = |name, names: Vec<&String>| {
        let items = names.into_iter().cloned().map(Item::Name).collect();
        Set { name, kind: Kind::Names, items }
    };
    let mut sets = vec![names("uplinks", wanted.uplinks.iter().collect())];
    let of_family = |of: IpFamily, network: &IpNetwork| IpFamily::of(network.ip()) == of;
    for of in FAMILIES.into_iter().filter(|_| wanted.sources) {
        let allowed = wanted.allow.iter().copied().filter(|network| of_family(of, network));
        sets.push(Set {
            name: allow(of),
            kind: Kind::Networks(of),
            items: disjoint(allowed).into_iter().map(Item::Network).collect(),
        });
    }
    if wanted.sources {
        sets.push(Set { name: OFFENDERS, kind: OFFENDERS_KIND, items: BTreeSet::new() });
    }
    let Some(GuardedVxlan { nodes: all, owned: pairs, device, .. }) = &wanted.vxlan else { return sets };
    sets.push(names("bridges", bridges.iter().collect()));
    for of in FAMILIES {
        let addresses = all.iter().filter(|address| IpFamily::of(**address) == of);
        let items = addresses.map(|address| Item::Network(single(*address))).collect();
        sets.push(Set { name: nodes(of), kind: Kind::Addresses(of), items });
        let Some((_, local)) = device else { continue };
        let pairs = pairs.iter().filter(|(_, network)| of_family(of, network));
        let items = pairs.map(|(outer, network)| Item::Pair(*outer, *network)).collect();
        let kind = Kind::Pairs(IpFamily::of(*local), inner_source(of));
        sets.push(Set { name: owned(of), kind, items });
    }
    sets
}

/// The kernel looks at neither the outer source nor the inner one. Other frames than IP are not sent: all neighbours are permanent.
fn arrived(local: IpAddr) -> Vec<Vec<Expr>> {
    let outer = IpFamily::of(local);
    let elsewhere =
        [family_of(local).to_vec(), address(End::Destination, CmpOp::Neq, single(local))].concat();
    let own = |inner: IpFamily| {
        let kind: u16 = if inner == IpFamily::V4 { 0x0800 } else { 0x86dd };
        let (offset, len) = inner_source(inner);
        let second = Register::word(if outer == IpFamily::V4 { 1 } else { 4 });
        let set = owned(inner).to_owned();
        vec![
            Expr::Payload { base: PayloadBase::Transport, offset: INNER_KIND, len: 2, to: R1 },
            Expr::Cmp { register: R1, op: CmpOp::Eq, value: kind.to_be_bytes().to_vec() },
            family(outer)[0].clone(),
            family(outer)[1].clone(),
            read_address(End::Source, outer),
            Expr::Payload { base: PayloadBase::Transport, offset, len, to: second },
            Expr::Lookup { set, from: R1, to: None },
            Expr::Verdict(Verdict::Accept),
        ]
    };
    vec![rule([elsewhere, drop()]), own(IpFamily::V4), own(IpFamily::V6), drop()]
}

/// Offset and length of the inner source, from the start of the UDP header.
fn inner_source(of: IpFamily) -> (u32, u32) {
    if of == IpFamily::V4 { (INNER_IP + 12, 4) } else { (INNER_IP + 8, 16) }
}

fn forged() -> Vec<Vec<Expr>> {
    let from = |network: Option<IpNetwork>| {
        network.map(|network| {
            rule([family_of(network.ip()).to_vec(), address(End::Source, CmpOp::Eq, network), accept()])
        })
    };
    let unspecified = from("::".parse().ok().map(single));
    let link_local = from("fe80::/10".parse().ok());
    let mut rules = FAMILIES.map(|of| rule([at(End::Source, of, allow(of)), accept()])).to_vec();
    rules.extend(unspecified.into_iter().chain(link_local));
    let name = Expr::Meta { key: MetaKey::IifName, to: R1 };
    rules.push(vec![name, Expr::Count { set: OFFENDERS.to_owned(), from: R1 }]);
    rules.push(drop());
    rules
}

fn rule<const N: usize>(parts: [Vec<Expr>; N]) -> Vec<Expr> {
    parts.concat()
}

fn from_pod_link() -> Vec<Expr> {
    let mut value = POD_LINK.as_bytes().to_vec();
    value.resize(16, 0);
    vec![
        Expr::Meta { key: MetaKey::IifKind, to: R1 },
        Expr::Cmp { register: R1, op: CmpOp::Eq, value },
        Expr::Meta { key: MetaKey::IifName, to: R1 },
        Expr::NotIn { set: "uplinks".to_owned(), from: R1 },
    ]
}

fn in_set(key: MetaKey, set: &str) -> Vec<Expr> {
    vec![Expr::Meta { key, to: R1 }, Expr::Lookup { set: set.to_owned(), from: R1, to: None }]
}

/// `ip saddr @SET` or `ip daddr @SET`
fn at(end: End, of: IpFamily, set: &str) -> Vec<Expr> {
    let found = Expr::Lookup { set: set.to_owned(), from: R1, to: None };
    [family(of).to_vec(), vec![read_address(end, of), found]].concat()
}

/// `udp dport PORT`
fn to_port(port: u16) -> Vec<Expr> {
    let eq = |value: &[u8]| Expr::Cmp { register: R1, op: CmpOp::Eq, value: value.to_vec() };
    vec![
        Expr::Meta { key: MetaKey::L4Proto, to: R1 },
        eq(&[UDP]),
        Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to: R1 },
        eq(&port.to_be_bytes()),
    ]
}

/// Other programs may have VXLANs of other identifiers at the same port.
fn has_vni(id: u32) -> Vec<Expr> {
    vec![
        Expr::Payload { base: PayloadBase::Transport, offset: VNI, len: 3, to: R1 },
        Expr::Cmp { register: R1, op: CmpOp::Eq, value: id.to_be_bytes()[1..].to_vec() },
    ]
}

fn goto(chain: &str) -> Vec<Expr> {
    vec![Expr::Verdict(Verdict::Goto(chain.to_owned()))]
}

fn jump(chain: &str) -> Vec<Expr> {
    vec![Expr::Verdict(Verdict::Jump(chain.to_owned()))]
}

fn accept() -> Vec<Expr> {
    vec![Expr::Verdict(Verdict::Accept)]
}

fn drop() -> Vec<Expr> {
    vec![Expr::Counter, Expr::Verdict(Verdict::Drop)]
}

fn nodes(of: IpFamily) -> &'static str {
    if of == IpFamily::V4 { "nodes4" } else { "nodes6" }
}

fn allow(of: IpFamily) -> &'static str {
    if of == IpFamily::V4 { "allow4" } else { "allow6" }
}

fn owned(of: IpFamily) -> &'static str {
    if of == IpFamily::V4 { "owned4" } else { "owned6" }
}
