//! A realm's maps, what they are called and the rules that use them. Nothing here asks the kernel.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrule_kernel::nftables::matches::family_of;
use ferrule_kernel::nftables::{DataType, Expr, MetaKey, PayloadBase, Register, Verdict};

use crate::plan::Realm;

const R1: Register = Register::R1;

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

fn family(v6: bool) -> [Expr; 2] {
    family_of(if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() })
}

/// The four rules of a realm.
pub fn realm_rules(realm: &Realm) -> Vec<Vec<Expr>> {
    realm.maps().iter().map(map_rule).collect()
}

/// `dnat ip to ip daddr . meta l4proto . th dport map @dnat4_ip` and its like.
fn map_rule(map: &Map) -> Vec<Expr> {
    let mut exprs = family(map.v6).to_vec();
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
    let jump = Expr::Verdict(Verdict::Jump(chain));
    let rule = |steps: &Vec<Expr>| [family(realm.v6).as_slice(), steps, std::slice::from_ref(&jump)].concat();
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
}
