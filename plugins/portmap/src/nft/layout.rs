//! The table `inet cni_portmap`: what it is called and what its rules say. Nothing here asks the kernel.
//!
//! ```text
//! chain prerouting    nat, priority -99     fib daddr type local jump hostports
//! chain output        nat, priority -99     fib daddr type local jump hostports
//! chain hostports                           ip6 daddr ::1 return; jump networks; the rules of the shared realms
//! chain networks                            for each network with conditions: CONDITIONS jump NETWORK'S CHAIN
//! chain postrouting   nat, priority 99      ct status dnat, marked: clear the mark, masquerade fully-random
//! chain guard         filter, priority -150 iifname != "lo" ip daddr 127.0.0.0/8 drop
//! set owners                                who has entries here
//! ```
//!
//! A realm is four maps and four rules that use them. Each pair of maps has the same keys: one leads to the chain that
//! marks what has to be masqueraded, the other to the pod. The pair with the host's address in its keys comes first.
//!
//! Priorities: destinations are translated at -100 by everybody else. Where two chains have the same priority the one
//! registered last is asked first, and the first to translate wins; one later, a Service wins whoever came first
//! (CVE-2019-9946). The guard sees packets before any translation, so what it sees as going to 127.0.0.0/8 was sent there
//! over a wire (CVE-2020-8558). Sources are translated one earlier than by others, so that nobody lets our connections
//! pass as they are.

use cni_common::nftables::matches::{End, address, family_of};
use cni_common::nftables::{
    ChainType, CmpOp, CtKey, DataType, Expr, FIB_DADDR, FULLY_RANDOM, Family, Hook, HookPoint, LOCAL,
    MetaKey, PayloadBase, Policy, Register, STATUS_DNAT, Table, Verdict,
};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::mark::{DEFAULT_BIT, Mark, Masquerade};
use crate::plan::Realm;

/// The table.
pub const TABLE: Table<'static> = Table::new(Family::Inet, "cni_portmap");
/// The table's comment.
pub const TABLE_COMMENT: &str = "Ferrule portmap: host ports of containers";
/// The set of owners.
pub const OWNERS: &str = "owners";
/// What the owners' keys are: 15 hexadecimal digits.
pub const OWNERS_KEY: [DataType; 1] = [DataType::IfName];
/// The chain that every path leads to.
pub const HOSTPORTS: &str = "hostports";
/// The chain of the networks that have conditions.
pub const NETWORKS: &str = "networks";
/// The base chain that keeps what comes over a wire from 127.0.0.0/8.
pub const GUARD: &str = "guard";
/// The base chain that masquerades.
pub const POSTROUTING: &str = "postrouting";

const R1: Register = Register::R1;
/// 127.0.0.0/8
const LOOPBACK_V4: IpNetwork = match Ipv4Network::new_checked(Ipv4Addr::new(127, 0, 0, 0), 8) {
    Some(network) => IpNetwork::V4(network),
    None => unreachable!(),
};
/// ::1
const LOOPBACK_V6: IpNetwork = match Ipv6Network::new_checked(Ipv6Addr::LOCALHOST, 128) {
    Some(network) => IpNetwork::V6(network),
    None => unreachable!(),
};

/// A chain that is always there.
pub struct Fixed {
    /// Its name.
    pub name: &'static str,
    /// How it hangs in the kernel; none if others lead to it.
    pub hook: Option<Hook>,
    /// How many rules of the table lead to it.
    pub references: u32,
}

const fn hook(chain_type: ChainType, point: HookPoint, priority: i32) -> Option<Hook> {
    Some(Hook { chain_type, point, priority, policy: Policy::Accept })
}

/// The chains that are always there, each behind those that it leads to.
pub const FIXED: [Fixed; 6] = [
    Fixed { name: NETWORKS, hook: None, references: 1 },
    Fixed { name: HOSTPORTS, hook: None, references: 2 },
    Fixed { name: "prerouting", hook: hook(ChainType::Nat, HookPoint::Prerouting, -99), references: 0 },
    Fixed { name: "output", hook: hook(ChainType::Nat, HookPoint::Output, -99), references: 0 },
    Fixed { name: POSTROUTING, hook: hook(ChainType::Nat, HookPoint::Postrouting, 99), references: 0 },
    Fixed { name: GUARD, hook: hook(ChainType::Filter, HookPoint::Prerouting, -150), references: 0 },
];

/// The rules of a fixed chain; `bits` are those besides Kubernetes' that some mark's chain sets. [`NETWORKS`] has what the
/// networks put there.
pub fn fixed_rules(name: &str, bits: &[u8]) -> Vec<Vec<Expr>> {
    let verdict = |verdict: Verdict| vec![Expr::Verdict(verdict)];
    match name {
        "prerouting" | "output" => vec![local_jump()],
        HOSTPORTS => {
            let mut rules = vec![
                [to(LOOPBACK_V6), verdict(Verdict::Return)].concat(),
                verdict(Verdict::Jump(NETWORKS.to_owned())),
            ];
            for v6 in [false, true] {
                rules.extend(realm_rules(&Realm { v6, id: None }));
            }
            rules
        }
        POSTROUTING => {
            let others = bits.iter().copied().filter(|bit| *bit != DEFAULT_BIT);
            std::iter::once(DEFAULT_BIT).chain(others).map(masquerade).collect()
        }
        GUARD => {
            let mut name = b"lo".to_vec();
            name.resize(16, 0);
            let not_lo = vec![
                Expr::Meta { key: MetaKey::IifName, to: R1 },
                Expr::Cmp { register: R1, op: CmpOp::Neq, value: name },
            ];
            vec![[not_lo, to(LOOPBACK_V4), verdict(Verdict::Drop)].concat()]
        }
        _ => Vec::new(),
    }
}

