//! Names and rules of the table `inet cni_portmap`. Nothing here sends requests to the kernel.
//!
//! ```text
//! chain prerouting    nat, priority -99     jump to the gate
//! chain output        nat, priority -99     jump to the gate
//! chain local, or another gate              fib daddr type local jump hostports
//! chain hostports                           ip6 daddr ::1 return; jump networks; rules of shared map sets
//! chain networks                            for each network with conditions: CONDITIONS jump NETWORK-CHAIN
//! chain postrouting   nat, priority 99      ct status dnat, marked: clear the mark, masquerade fully-random
//! chain guard         filter, priority -150 iifname != "lo" ip daddr 127.0.0.0/8 drop; the same with ip saddr
//! chain foreign-marks filter, priority -350 iifname != "lo", marked: clear the mark; a rule for each bit
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
//! container (CVE-2020-8558). A packet from such an address pretends to come from the node itself, whose services may trust it: with
//! `route_localnet` the kernel lets it pass where `rp_filter` is off. A packet that arrives with one of our marks has it from a container: a
//! macvlan on a virtual link of the node keeps it. It is cleared before any other program can set one. Source NAT is at 99, before the 100 of other programs, so that their rules
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

use crate::mark::{DEFAULT_BIT, Masquerade, chain_of};
use crate::plan::{Conditions, MapSet};

use super::gate::{Gate, HOSTPORTS};
use super::maps::{condition_rules, map_set_rules};

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
/// The base chain that clears the marks that packets arrive with.
pub const FOREIGN_MARKS: &str = "foreign-marks";
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

/// A chain of the table.
#[derive(Default)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// The netfilter hook; `None` for a chain that only other chains jump to.
    pub hook: Option<Hook>,
    /// Its rules.
    pub rules: Vec<Vec<Expr>>,
    /// Whether other attachments need other rules in it, for their conditions and mark bits.
    pub is_shared: bool,
    /// Its comment.
    pub comment: Option<String>,
}

impl Chain {
    fn new(name: &str, rules: Vec<Vec<Expr>>) -> Self {
        Chain { name: name.to_owned(), rules, ..Chain::default() }
    }

    fn base(
        name: &str,
        chain_type: ChainType,
        point: HookPoint,
        priority: i32,
        rules: Vec<Vec<Expr>>,
    ) -> Self {
        let hook = Some(Hook { chain_type, point, priority, policy: Policy::Accept });
        Chain { hook, ..Chain::new(name, rules) }
    }

    /// Whether the chain in the kernel has the right rules; `None` stands for a rule that cannot be decoded.
    pub fn is_right(&self, found: &[Option<Vec<Expr>>]) -> bool {
        if self.is_shared {
            return self.rules.iter().all(|rule| found.iter().flatten().any(|found| found == rule));
        }
        found.len() == self.rules.len() && found.iter().flatten().eq(&self.rules)
    }
}

/// The chains of every complete table, and those for these kinds of masquerading and these conditions. A chain comes after
/// those that it jumps to.
pub fn chains(gate: Gate, masquerades: &[Masquerade], conditions: &[Conditions]) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    for masquerade in masquerades {
        let mark = chain_of(masquerade.bit);
        // The chains of both families jump to the same mark chain.
        if !chains.iter().any(|chain| chain.name == mark) {
            chains.push(Chain::new(&mark, vec![set_mark_bit(masquerade.bit).to_vec()]));
        }
        if masquerade.from.is_some() {
            chains.push(Chain::new(&masquerade.chain_name(), from_rules(masquerade)));
        }
    }
    for Conditions { map_set, text, .. } in conditions {
        let chain = Chain::new(&map_set.chain().unwrap_or_default(), map_set_rules(map_set));
        chains.push(Chain { comment: Some(text.clone()), ..chain });
    }
    let networks = conditions.iter().flat_map(|of| condition_rules(&of.map_set, &of.alternatives)).collect();
    chains.push(Chain { is_shared: true, ..Chain::new(NETWORKS, networks) });
    let mut hostports =
        vec![[to(LOOPBACK_V6), vec![Expr::Verdict(Verdict::Return)]].concat(), jump(NETWORKS)];
    hostports
        .extend(IpFamily::ALL.into_iter().flat_map(|family| map_set_rules(&MapSet { family, id: None })));
    chains.push(Chain::new(HOSTPORTS, hostports));
    chains.push(Chain::new(&gate.chain_name(), gate.rules()));
    let mut bits = vec![DEFAULT_BIT];
    bits.extend(masquerades.iter().map(|masquerade| masquerade.bit).filter(|bit| *bit != DEFAULT_BIT));
    bits.dedup();
    let marked = bits.iter().copied().map(masquerade).collect();
    bits.extend(gate.bit());
    let clears = bits.into_iter().map(clear).collect();
    let not_lo = input_interface(CmpOp::Neq, "lo").to_vec();
    let outside = [End::Destination, End::Source]
        .map(|end| [not_lo.clone(), at(end, LOOPBACK_V4), vec![Expr::Verdict(Verdict::Drop)]].concat());
    let to_gate = || vec![jump(&gate.chain_name())];
    let postrouting = Chain::base(POSTROUTING, ChainType::Nat, HookPoint::Postrouting, 99, marked);
    chains.extend([
        Chain::base(PREROUTING, ChainType::Nat, HookPoint::Prerouting, -99, to_gate()),
        Chain::base(OUTPUT, ChainType::Nat, HookPoint::Output, -99, to_gate()),
        Chain { is_shared: true, ..postrouting },
        Chain::base(GUARD, ChainType::Filter, HookPoint::Prerouting, -150, outside.to_vec()),
        Chain {
            is_shared: true,
            ..Chain::base(FOREIGN_MARKS, ChainType::Filter, HookPoint::Prerouting, -350, clears)
        },
    ]);
    chains
}

