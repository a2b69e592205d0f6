//! The maps `pods4` and `pods6`: which attachment has an address that host ports lead to, and in which boot it got it. The comment
//! is the owner label, the value the mark of the boot.
//!
//! ADD finds the host ports that a container without DEL has left at an address, without a list of all host ports. After a reboot
//! with a ruleset that was saved as text, the mark proves that the container is gone: the text keeps it, unlike the owner metadata.
//! Versions before these maps ignore them, so an element may be out of date.

use std::net::IpAddr;

use ferrule_kernel::ip::{IpFamily, from_octets, octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, DataType, Element, Error, Value, elements, find_elements};
use ferrule_kernel::sorted;
use ferrule_kit::boot::BootMark;

use crate::plan::HostPort;

use super::layout::TABLE;

/// Both maps, each with the type of its keys.
pub(super) const MAPS: [(&str, DataType); 2] = [("pods4", DataType::Ipv4Addr), ("pods6", DataType::Ipv6Addr)];

/// An element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    /// The address.
    pub address: IpAddr,
    /// The owner label.
    pub label: String,
    /// The boot in which the owner got it.
    pub boot: BootMark,
}

impl Pod {
    fn decode(element: Element) -> Option<Self> {
        let Some(Value::Bytes(value)) = element.value else { return None };
        let boot = BootMark(u32::from_ne_bytes(*value.first_chunk()?));
        Some(Pod { address: from_octets(&element.key)?, label: element.comment?, boot })
    }

    fn encode(&self) -> Element {
        let value = Some(Value::Bytes(self.boot.0.to_ne_bytes().to_vec()));
        Element { value, comment: Some(self.label.clone()), ..Element::new(octets(self.address)) }
    }
}

fn map(address: IpAddr) -> &'static str {
    MAPS[IpFamily::of(address) as usize].0
}

/// The set and the key of each address.
pub(super) fn keys(addresses: &[IpAddr]) -> impl Iterator<Item = (String, Vec<u8>)> + '_ {
    addresses.iter().map(|address| (map(*address).to_owned(), octets(*address)))
}

/// The pods of these answers.
pub(super) fn decode(found: impl IntoIterator<Item = Option<Element>>) -> Vec<Pod> {
    found.into_iter().flatten().filter_map(Pod::decode).collect()
}

/// Finds the pods at these addresses with one round trip.
pub(super) fn find(socket: &mut Socket, addresses: &[IpAddr]) -> Result<Vec<Pod>, Error> {
    let keys: Vec<(String, Vec<u8>)> = keys(addresses).collect();
    let wanted: Vec<(&str, &[u8])> = keys.iter().map(|(map, key)| (map.as_str(), key.as_slice())).collect();
    Ok(decode(find_elements(socket, TABLE, &wanted)?))
}

/// All pods.
pub(super) fn list(socket: &mut Socket) -> Result<Vec<Pod>, Error> {
    let mut pods = Vec::new();
    for (map, _) in MAPS {
        pods.extend(elements(socket, TABLE, map)?.into_iter().filter_map(Pod::decode));
    }
    Ok(pods)
}

/// The distinct addresses that these host ports lead to.
pub(super) fn targets<'p>(host_ports: impl IntoIterator<Item = &'p HostPort>) -> Vec<IpAddr> {
    sorted(host_ports.into_iter().map(|host_port| host_port.target.ip())).into_iter().collect()
}

/// Adds to the batch what creates the elements. They must not exist yet.
pub(super) fn add(batch: &mut Batch, pods: &[Pod]) {
    for (map, wanted) in MAPS.iter().map(|(name, _)| name).zip(IpFamily::ALL) {
        let of_family = pods.iter().filter(|pod| IpFamily::of(pod.address) == wanted);
        let elements: Vec<Element> = of_family.map(Pod::encode).collect();
        batch.add_elements(TABLE, map, &elements);
    }
}

/// Adds to the batch what creates the elements of an owner of this boot.
pub(super) fn add_of(batch: &mut Batch, label: &str, addresses: impl IntoIterator<Item = IpAddr>) {
    let boot = BootMark::current();
    let pod = |address| Pod { address, label: label.to_owned(), boot };
    add(batch, &addresses.into_iter().map(pod).collect::<Vec<_>>());
}

/// Adds to the batch what deletes the elements of these addresses. All of them must exist.
pub(super) fn delete<'p>(batch: &mut Batch, pods: impl IntoIterator<Item = &'p Pod>) {
    let addresses = sorted(pods.into_iter().map(|pod| pod.address));
    for (map, wanted) in MAPS.iter().map(|(name, _)| name).zip(IpFamily::ALL) {
        let of_family = addresses.iter().filter(|address| IpFamily::of(**address) == wanted);
        let keys: Vec<Vec<u8>> = of_family.map(|address| octets(*address)).collect();
        batch.delete_elements(TABLE, map, &keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_decodes_to_its_pod() {
        for address in ["10.0.0.2", "fd00::2"] {
            let label = "pods/eth0/one".to_owned();
            let pod = Pod { address: address.parse().unwrap(), label, boot: BootMark(0x1a2b_3c4d) };
            assert_eq!(Pod::decode(pod.encode()), Some(pod.clone()));
            assert_eq!(Pod::decode(Element { value: None, ..pod.encode() }), None);
            assert_eq!(Pod::decode(Element { comment: None, ..pod.encode() }), None);
        }
    }
}
