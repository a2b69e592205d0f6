//! Names and rules of the table `inet cni_portmap`. Nothing here sends requests to the kernel.
//!
//! ```text
//! chain prerouting    nat, priority -99     jump to the gate
//! chain output        nat, priority -99     jump to the gate
//! chain local, or another gate              fib daddr type local jump hostports
//! chain hostports                           ip6 daddr ::1 return; jump networks; rules of shared map sets
//! chain networks                            for each network with conditions: CONDITIONS jump NETWORK-CHAIN
//! chain postrouting   nat, priority 99      ct status dnat, marked: clear the mark, masquerade fully-random
//! chain guard         filter, priority -150 iifname != "lo" ip daddr 127.0.0.0/8 drop
//! set owners                                the attachments that have host ports
//! ```
//!
//! A map set consists of four maps and the four rules that use them. A mark map and a dnat map have the same
//! keys: an element of the mark map jumps to the masquerading chain, an element of the dnat map holds the
//! container's address and port. The two maps whose keys contain the host address come first.
//!
//! Priorities: other programs translate destinations at -100. Of two nat chains with equal priority, the
//! kernel calls the one registered last first, and the first translation wins. At -99, Services win
//! regardless of the order of registration (CVE-2019-9946). The guard runs before all translation: a packet
//! to 127.0.0.0/8 on another interface than `lo` has been sent to that address by another host or by a
//! container (CVE-2020-8558). Source NAT is at 99, before the 100 of other programs, so that their rules
//! cannot exempt our connections from masquerading.

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{
    End, address, ct_bits, family_of, input_interface, invert_mark_bit, mark_bit_is_set, set_mark_bit,
};
use ferrule_kernel::nftables::{
    ChainType, CmpOp, CtKey, DataType, Expr, FULLY_RANDOM, Family, Hook, HookPoint, Policy, STATUS_DNAT,
    Table, Verdict,
};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::mark::{DEFAULT_BIT, Mark, Masquerade};
use crate::plan::MapSet;

use super::gate::{Gate, HOSTPORTS};
use super::maps::map_set_rules;

/// The table of this plugin.
pub const TABLE: Table<'static> = Table::new(Family::Inet, "cni_portmap");
/// The table's comment.
pub const TABLE_COMMENT: &str = "Ferrule portmap: host ports of containers";
/// The set of owners.
pub const OWNERS: &str = "owners";
/// The key type of [`OWNERS`]. A key is 15 hexadecimal digits, which fit into an interface name.
pub const OWNERS_KEY: [DataType; 1] = [DataType::IfName];
/// The chain that jumps to the chains of networks with conditions.
pub const NETWORKS: &str = "networks";
/// The base chain that drops packets to 127.0.0.0/8 from outside.
pub const GUARD: &str = "guard";
/// The base chain for packets that the node receives.
pub const PREROUTING: &str = "prerouting";
/// The base chain of packets that the node sends.
pub const OUTPUT: &str = "output";
/// The base chain that masquerades.
pub const POSTROUTING: &str = "postrouting";

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

/// A chain that every complete table has.
pub struct FixedChain {
    /// Its name.
    pub name: &'static str,
    /// The netfilter hook; `None` for a chain that only other chains jump to.
    pub hook: Option<Hook>,
}

const fn hook(chain_type: ChainType, point: HookPoint, priority: i32) -> Option<Hook> {
    Some(Hook { chain_type, point, priority, policy: Policy::Accept })
}

/// The chains of every complete table, except the gate. A chain comes after those that it jumps to.
pub const FIXED_CHAINS: [FixedChain; 6] = [
    FixedChain { name: NETWORKS, hook: None },
    FixedChain { name: HOSTPORTS, hook: None },
    FixedChain { name: PREROUTING, hook: hook(ChainType::Nat, HookPoint::Prerouting, -99) },
    FixedChain { name: OUTPUT, hook: hook(ChainType::Nat, HookPoint::Output, -99) },
    FixedChain { name: POSTROUTING, hook: hook(ChainType::Nat, HookPoint::Postrouting, 99) },
    FixedChain { name: GUARD, hook: hook(ChainType::Filter, HookPoint::Prerouting, -150) },
];

