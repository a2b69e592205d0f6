//! The table `inet cni_portmap`: what it is called and what its rules say. Nothing here asks the kernel.
//!
//! ```text
//! chain prerouting    nat, priority -99     jump to the gate
//! chain output        nat, priority -99     jump to the gate
//! chain local, or another gate              fib daddr type local jump hostports
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

use ferrule_kernel::nftables::matches::{End, address, family_of};
use ferrule_kernel::nftables::{
    ChainType, CmpOp, CtKey, DataType, Expr, FULLY_RANDOM, Family, Hook, HookPoint, MetaKey, Policy,
    Register, STATUS_DNAT, Table, Verdict,
};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::mark::{DEFAULT_BIT, Mark, Masquerade};
use crate::plan::Realm;

use super::gate::Gate;
use super::maps::realm_rules;

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
/// The base chain of packets that arrive.
pub const PREROUTING: &str = "prerouting";
/// The base chain of packets that the node sends.
pub const OUTPUT: &str = "output";
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
}

const fn hook(chain_type: ChainType, point: HookPoint, priority: i32) -> Option<Hook> {
    Some(Hook { chain_type, point, priority, policy: Policy::Accept })
}

/// The chains that are always there, besides the gate: each behind those that it leads to.
pub const FIXED: [Fixed; 6] = [
    Fixed { name: NETWORKS, hook: None },
    Fixed { name: HOSTPORTS, hook: None },
    Fixed { name: PREROUTING, hook: hook(ChainType::Nat, HookPoint::Prerouting, -99) },
    Fixed { name: OUTPUT, hook: hook(ChainType::Nat, HookPoint::Output, -99) },
    Fixed { name: POSTROUTING, hook: hook(ChainType::Nat, HookPoint::Postrouting, 99) },
    Fixed { name: GUARD, hook: hook(ChainType::Filter, HookPoint::Prerouting, -150) },
];

/// How many rules of the table jump to a fixed chain.
pub fn references(name: &str, gate: Gate) -> u32 {
    match name {
        NETWORKS => 1,
        HOSTPORTS => gate.jumps(),
        _ => 0,
    }
}

/// The rules of a fixed chain; `bits` are those besides Kubernetes' that some mark's chain sets. [`NETWORKS`] has what the
/// networks put there.
pub fn fixed_rules(name: &str, gate: Gate, bits: &[u8]) -> Vec<Vec<Expr>> {
    let verdict = |verdict: Verdict| vec![Expr::Verdict(verdict)];
    match name {
        PREROUTING | OUTPUT => vec![verdict(Verdict::Jump(gate.chain_name()))],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_goes_through_the_gate() {
        for chain in FIXED.iter().filter(|chain| matches!(chain.name, PREROUTING | OUTPUT)) {
            let to_gate = Expr::Verdict(Verdict::Jump("local".to_owned()));
            assert_eq!(fixed_rules(chain.name, Gate::Local, &[]), [[to_gate]]);
            assert!(chain.hook.is_some_and(|hook| hook.priority == -99));
        }
    }

    #[test]
    fn references_are_what_the_rules_say() {
        let gate = Gate::Local;
        let fixed = FIXED.iter().flat_map(|chain| fixed_rules(chain.name, gate, &[]));
        let all: Vec<Expr> = fixed.chain(gate.rules()).flatten().collect();
        for chain in &FIXED {
            let jump = Expr::Verdict(Verdict::Jump(chain.name.to_owned()));
            let count = all.iter().filter(|expr| **expr == jump).count();
            assert_eq!(count, references(chain.name, gate) as usize, "{}", chain.name);
        }
    }

    #[test]
    fn bits_of_ones_own_are_masqueraded_behind_kubernetes() {
        assert_eq!(fixed_rules(POSTROUTING, Gate::Local, &[13, 14]), [masquerade(14), masquerade(13)]);
    }
}
