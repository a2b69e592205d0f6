//! The maps of a map set: their names, types and rules. Nothing here sends requests to the kernel.

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::family;
use ferrule_kernel::nftables::{DataType, Expr, MetaKey, PayloadBase, Register, Verdict};

use crate::plan::MapSet;

const R1: Register = Register::R1;

/// One map of a map set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The name, see [`MapSet::map`].
    pub name: String,
    /// The family.
    pub family: IpFamily,
    /// Whether the keys begin with the host address.
    pub by_address: bool,
    /// True for a dnat map, whose values are container addresses and ports. False for a mark map, whose
    /// values are jumps to masquerading chains.
    pub dnat: bool,
}

impl Map {
    /// The types of the key's fields.
    pub fn key(&self) -> Vec<DataType> {
        let address = self.by_address.then_some(self.address());
        address.into_iter().chain([DataType::Proto, DataType::Service]).collect()
    }

    /// The type of its addresses.
    pub fn address(&self) -> DataType {
        match self.family {
            IpFamily::V4 => DataType::Ipv4Addr,
            IpFamily::V6 => DataType::Ipv6Addr,
        }
    }
}

impl MapSet {
    /// One of the four maps. Names are `dnat4`, `mark6_ip` and the like; with conditions `dnat4_ip_0123abcd`.
    pub fn map(&self, dnat: bool, by_address: bool) -> Map {
        let mut name = format!(
            "{}{}{}",
            if dnat { "dnat" } else { "mark" },
            digit(self.family),
            if by_address { "_ip" } else { "" }
        );
        if let Some(id) = &self.id {
            name = format!("{name}_{id}");
        }
        Map { name, family: self.family, by_address, dnat }
    }

    /// All four maps, in the order of their rules.
    pub fn maps(&self) -> [Map; 4] {
        [(false, true), (true, true), (false, false), (true, false)]
            .map(|(dnat, by_address)| self.map(dnat, by_address))
    }

    /// Decodes the name of a dnat map. Returns `None` for any other set or map.
    pub fn of_map(name: &str) -> Option<(MapSet, Map)> {
        let rest = name.strip_prefix("dnat")?;
        let family = IpFamily::ALL.into_iter().find(|family| rest.starts_with(digit(*family)))?;
        let rest = rest.get(1..)?;
        let (by_address, rest) = rest.strip_prefix("_ip").map_or((false, rest), |rest| (true, rest));
        let map_set = MapSet { family, id: rest.strip_prefix('_').map(str::to_owned) };
        let map = map_set.map(true, by_address);
        (map.name == name).then_some((map_set, map))
    }

    /// The name of the chain with the rules of this map set; `None` without conditions.
    pub fn chain(&self) -> Option<String> {
        let id = self.id.as_ref()?;
        Some(format!("network{}-{id}", digit(self.family)))
    }
}

/// The family in the name of a map or chain.
const fn digit(family: IpFamily) -> char {
    match family {
        IpFamily::V4 => '4',
        IpFamily::V6 => '6',
    }
}

/// The four rules of a map set, one for each map.
pub fn map_set_rules(map_set: &MapSet) -> Vec<Vec<Expr>> {
    map_set.maps().iter().map(map_rule).collect()
}

/// `dnat ip to ip daddr . meta l4proto . th dport map @dnat4_ip` or similar.
fn map_rule(map: &Map) -> Vec<Expr> {
    let mut exprs = family(map.family).to_vec();
    let (offset, len, words) = match map.family {
        IpFamily::V4 => (16, 4, 1),
        IpFamily::V6 => (24, 16, 4),
    };
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
        exprs.push(Expr::Dnat { family: map.family, address: R1, port: Register::word(words) });
    } else {
        exprs.push(Expr::VerdictMap { map: name, from: R1 });
    }
    exprs
}

/// The rules of the networks chain that jump to the chain of the map set, one for each alternative of its
/// conditions.
pub fn condition_rules(map_set: &MapSet, alternatives: &[Vec<Expr>]) -> Vec<Vec<Expr>> {
    let Some(chain) = map_set.chain() else { return Vec::new() };
    let jump = Expr::Verdict(Verdict::Jump(chain));
    let rule =
        |exprs: &Vec<Expr>| [family(map_set.family).as_slice(), exprs, std::slice::from_ref(&jump)].concat();
    alternatives.iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_dnat_maps_decode_to_their_map_set() {
        for map_set in [
            MapSet { family: IpFamily::V4, id: None },
            MapSet { family: IpFamily::V6, id: None },
            MapSet { family: IpFamily::V6, id: Some("0123abcd".to_owned()) },
        ] {
            for by_address in [false, true] {
                let map = map_set.map(true, by_address);
                assert_eq!(MapSet::of_map(&map.name), Some((map_set.clone(), map)));
                assert_eq!(MapSet::of_map(&map_set.map(false, by_address).name), None);
            }
        }
        for name in ["owners", "dnat", "dnat5", "dnat4x", "dnat4_ipx"] {
            assert_eq!(MapSet::of_map(name), None, "{name}");
        }
        assert_eq!(MapSet { family: IpFamily::V6, id: None }.map(true, true).key().len(), 3);
    }
}