fn local_jump() -> Vec<Expr> {
    vec![
        Expr::FibType { flags: FIB_DADDR, to: R1 },
        Expr::Cmp { register: R1, op: CmpOp::Eq, value: LOCAL.to_ne_bytes().to_vec() },
        Expr::Verdict(Verdict::Jump(HOSTPORTS.to_owned())),
    ]
}

fn to(network: IpNetwork) -> Vec<Expr> {
    [family_of(network.ip()).to_vec(), address(End::Destination, CmpOp::Eq, network)].concat()
}

/// `ct status dnat meta mark & BIT == BIT meta mark set meta mark ^ BIT masquerade fully-random`
pub fn masquerade(bit: u8) -> Vec<Expr> {
    let word = |number: u32| number.to_ne_bytes().to_vec();
    let mark: u32 = 1 << bit;
    vec![
        Expr::Ct { key: CtKey::Status, to: R1 },
        Expr::Bitwise { register: R1, mask: word(STATUS_DNAT), xor: word(0) },
        Expr::Cmp { register: R1, op: CmpOp::Neq, value: word(0) },
        Expr::Meta { key: MetaKey::Mark, to: R1 },
        Expr::Bitwise { register: R1, mask: word(mark), xor: word(0) },
        Expr::Cmp { register: R1, op: CmpOp::Eq, value: word(mark) },
        Expr::Meta { key: MetaKey::Mark, to: R1 },
        Expr::Bitwise { register: R1, mask: word(u32::MAX), xor: word(mark) },
        Expr::SetMeta { key: MetaKey::Mark, from: R1 },
        Expr::Masquerade { flags: FULLY_RANDOM },
    ]
}

/// The rule of a mark's chain: `meta mark set meta mark | BIT`.
pub fn mark_rule(mark: &Mark) -> Vec<Expr> {
    vec![
        Expr::Meta { key: MetaKey::Mark, to: R1 },
        Expr::Bitwise {
            register: R1,
            mask: (!mark.value()).to_ne_bytes().to_vec(),
            xor: mark.value().to_ne_bytes().to_vec(),
        },
        Expr::SetMeta { key: MetaKey::Mark, from: R1 },
    ]
}

/// The rules of the chain that marks what comes from a pod's network and, for IPv4, from 127.0.0.0/8.
pub fn from_rules(network: IpNetwork, mark: &Mark) -> Vec<Vec<Expr>> {
    let from = |network: IpNetwork| {
        let jump = Expr::Verdict(Verdict::Jump(mark.chain_name()));
        [family_of(network.ip()).to_vec(), address(End::Source, CmpOp::Eq, network), vec![jump]].concat()
    };
    let loopback = network.is_ipv4().then(|| from(LOOPBACK_V4));
    std::iter::once(from(network)).chain(loopback).collect()
}

/// The chains that a masquerading needs, each with its rules and behind those that it leads to.
pub fn masquerade_chains(masquerade: &Masquerade) -> Vec<(String, Vec<Vec<Expr>>)> {
    let mut chains = Vec::new();
    if let Some(mark) = masquerade.mark() {
        chains.push((mark.chain_name(), vec![mark_rule(mark)]));
    }
    if let (Masquerade::From(network, mark), Some(name)) = (masquerade, masquerade.chain_name()) {
        chains.push((name, from_rules(*network, mark)));
    }
    chains
}

/// One of a realm's maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Its name.
    pub name: String,
    /// IPv6 or IPv4.
    pub v6: bool,
    /// Its keys begin with the host's address.
    pub by_address: bool,
    /// It leads to a pod, and not to a chain.
    pub dnat: bool,
}

impl Map {
    /// What its keys are made of.
    pub fn key(&self) -> Vec<DataType> {
        let address = self.by_address.then_some(self.address());
        address.into_iter().chain([DataType::Proto, DataType::Service]).collect()
    }

    /// What an address in it is.
    pub fn address(&self) -> DataType {
        if self.v6 { DataType::Ipv6Addr } else { DataType::Ipv4Addr }
    }
}

impl Realm {
    /// The realm's map of that kind: `dnat4`, `mark6_ip`, and for a network with conditions `dnat4_ip_0123abcd`.
    pub fn map(&self, dnat: bool, by_address: bool) -> Map {
        let mut name = format!(
            "{}{}{}",
            if dnat { "dnat" } else { "mark" },
            if self.v6 { 6 } else { 4 },
            if by_address { "_ip" } else { "" }
        );
        if let Some(id) = &self.id {
            name = format!("{name}_{id}");
        }
        Map { name, v6: self.v6, by_address, dnat }
    }