/// Number of rules in the table that jump to a fixed chain.
pub fn references(name: &str, gate: Gate) -> u32 {
    match name {
        NETWORKS => 1,
        HOSTPORTS => gate.jumps(),
        _ => 0,
    }
}

/// The rules of a fixed chain. `bits` are the mark bits, other than Kubernetes', that mark chains of the
/// table set. For [`NETWORKS`] this is empty: only networks with conditions add rules to it.
pub fn fixed_rules(name: &str, gate: Gate, bits: &[u8]) -> Vec<Vec<Expr>> {
    let verdict = |verdict: Verdict| vec![Expr::Verdict(verdict)];
    match name {
        PREROUTING | OUTPUT => vec![verdict(Verdict::Jump(gate.chain_name()))],
        HOSTPORTS => {
            let mut rules = vec![
                [to(LOOPBACK_V6), verdict(Verdict::Return)].concat(),
                verdict(Verdict::Jump(NETWORKS.to_owned())),
            ];
            for family in IpFamily::ALL {
                rules.extend(map_set_rules(&MapSet { family, id: None }));
            }
            rules
        }
        POSTROUTING => {
            let others = bits.iter().copied().filter(|bit| *bit != DEFAULT_BIT);
            std::iter::once(DEFAULT_BIT).chain(others).map(masquerade).collect()
        }
        GUARD => {
            let not_lo = input_interface(CmpOp::Neq, "lo").to_vec();
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
    let is_translated = ct_bits(CtKey::Status, STATUS_DNAT, true);
    let masquerade = Expr::Masquerade { flags: FULLY_RANDOM };
    [&is_translated[..], &mark_bit_is_set(bit), &invert_mark_bit(bit), &[masquerade]].concat()
}

/// The rules of the masquerading chain of a container subnet. They mark packets from the subnet and,
/// for IPv4, from 127.0.0.0/8.
pub fn from_rules(network: IpNetwork, mark: &Mark) -> Vec<Vec<Expr>> {
    let from = |network: IpNetwork| {
        let jump = Expr::Verdict(Verdict::Jump(mark.chain_name()));
        [family_of(network.ip()).to_vec(), address(End::Source, CmpOp::Eq, network), vec![jump]].concat()
    };
    let loopback = network.is_ipv4().then(|| from(LOOPBACK_V4));
    std::iter::once(from(network)).chain(loopback).collect()
}

/// The chains of a masquerading kind with their rules. A chain comes after those that it jumps to.
pub fn masquerade_chains(masquerade: &Masquerade) -> Vec<(String, Vec<Vec<Expr>>)> {
    let mut chains = Vec::new();
    if let Some(mark) = masquerade.mark() {
        chains.push((mark.chain_name(), vec![set_mark_bit(mark.number()).to_vec()]));
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
    fn base_chains_jump_to_the_gate() {
        for chain in FIXED_CHAINS.iter().filter(|chain| matches!(chain.name, PREROUTING | OUTPUT)) {
            let to_gate = Expr::Verdict(Verdict::Jump("local".to_owned()));
            assert_eq!(fixed_rules(chain.name, Gate::Local, &[]), [[to_gate]]);
            assert!(chain.hook.is_some_and(|hook| hook.priority == -99));
        }
    }

    #[test]
    fn references_match_the_jumps_in_the_rules() {
        let gate = Gate::Local;
        let fixed = FIXED_CHAINS.iter().flat_map(|chain| fixed_rules(chain.name, gate, &[]));
        let all: Vec<Expr> = fixed.chain(gate.rules()).flatten().collect();
        for chain in &FIXED_CHAINS {
            let jump = Expr::Verdict(Verdict::Jump(chain.name.to_owned()));
            let count = all.iter().filter(|expr| **expr == jump).count();
            assert_eq!(count, references(chain.name, gate) as usize, "{}", chain.name);
        }
    }

    #[test]
    fn other_bits_are_masqueraded_after_kubernetes_bit() {
        assert_eq!(fixed_rules(POSTROUTING, Gate::Local, &[13, 14]), [masquerade(14), masquerade(13)]);
    }
}
