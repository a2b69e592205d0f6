//! Which elements announce a pod. Nothing here touches the kernel.

use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::spec::AddResult;
use ferrule_kernel::ip::{IpFamily, octets};
use ferrule_kernel::nftables::{Element, link_key};
use ferrule_kit::owner::label_within;
use ferrule_kit::veth;
use ferrule_policy_kit::table::{LINKS, set};
use ferrule_policy_kit::{Direction, Directions, Pod, comment};

/// The elements of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Who owns them.
    pub owner: Owner,
    /// Their keys.
    pub keys: Vec<Key>,
}

/// An element's place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The direction in which it isolates.
    pub direction: Direction,
    /// The set.
    pub set: &'static str,
    /// The key in the set.
    pub key: Vec<u8>,
}

/// Who owns elements: the attachment, in the owner metadata; and the pod, in the comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The owner label, in the room of owner metadata.
    pub label: String,
    /// The comment, if the pod is known.
    pub comment: Option<String>,
    /// Whether the comment names one pod for ever: it has a UID.
    is_proof: bool,
}

impl Owner {
    /// The owner of an attachment.
    pub fn new(attachment: &Attachment<'_>, pod: Option<&Pod<'_>>) -> Owner {
        Owner {
            label: label(attachment),
            comment: pod.map(comment::encode),
            is_proof: pod.is_some_and(|pod| !pod.uid.is_empty()),
        }
    }

    /// Whether it owns the element. A ruleset that was restored from text has no metadata: then the UID decides.
    pub fn owns(&self, element: &Element) -> bool {
        match label_of(element) {
            Some(label) => label == self.label,
            None => self.is_proof && element.comment.is_some() && element.comment == self.comment,
        }
    }

    /// A new element with this key.
    pub fn element(&self, key: &Key) -> Element {
        Element {
            comment: self.comment.clone(),
            metadata: Some(self.label.clone().into_bytes()),
            ..Element::new(key.key.clone())
        }
    }
}

/// The owner label of an attachment in metadata.
pub fn label(attachment: &Attachment<'_>) -> String {
    label_within(attachment, Element::METADATA_MAX)
}

/// The owner label of an element.
pub fn label_of(element: &Element) -> Option<&str> {
    element.metadata.as_deref().and_then(|metadata| std::str::from_utf8(metadata).ok())
}

impl Plan {
    /// The elements that isolate the pod in these directions.
    pub fn new(
        attachment: &Attachment<'_>,
        pod: &Pod<'_>,
        result: &AddResult,
        directions: Directions,
    ) -> Plan {
        let addresses = addresses(result, attachment.ifname);
        let mut keys = Vec::new();
        for direction in Direction::ALL.into_iter().filter(|direction| directions.has(*direction)) {
            keys.extend(addresses.iter().map(|address| Key {
                direction,
                set: set(direction, IpFamily::of(*address)),
                key: octets(*address),
            }));
        }
        if directions.egress {
            let link = |name: &str| Key { direction: Direction::Egress, set: LINKS, key: link_key(name) };
            keys.extend(own_links(attachment, result).map(|name| link(&name)));
        }
        Plan { owner: Owner::new(attachment, Some(pod)), keys }
    }

    /// The keys that are missing although the owner has another element of the same direction. `found` are the elements in the order of
    /// the keys. The daemon releases all elements of a pod at once, so these are lost.
    pub fn lost(&self, found: &[Option<Element>]) -> Vec<&Key> {
        let pairs = || self.keys.iter().zip(found);
        let is_announced = |direction| {
            let own =
                |element: &Option<Element>| element.as_ref().is_some_and(|element| self.owner.owns(element));
            pairs().any(|(key, element)| key.direction == direction && own(element))
        };
        pairs()
            .filter(|(key, element)| element.is_none() && is_announced(key.direction))
            .map(|(key, _)| key)
            .collect()
    }
}

/// The container's addresses, without those that only one link knows: many pods have the same.
fn addresses(result: &AddResult, ifname: &str) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for ip in result.ips_of(ifname) {
        let address = ip.address.ip();
        let is_local = match address {
            IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
        };
        if !is_local && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// The node's ends of the attachment's own pair, known by their names. Another link of the result, such as a bridge, may be shared.
pub fn own_links<'a>(
    attachment: &'a Attachment<'_>,
    result: &'a AddResult,
) -> impl Iterator<Item = String> + 'a {
    let is_own = |name: &str| veth::names(attachment).any(|(own, _)| own == name);
    let names = result.host_interfaces(attachment.ifname).map(|interface| interface.name.clone());
    names.filter(move |name| is_own(name))
}