    /// All four.
    pub fn maps(&self) -> [Map; 4] {
        [(false, true), (true, true), (false, false), (true, false)]
            .map(|(dnat, by_address)| self.map(dnat, by_address))
    }

    /// The realm and kind of a map that leads to pods, by its name.
    pub fn of_map(name: &str) -> Option<(Realm, Map)> {
        let rest = name.strip_prefix("dnat")?;
        let v6 = rest.starts_with('6');
        let rest = rest.strip_prefix(['4', '6'])?;
        let (by_address, rest) = rest.strip_prefix("_ip").map_or((false, rest), |rest| (true, rest));
        let realm = Realm { v6, id: rest.strip_prefix('_').map(str::to_owned) };
        let map = realm.map(true, by_address);
        (map.name == name).then_some((realm, map))
    }

    /// The chain of a network with conditions.
    pub fn chain(&self) -> Option<String> {
        let id = self.id.as_ref()?;
        Some(format!("network{}-{id}", if self.v6 { 6 } else { 4 }))
    }
}

/// The four rules of a realm.
pub fn realm_rules(realm: &Realm) -> Vec<Vec<Expr>> {
    realm.maps().iter().map(map_rule).collect()
}

/// `dnat ip to ip daddr . meta l4proto . th dport map @dnat4_ip` and its like.
fn map_rule(map: &Map) -> Vec<Expr> {
    let any: IpNetwork = if map.v6 { LOOPBACK_V6 } else { LOOPBACK_V4 };
    let mut exprs = family_of(any.ip()).to_vec();
    let (offset, len, words) = if map.v6 { (24, 16, 4) } else { (16, 4, 1) };
    let first = if map.by_address {
        exprs.push(Expr::Payload { base: PayloadBase::Network, offset, len, to: R1 });
        words
    } else {
        0
    };
    exprs.push(Expr::Meta { key: MetaKey::L4Proto, to: Register::word(first) });
    exprs.push(Expr::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        len: 2,
        to: Register::word(first + 1),
    });
    let name = map.name.clone();
    if map.dnat {
        exprs.push(Expr::Lookup { set: name, from: R1, to: Some(R1) });
        exprs.push(Expr::Dnat { v6: map.v6, address: R1, port: Register::word(words) });
    } else {
        exprs.push(Expr::VerdictMap { map: name, from: R1 });
    }
    exprs
}

/// The rules that lead to a network's chain where its conditions are met.
pub fn condition_rules(realm: &Realm, alternatives: &[Vec<Expr>]) -> Vec<Vec<Expr>> {
    let Some(chain) = realm.chain() else { return Vec::new() };
    let any: IpNetwork = if realm.v6 { LOOPBACK_V6 } else { LOOPBACK_V4 };
    let jump = Expr::Verdict(Verdict::Jump(chain));
    let rule =
        |steps: &Vec<Expr>| [family_of(any.ip()).as_slice(), steps, std::slice::from_ref(&jump)].concat();
    alternatives.iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_found_again_by_their_names() {
        for realm in [
            Realm { v6: false, id: None },
            Realm { v6: true, id: None },
            Realm { v6: true, id: Some("0123abcd".to_owned()) },
        ] {
            for by_address in [false, true] {
                let map = realm.map(true, by_address);
                assert_eq!(Realm::of_map(&map.name), Some((realm.clone(), map)));
                assert_eq!(Realm::of_map(&realm.map(false, by_address).name), None);
            }
        }
        for name in ["owners", "dnat", "dnat5", "dnat4x", "dnat4_ipx"] {
            assert_eq!(Realm::of_map(name), None, "{name}");
        }
        assert_eq!(Realm { v6: true, id: None }.map(true, true).key().len(), 3);
    }

    #[test]
    fn every_path_begins_with_a_look_whether_the_destination_is_local() {
        for chain in FIXED.iter().filter(|chain| matches!(chain.name, "prerouting" | "output")) {
            let rules = fixed_rules(chain.name, &[]);
            assert_eq!(rules.len(), 1);
            assert!(matches!(rules[0][0], Expr::FibType { flags: FIB_DADDR, .. }));
            assert!(chain.hook.is_some_and(|hook| hook.priority == -99));
        }
    }

    #[test]
    fn references_are_what_the_rules_say() {
        let all: Vec<Expr> =
            FIXED.iter().flat_map(|chain| fixed_rules(chain.name, &[]).into_iter().flatten()).collect();
        for chain in &FIXED {
            let jump = Expr::Verdict(Verdict::Jump(chain.name.to_owned()));
            let count = all.iter().filter(|expr| **expr == jump).count();
            assert_eq!(count, chain.references as usize, "{}", chain.name);
        }
    }

    #[test]
    fn bits_of_ones_own_are_masqueraded_behind_kubernetes() {
        assert_eq!(fixed_rules(POSTROUTING, &[13, 14]), [masquerade(14), masquerade(13)]);
    }
}
