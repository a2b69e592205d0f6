//! Encodes host ports and owners as elements of maps and sets, and decodes them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ferrule_kernel::ip::{IpFamily, from_octets, octets};
use ferrule_kernel::nftables::{Batch, Element, Value, Verdict};
use ferrule_kit::owner::key_of;

use crate::mapping::Proto;
use crate::mark::Masquerade;
use crate::plan::{HostPort, Key};

use super::layout::{OWNERS, TABLE};
use super::maps::Map;
use super::owner_metadata;

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
        Map { map_set: self.map_set.clone(), by_address: self.host_ip.is_some(), dnat }
    }

    fn decode(map: &Map, bytes: &[u8]) -> Option<Self> {
        let (host_ip, rest) = match map.by_address {
            true => split_address(bytes, map.map_set.family).map(|(ip, rest)| (Some(ip), rest))?,
            false => (None, bytes),
        };
        let map_set = map.map_set.clone();
        let [proto, _, _, _, high, low, ..] = *rest else { return None };
        let proto = Proto::from_number(proto)?;
        Some(Key { map_set, host_ip, proto, port: u16::from_be_bytes([high, low]) })
    }
}

/// The element of the dnat map. Its comment is the owner label.
fn dnat(host_port: &HostPort, label: &str) -> Element {
    let mut value = octets(host_port.target.ip());
    value.extend(host_port.target.port().to_be_bytes());
    value.extend([0, 0]);
    let value = Some(Value::Bytes(value));
    Element { value, comment: Some(label.to_owned()), ..Element::new(host_port.key.encode()) }
}

/// The element of the mark map, which jumps to the masquerading chain. `None` without masquerading.
fn mark(host_port: &HostPort) -> Option<Element> {
    let chain = host_port.masquerade.as_ref()?.chain_name();
    let value = Some(Value::Verdict(Verdict::Jump(chain)));
    Some(Element { value, ..Element::new(host_port.key.encode()) })
}

/// A host port in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The owner label; empty if the element has no comment.
    pub label: String,
    /// The host port.
    pub host_port: HostPort,
}

impl Owned {
    /// Decodes an element of a dnat map, as if the host port had no masquerading. Returns `None` if another program has written
    /// it.
    pub fn decode(map: &Map, element: &Element) -> Option<Self> {
        let Some(Value::Bytes(value)) = &element.value else { return None };
        let (ip, rest) = split_address(value, map.map_set.family)?;
        let [high, low, ..] = *rest else { return None };
        let target = SocketAddr::new(ip, u16::from_be_bytes([high, low]));
        let key = Key::decode(map, &element.key)?;
        let label = element.comment.clone().unwrap_or_default();
        Some(Owned { label, host_port: HostPort { key, target, masquerade: None } })
    }

    /// Adds what the mark element of the same key says, if there is one.
    pub fn read_mark(&mut self, mark: Option<&Element>) {
        if let Some(Value::Verdict(Verdict::Jump(chain))) = mark.and_then(|element| element.value.as_ref()) {
            self.host_port.masquerade = Some(Masquerade::of_chain(chain));
        }
    }
}

/// Adds to the batch what creates an owner with this host port count. `netns` is the path of the container's network namespace.
pub(super) fn add_owner(batch: &mut Batch, label: &str, netns: &str, count: usize) {
    let metadata = Some(owner_metadata::encode(count, netns));
    let owner = Element { comment: Some(label.to_owned()), metadata, ..Element::new(key_of(label)) };
    batch.add_elements(TABLE, OWNERS, &[owner]);
}

/// Adds to the batch what creates the host ports of an owner.
pub(super) fn add(batch: &mut Batch, label: &str, host_ports: &[HostPort]) {
    let mut maps: BTreeMap<String, Vec<Element>> = BTreeMap::new();
    for host_port in host_ports {
        maps.entry(host_port.key.map(true).name()).or_default().push(dnat(host_port, label));
        if let Some(mark) = mark(host_port) {
            maps.entry(host_port.key.map(false).name()).or_default().push(mark);
        }
    }
    for (map, elements) in maps {
        batch.add_elements(TABLE, &map, &elements);
    }
}

/// Adds to the batch what deletes the owners with these labels, the dnat elements with the keys `dnat`, and the mark elements
/// with the keys `marks`. All of them must exist.
pub(super) fn delete<'k>(
    batch: &mut Batch,
    labels: &[String],
    dnat: impl IntoIterator<Item = &'k Key>,
    marks: impl IntoIterator<Item = &'k Key>,
) {
    let mut maps: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    for key in dnat {
        maps.entry(key.map(true).name()).or_default().push(key.encode());
    }
    for key in marks {
        maps.entry(key.map(false).name()).or_default().push(key.encode());
    }
    for label in labels {
        maps.entry(OWNERS.to_owned()).or_default().push(key_of(label));
    }
    for (map, keys) in maps {
        batch.delete_elements(TABLE, &map, &keys);
    }
}

/// Adds to the batch what deletes these owners with their host ports. All of them must exist.
pub(super) fn delete_owned(batch: &mut Batch, labels: &[String], host_ports: &[HostPort]) {
    let marked = host_ports.iter().filter(|host_port| host_port.masquerade.is_some());
    let dnat = host_ports.iter().map(|host_port| &host_port.key);
    delete(batch, labels, dnat, marked.map(|host_port| &host_port.key));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::DEFAULT_BIT;
    use crate::plan::MapSet;

    fn host_port(host_ip: Option<&str>, target: &str) -> HostPort {
        let target: SocketAddr = target.parse().unwrap();
        let map_set = MapSet { family: IpFamily::of(target.ip()), id: None };
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        let key = Key { map_set, host_ip, proto: Proto::Sctp, port: 8080 };
        let masquerade = Some(Masquerade { bit: DEFAULT_BIT, from: None });
        HostPort { key, target, masquerade }
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
            let mut decoded = Owned::decode(&map, &element).unwrap();
            decoded.read_mark(mark(&host_port).as_ref());
            assert_eq!(decoded, Owned { label: "n/eth0/one".to_owned(), host_port });
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
        let map = Map { map_set, by_address: false, dnat: true };
        assert_eq!(Owned::decode(&map, &Element::new(vec![1, 2])), None);
        let mut element = dnat(&host_port(None, "10.0.0.1:8080"), "");
        element.key[0] = 1;
        assert_eq!(Owned::decode(&map, &element), None);
    }
}
