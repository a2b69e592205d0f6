//! The maps of a map set, the four maps of one address family with or without conditions: their names, types and rules. Nothing here sends
//! requests to the kernel.

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::family;
use ferrule_kernel::nftables::{DataType, Expr, MetaKey, PayloadBase, Register, Verdict};

use crate::plan::MapSet;

const R1: Register = Register::R1;

/// One map of a map set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The map set.
    pub map_set: MapSet,
    /// Whether the keys begin with the host address.
    pub by_address: bool,
    /// True for a dnat map, whose values are container addresses and ports. False for a mark map, whose
    /// values are jumps to masquerading chains.
    pub dnat: bool,
}

impl Map {
    /// The name: `dnat4`, `mark6_ip` and the like; with conditions `dnat4_ip_0123abcd`.
    pub fn name(&self) -> String {
        let MapSet { family, id } = &self.map_set;
        let kind = if self.dnat { "dnat" } else { "mark" };
        let by_address = if self.by_address { "_ip" } else { "" };
        let id = id.as_ref().map_or(String::new(), |id| format!("_{id}"));
        format!("{kind}{}{by_address}{id}", digit(*family))
    }

    /// The dnat map with this name. Returns `None` for any other set or map.
    pub fn of_dnat(name: &str) -> Option<Map> {
        let rest = name.strip_prefix("dnat")?;
        let family = IpFamily::ALL.into_iter().find(|family| rest.starts_with(digit(*family)))?;
        let rest = rest.get(1..)?;
        let (by_address, rest) = rest.strip_prefix("_ip").map_or((false, rest), |rest| (true, rest));
        let map_set = MapSet { family, id: rest.strip_prefix('_').map(str::to_owned) };
        let map = Map { map_set, by_address, dnat: true };
        (map.name() == name).then_some(map)
    }

    /// The types of the key's fields.
    pub fn key(&self) -> Vec<DataType> {
        let address = self.by_address.then_some(self.address());
        address.into_iter().chain([DataType::Proto, DataType::Service]).collect()
    }

    /// The type of its addresses.
    pub fn address(&self) -> DataType {
        match self.map_set.family {
            IpFamily::V4 => DataType::Ipv4Addr,
            IpFamily::V6 => DataType::Ipv6Addr,
        }
    }
}

impl MapSet {
    /// All four maps, in the order of their rules.
    pub fn maps(&self) -> [Map; 4] {
        [(false, true), (true, true), (false, false), (true, false)].map(|(dnat, by_address)| Map {
            map_set: self.clone(),
            by_address,
            dnat,
        })
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
    let ip = map.map_set.family;
    let (offset, len, words) = match ip {
        IpFamily::V4 => (16, 4, 1),
        IpFamily::V6 => (24, 16, 4),
    };
    let mut exprs = family(ip).to_vec();
    let mut first = 0;
    if map.by_address {
        exprs.push(Expr::Payload { base: PayloadBase::Network, offset, len, to: R1 });
        first = words;
    }
    let port = Register::word(first + 1);
    exprs.push(Expr::Meta { key: MetaKey::L4Proto, to: Register::word(first) });
    exprs.push(Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to: port });
    if map.dnat {
        exprs.push(Expr::Lookup { set: map.name(), from: R1, to: Some(R1) });
        exprs.push(Expr::Dnat { family: ip, address: R1, port: Register::word(words) });
    } else {
        exprs.push(Expr::Lookup { set: map.name(), from: R1, to: Some(Register::VERDICT) });
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
            for map in map_set.maps() {
                assert_eq!(Map::of_dnat(&map.name()), map.dnat.then(|| map.clone()));
            }
        }
        for name in ["owners", "dnat", "dnat5", "dnat4x", "dnat4_ipx"] {
            assert_eq!(Map::of_dnat(name), None, "{name}");
        }
        assert_eq!(MapSet { family: IpFamily::V6, id: None }.maps()[0].key().len(), 3);
    }
}