#[cfg(test)]
mod tests {
    use cni_common::spec::{Interface, IpConfig};

    use super::*;

    const ONE: Attachment<'_> = Attachment { network: "pods", ifname: "eth0", container_id: "one" };
    const POD: Pod<'_> = Pod { namespace: "shop", name: "web", uid: "0d3c" };

    fn result() -> AddResult {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            ..Interface::default()
        };
        let own = veth::names(&ONE).nth(1).unwrap().0;
        let ip = |(interface, address): (i64, &str)| IpConfig {
            address: address.parse().unwrap(),
            interface: Some(interface),
            gateway: None,
        };
        AddResult {
            interfaces: vec![interface("cni0", ""), interface(&own, ""), interface("eth0", "/run/netns/one")],
            ips: [
                (2, "10.1.0.2/32"),
                (2, "fd00::2/64"),
                (2, "fe80::2/64"),
                (2, "10.1.0.2/24"),
                (0, "10.1.0.1/24"),
            ]
            .map(ip)
            .into(),
            ..AddResult::default()
        }
    }

    #[test]
    fn each_direction_has_its_sets_and_egress_the_own_link() {
        let sets = |directions| -> Vec<&str> {
            Plan::new(&ONE, &POD, &result(), directions).keys.iter().map(|key| key.set).collect()
        };
        assert_eq!(sets(Directions::BOTH), ["ingress4", "ingress6", "egress4", "egress6", "links"]);
        assert_eq!(sets(Directions { ingress: true, egress: false }), ["ingress4", "ingress6"]);
        assert_eq!(sets(Directions::default()), [""; 0]);
        let plan = Plan::new(&ONE, &POD, &result(), Directions::BOTH);
        assert_eq!(plan.keys[0].key, [10, 1, 0, 2]);
        assert_eq!(plan.keys[4].key.len(), 16);
        let other = Attachment { container_id: "two", ..ONE };
        assert_eq!(own_links(&other, &result()).count(), 0, "of another pod");
    }

    #[test]
    fn the_attachment_owns_an_element_and_without_metadata_the_uid() {
        let owner = Owner::new(&ONE, Some(&POD));
        let key = Key { direction: Direction::Ingress, set: "ingress4", key: vec![10, 1, 0, 2] };
        let own = owner.element(&key);
        assert_eq!((own.comment.as_deref(), label_of(&own)), (Some("0d3c shop/web"), Some("pods/eth0/one")));
        let restored = Element { metadata: None, ..own.clone() };
        let other = |container_id, pod| Owner::new(&Attachment { container_id, ..ONE }, pod);
        assert!(owner.owns(&own) && owner.owns(&restored) && other("one", None).owns(&own));
        // A new sandbox of the same pod.
        assert!(!other("two", Some(&POD)).owns(&own));
        let [namesake, nameless] = ["1e4d", ""].map(|uid| Pod { uid, ..POD });
        assert!(!other("one", Some(&namesake)).owns(&restored) && !other("one", None).owns(&restored));
        let of_nameless = Element { metadata: None, ..other("one", Some(&nameless)).element(&key) };
        assert!(!other("one", Some(&nameless)).owns(&of_nameless), "a name is no proof");
        let long = "f".repeat(128);
        assert_eq!(other(&long, None).label.len(), Element::METADATA_MAX);
    }

    #[test]
    fn an_element_is_lost_if_another_one_of_its_direction_is_there() {
        let plan = Plan::new(&ONE, &POD, &result(), Directions::BOTH);
        let own = |key: &Key| Some(plan.owner.element(key));
        let mut found: Vec<_> = plan.keys.iter().map(own).collect();
        assert_eq!(plan.lost(&found).len(), 0);
        found[1] = None;
        assert_eq!(plan.lost(&found), [&plan.keys[1]]);
        found[0] = None;
        assert_eq!(plan.lost(&found).len(), 0, "released in this direction");
        found[4] = None;
        assert_eq!(plan.lost(&found), [&plan.keys[4]]);
        let foreign = Owner::new(&Attachment { container_id: "two", ..ONE }, None);
        let others: Vec<_> =
            plan.keys.iter().map(|key| (key.set == "egress4").then(|| foreign.element(key))).collect();
        assert_eq!(plan.lost(&others).len(), 0, "another's");
    }
}
