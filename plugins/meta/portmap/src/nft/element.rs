//! Entries as elements of maps, and back.

use std::net::{IpAddr, SocketAddr};

use ferrule_kernel::nftables::{Element, Value, Verdict};

use crate::mapping::Proto;
use crate::mark::Masquerade;
use crate::plan::{Entry, Key, Realm};

use super::maps::Map;

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn split_address(bytes: &[u8], v6: bool) -> Option<(IpAddr, &[u8])> {
    if v6 {
        let (ip, rest) = bytes.split_first_chunk::<16>()?;
        Some((IpAddr::from(*ip), rest))
    } else {
        let (ip, rest) = bytes.split_first_chunk::<4>()?;
        Some((IpAddr::from(*ip), rest))
    }
}

impl Key {
    /// The key in the realm's maps; every part is padded to four bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.host_ip.map(octets).unwrap_or_default();
        bytes.extend([self.proto.number(), 0, 0, 0]);
        bytes.extend(self.port.to_be_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    /// The realm's map that has the key.
    pub fn map(&self, dnat: bool) -> Map {
        self.realm.map(dnat, self.host_ip.is_some())
    }

    fn decode(realm: Realm, map: &Map, bytes: &[u8]) -> Option<Self> {
        let (host_ip, rest) = match map.by_address {
            true => split_address(bytes, map.v6).map(|(ip, rest)| (Some(ip), rest))?,
            false => (None, bytes),
        };
        let [proto, _, _, _, high, low, ..] = *rest else { return None };
        let proto = Proto::from_number(proto)?;
        Some(Key { realm, host_ip, proto, port: u16::from_be_bytes([high, low]) })
    }
}

/// The element that leads to the pod.
pub fn dnat(entry: &Entry, label: &str) -> Element {
    let mut value = octets(entry.target.ip());
    value.extend(entry.target.port().to_be_bytes());
    value.extend([0, 0]);
    Element {
        key: entry.key.encode(),
        value: Some(Value::Bytes(value)),
        comment: Some(label.to_owned()),
        metadata: None,
    }
}

/// The element that leads to the chain which marks.
pub fn mark(entry: &Entry) -> Option<Element> {
    let chain = entry.masquerade.chain_name()?;
    let value = Some(Value::Verdict(Verdict::Jump(chain)));
    Some(Element { key: entry.key.encode(), value, ..Element::default() })
}

/// What an element that leads to a pod says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which packets.
    pub key: Key,
    /// Where they go.
    pub target: SocketAddr,
    /// Whose it is.
    pub label: String,
}

impl Found {
    /// Reads an element of that map; `None` if it is none of ours.
    pub fn read(realm: &Realm, map: &Map, element: &Element) -> Option<Self> {
        let Some(Value::Bytes(value)) = &element.value else { return None };
        let (ip, rest) = split_address(value, map.v6)?;
        let [high, low, ..] = *rest else { return None };
        Some(Found {
            key: Key::decode(realm.clone(), map, &element.key)?,
            target: SocketAddr::new(ip, u16::from_be_bytes([high, low])),
            label: element.comment.clone().unwrap_or_default(),
        })
    }

    /// The entry, with what the element of the same key in the other map leads to.
    pub fn with_mark(self, mark: Option<&Element>) -> Entry {
        let chain = match mark.and_then(|element| element.value.as_ref()) {
            Some(Value::Verdict(Verdict::Jump(chain))) => Some(chain),
            _ => None,
        };
        let masquerade = chain.map_or(Masquerade::Nothing, |chain| Masquerade::of_chain(chain));
        Entry { key: self.key, target: self.target, masquerade }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::Mark;

    fn entry(host_ip: Option<&str>, target: &str) -> Entry {
        let target: SocketAddr = target.parse().unwrap();
        let realm = Realm { v6: target.is_ipv6(), id: None };
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        let key = Key { realm, host_ip, proto: Proto::Sctp, port: 8080 };
        Entry { key, target, masquerade: Masquerade::All(Mark::default()) }
    }

    #[test]
    fn an_entry_comes_back_from_its_elements() {
        for entry in [
            entry(None, "10.0.0.2:80"),
            entry(Some("192.0.2.1"), "10.0.0.2:80"),
            entry(None, "[fd00::2]:80"),
            entry(Some("2001:db8::1"), "[fd00::2]:80"),
        ] {
            let element = dnat(&entry, "n/eth0/one");
            let found = Found::read(&entry.key.realm, &entry.key.map(true), &element).unwrap();
            assert_eq!(found.label, "n/eth0/one");
            assert_eq!(found.with_mark(mark(&entry).as_ref()), entry);
        }
    }

    #[test]
    fn bytes_are_as_nft_writes_them() {
        let element = dnat(&entry(None, "10.0.0.1:8080"), "");
        assert_eq!(element.key, [132, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        assert_eq!(element.value, Some(Value::Bytes(vec![10, 0, 0, 1, 0x1f, 0x90, 0, 0])));
    }

    #[test]
    fn what_is_no_entry_is_none() {
        let realm = Realm { v6: false, id: None };
        let map = realm.map(true, false);
        assert_eq!(Found::read(&realm, &map, &Element::new(vec![1, 2])), None);
        let mut element = dnat(&entry(None, "10.0.0.1:8080"), "");
        element.key[0] = 1;
        assert_eq!(Found::read(&realm, &map, &element), None);
    }
}
