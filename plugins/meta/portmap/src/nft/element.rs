//! Encodes host ports as elements of the maps, and decodes them.

use std::net::{IpAddr, SocketAddr};

use ferrule_kernel::ip::{IpFamily, from_octets, octets};
use ferrule_kernel::nftables::{Element, Value, Verdict};

use crate::mapping::Proto;
use crate::mark::Masquerade;
use crate::plan::{HostPort, Key, MapSet};

use super::maps::Map;

fn split_address(bytes: &[u8], family: IpFamily) -> Option<(IpAddr, &[u8])> {
    let (ip, rest) = bytes.split_at_checked(usize::from(family.bits() / 8))?;
    Some((from_octets(ip)?, rest))
}

impl Key {
    /// The key of the element in a map; each field is padded to four bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.host_ip.map(octets).unwrap_or_default();
        bytes.extend([self.proto.number(), 0, 0, 0]);
        bytes.extend(self.port.to_be_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    /// The map that has the key: the dnat map or the mark map.
    pub fn map(&self, dnat: bool) -> Map {
        self.map_set.map(dnat, self.host_ip.is_some())
    }

    fn decode(map_set: MapSet, map: &Map, bytes: &[u8]) -> Option<Self> {
        let (host_ip, rest) = match map.by_address {
            true => split_address(bytes, map.family).map(|(ip, rest)| (Some(ip), rest))?,
            false => (None, bytes),
        };
        let [proto, _, _, _, high, low, ..] = *rest else { return None };
        let proto = Proto::from_number(proto)?;
        Some(Key { map_set, host_ip, proto, port: u16::from_be_bytes([high, low]) })
    }
}

/// The element of the dnat map. Its comment is the owner label.
pub fn dnat(host_port: &HostPort, label: &str) -> Element {
    let mut value = octets(host_port.target.ip());
    value.extend(host_port.target.port().to_be_bytes());
    value.extend([0, 0]);
    Element {
        key: host_port.key.encode(),
        value: Some(Value::Bytes(value)),
        comment: Some(label.to_owned()),
        metadata: None,
    }
}

/// The element of the mark map, which jumps to the masquerading chain. `None` without masquerading.
pub fn mark(host_port: &HostPort) -> Option<Element> {
    let chain = host_port.masquerade.chain_name()?;
    let value = Some(Value::Verdict(Verdict::Jump(chain)));
    Some(Element { key: host_port.key.encode(), value, ..Element::default() })
}

/// A decoded element of a dnat map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnatElement {
    /// The packets that it matches.
    pub key: Key,
    /// The container's address and port.
    pub target: SocketAddr,
    /// The owner label; empty if the element has no comment.
    pub label: String,
}

impl DnatElement {
    /// Decodes an element of the map. Returns `None` if another program has written it.
    pub fn decode(map_set: &MapSet, map: &Map, element: &Element) -> Option<Self> {
        let Some(Value::Bytes(value)) = &element.value else { return None };
        let (ip, rest) = split_address(value, map.family)?;
        let [high, low, ..] = *rest else { return None };
        Some(DnatElement {
            key: Key::decode(map_set.clone(), map, &element.key)?,
            target: SocketAddr::new(ip, u16::from_be_bytes([high, low])),
            label: element.comment.clone().unwrap_or_default(),
        })
    }

    /// Combines the element with the mark element of the same key, if any.
    pub fn with_mark(self, mark: Option<&Element>) -> HostPort {
        let chain = match mark.and_then(|element| element.value.as_ref()) {
            Some(Value::Verdict(Verdict::Jump(chain))) => Some(chain),
            _ => None,
        };
        let masquerade = chain.map_or(Masquerade::Nothing, |chain| Masquerade::of_chain(chain));
        HostPort { key: self.key, target: self.target, masquerade }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::Mark;

    fn host_port(host_ip: Option<&str>, target: &str) -> HostPort {
        let target: SocketAddr = target.parse().unwrap();
        let map_set = MapSet { family: IpFamily::of(target.ip()), id: None };
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        let key = Key { map_set, host_ip, proto: Proto::Sctp, port: 8080 };
        HostPort { key, target, masquerade: Masquerade::All(Mark::default()) }
    }

    #[test]
    fn elements_of_a_host_port_decode_to_it() {
        for host_port in [
            host_port(None, "10.0.0.2:80"),
            host_port(Some("192.0.2.1"), "10.0.0.2:80"),
            host_port(None, "[fd00::2]:80"),
            host_port(Some("2001:db8::1"), "[fd00::2]:80"),
        ] {
            let map = host_port.key.map(true);
            let element = dnat(&host_port, "n/eth0/one");
            let decoded = DnatElement::decode(&host_port.key.map_set, &map, &element).unwrap();
            assert_eq!(decoded.label, "n/eth0/one");
            assert_eq!(decoded.with_mark(mark(&host_port).as_ref()), host_port);
        }
    }

    #[test]
    fn bytes_are_those_that_nft_writes() {
        let element = dnat(&host_port(None, "10.0.0.1:8080"), "");
        assert_eq!(element.key, [132, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        assert_eq!(element.value, Some(Value::Bytes(vec![10, 0, 0, 1, 0x1f, 0x90, 0, 0])));
    }

    #[test]
    fn short_keys_and_unknown_protocols_do_not_decode() {
        let map_set = MapSet { family: IpFamily::V4, id: None };
        let map = map_set.map(true, false);
        assert_eq!(DnatElement::decode(&map_set, &map, &Element::new(vec![1, 2])), None);
        let mut element = dnat(&host_port(None, "10.0.0.1:8080"), "");
        element.key[0] = 1;
        assert_eq!(DnatElement::decode(&map_set, &map, &element), None);
    }
}