/// The number of rules in these chains that jump to a chain.
pub fn jumps(chains: &[Chain], name: &str) -> usize {
    let rules = chains.iter().flat_map(|chain| &chain.rules);
    rules.filter(|rule| rule.ends_with(&jump(name))).count()
}

fn jump(chain: &str) -> Vec<Expr> {
    vec![Expr::Verdict(Verdict::Jump(chain.to_owned()))]
}

fn to(network: IpNetwork) -> Vec<Expr> {
    at(End::Destination, network)
}

fn at(end: End, network: IpNetwork) -> Vec<Expr> {
    [family_of(network.ip()).to_vec(), address(end, CmpOp::Eq, network)].concat()
}

/// `iifname != "lo" meta mark & BIT == BIT meta mark set meta mark ^ BIT`
pub fn clear(bit: u8) -> Vec<Expr> {
    [&input_interface(CmpOp::Neq, "lo")[..], &mark_bit_is_set(bit), &invert_mark_bit(bit)].concat()
}

/// `ct status dnat meta mark & BIT == BIT meta mark set meta mark ^ BIT masquerade fully-random`
pub fn masquerade(bit: u8) -> Vec<Expr> {
    let is_translated = ct_bits(CtKey::Status, STATUS_DNAT, true);
    let masquerade = Expr::Masquerade { flags: FULLY_RANDOM };
    [&is_translated[..], &mark_bit_is_set(bit), &invert_mark_bit(bit), &[masquerade]].concat()
}

/// The rules of the masquerading chain of a container subnet. They mark packets from the subnet and, for IPv4, from
/// 127.0.0.0/8. None for a masquerade of all connections: its chain is the mark chain.
pub fn from_rules(masquerade: &Masquerade) -> Vec<Vec<Expr>> {
    let from = |network: IpNetwork| {
        let mark = jump(&chain_of(masquerade.bit));
        [family_of(network.ip()).to_vec(), address(End::Source, CmpOp::Eq, network), mark].concat()
    };
    let loopback = masquerade.from.filter(IpNetwork::is_ipv4).map(|_| from(LOOPBACK_V4));
    masquerade.from.map(from).into_iter().chain(loopback).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(masquerades: &[Masquerade], name: &str) -> Vec<Vec<Expr>> {
        let chains = chains(Gate::LOCAL, masquerades, &[]);
        chains.into_iter().find(|chain| chain.name == name).map(|chain| chain.rules).unwrap()
    }

    #[test]
    fn base_chains_jump_to_the_gate() {
        let fixed = chains(Gate::LOCAL, &[], &[]);
        for chain in fixed.iter().filter(|chain| matches!(chain.name.as_str(), PREROUTING | OUTPUT)) {
            assert_eq!(chain.rules, [jump("local")]);
            assert!(chain.hook.is_some_and(|hook| hook.priority == -99));
        }
        assert_eq!(["local", HOSTPORTS, NETWORKS, GUARD].map(|name| jumps(&fixed, name)), [2, 1, 1, 0]);
    }

    #[test]
    fn a_chain_comes_after_those_that_it_jumps_to() {
        let from = Masquerade { bit: DEFAULT_BIT, from: Some("10.0.0.0/24".parse().unwrap()) };
        let all = chains(Gate::new([true, false], 12), &[from], &[]);
        for (index, chain) in all.iter().enumerate() {
            assert_eq!(jumps(&all[..=index], &chain.name), 0, "{}", chain.name);
        }
    }

    #[test]
    fn other_bits_are_masqueraded_after_kubernetes_bit() {
        let marks = [13, 14].map(|bit| Masquerade { bit, from: None });
        assert_eq!(rules(&marks, POSTROUTING), [masquerade(14), masquerade(13)]);
    }
}
