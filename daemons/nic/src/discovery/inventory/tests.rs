//! What messages do to the list of devices.

use super::*;

fn link(index: u32, name: &str) -> Change {
    Change::Link(Link { index, name: name.to_owned(), ..Link::default() })
}

fn address(index: u32, address: IpAddr, is_there: bool) -> Change {
    Change::Address { index, address, is_there }
}

fn place(inventory: &Inventory, id: &str) -> Option<Place> {
    inventory.devices().find(|device| device.id == id).map(|device| device.place)
}

fn pci(_: &str) -> Option<(String, Bus)> {
    Some(("0000:03:00.1".to_owned(), Bus::default()))
}

const IN_POD: Place = Place::Pod { namespace: Some(4), index: Some(2) };

#[test]
fn a_renamed_link_keeps_its_id() {
    let mut inventory = Inventory::default();
    inventory.apply(link(3, "eth1"), |_| None);
    inventory.apply(link(3, "lan"), |_| None);
    inventory.apply(link(4, "eth1"), |_| None);
    let names: Vec<_> = inventory
        .devices()
        .map(|device| (device.id.as_str(), device.link.as_ref().unwrap().name.as_str()))
        .collect();
    assert_eq!(names, [("eth1", "lan")]);
}

#[test]
fn into_a_pod_and_back() {
    let mut inventory = Inventory::default();
    inventory.apply(link(3, "eth1"), |_| None);
    inventory.apply(link(5, "p1"), pci);
    for index in [3, 5] {
        inventory.apply(Change::Left { index, to: Some((4, Some(2))) }, |_| None);
    }
    assert_eq!((place(&inventory, "eth1"), place(&inventory, "0000:03:00.1")), (Some(IN_POD), Some(IN_POD)));
    inventory.apply(link(9, "eth1"), |_| None);
    inventory.apply(link(10, "p2"), pci);
    assert_eq!(
        (place(&inventory, "eth1"), place(&inventory, "0000:03:00.1")),
        (Some(Place::Host), Some(Place::Host))
    );
    assert_eq!(inventory.devices().count(), 2);
}

#[test]
fn back_under_another_name() {
    let with_mac = |index, name: &str, mac: &str, alt: &str| {
        let alt_names = vec![alt.to_owned()];
        Change::Link(Link { index, name: name.to_owned(), mac: mac.to_owned(), alt_names, ..Link::default() })
    };
    let mut inventory = Inventory::default();
    for (index, name, mac) in [(3, "eth1", "a"), (4, "eth2", "b"), (5, "eth3", "c")] {
        inventory.apply(with_mac(index, name, mac, ""), |_| None);
        inventory.apply(Change::Left { index, to: Some((4, None)) }, |_| None);
    }
    for (index, name, mac, alt) in [(6, "net0", "a", ""), (7, "net1", "x", "eth2"), (8, "net2", "x", "")] {
        inventory.apply(with_mac(index, name, mac, alt), |_| None);
    }
    let ids = [6, 7, 8].map(|index| inventory.by_index(index).map(|device| device.id.as_str()));
    assert_eq!(ids, [Some("eth1"), Some("eth2"), Some("net2")]);
}

#[test]
fn a_namespace_takes_its_virtual_links_with_it() {
    let mut inventory = Inventory::default();
    inventory.apply(link(3, "eth1"), |_| None);
    inventory.apply(link(5, "p1"), pci);
    for index in [3, 5] {
        inventory.apply(Change::Left { index, to: Some((4, Some(2))) }, |_| None);
    }
    inventory.apply(Change::NamespaceGone(7), |_| None);
    assert_eq!(place(&inventory, "eth1"), Some(IN_POD));
    inventory.apply(Change::NamespaceGone(4), |_| None);
    assert_eq!(
        (place(&inventory, "eth1"), place(&inventory, "0000:03:00.1")),
        (Some(Place::Gone), Some(IN_POD))
    );
    inventory.apply(Change::Unplugged("0000:03:00.1".into()), |_| None);
    inventory.apply(Change::Unplugged("0000:09:00.1".into()), |_| None);
    assert_eq!(place(&inventory, "0000:03:00.1"), Some(Place::Gone));
    inventory.forget(|device| device.id == "eth1");
    assert_eq!(place(&inventory, "eth1"), Some(Place::Gone));
    inventory.forget(|_| false);
    assert_eq!(place(&inventory, "eth1"), None);
}

#[test]
fn devices_of_a_former_process() {
    let away = Device { id: "eth1".into(), link: Some(Link::default()), place: IN_POD, ..Device::default() };
    let here = Device { id: "eth2".into(), place: Place::Host, ..away.clone() };
    let mut inventory = Inventory::new([away, here]);
    inventory.hidden("0000:03:00.1".into(), Bus::default());
    let ids: Vec<_> = inventory.devices().map(|device| device.id.as_str()).collect();
    assert_eq!(ids, ["0000:03:00.1", "eth1", "eth2"]);
    assert_eq!(place(&inventory, "eth2"), Some(Place::Gone), "no list has it");
    inventory.apply(link(3, "eth1"), |_| None);
    assert_eq!(place(&inventory, "eth1"), Some(Place::Host));
}

#[test]
fn lost_messages() {
    let mut inventory = Inventory::default();
    let [old, kept, new]: [IpAddr; 3] =
        ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| address.parse().unwrap());
    for change in [link(3, "eth1"), link(4, "eth2"), address(4, old, true), address(4, kept, true)] {
        inventory.apply(change, |_| None);
    }
    inventory.relist(&BTreeSet::from([4]));
    let changes = [link(4, "eth2"), address(4, kept, true), address(4, new, true)];
    changes.into_iter().for_each(|change| inventory.apply(change, |_| None));
    assert_eq!(
        (place(&inventory, "eth1"), place(&inventory, "eth2")),
        (Some(Place::Gone), Some(Place::Host))
    );
    let listed = inventory.by_index(4).and_then(|device| device.link.as_ref());
    assert_eq!(listed.unwrap().addresses, [kept, new]);
}

#[test]
fn addresses_in_any_order() {
    let mut inventory = Inventory::default();
    let one: IpAddr = "10.0.0.1".parse().unwrap();
    inventory.apply(address(3, one, true), |_| None);
    inventory.apply(link(3, "eth1"), |_| None);
    let count =
        |inventory: &Inventory| inventory.devices().next().unwrap().link.as_ref().unwrap().addresses.len();
    assert_eq!(count(&inventory), 1);
    inventory.apply(address(3, one, false), |_| None);
    assert_eq!(count(&inventory), 0);
}

#[test]
fn links_with_routes() {
    let mut inventory = Inventory::default();
    let carried = |indexes: &[u32]| {
        Change::Routes(indexes.iter().map(|index| (*index, "the default route".to_owned())).collect())
    };
    inventory.apply(link(3, "eth1"), |_| None);
    for change in [carried(&[3, 4]), link(4, "eth2")] {
        inventory.apply(change, |_| None);
    }
    let routed = |inventory: &Inventory| {
        [3, 4].map(|index| inventory.by_index(index).unwrap().link.as_ref().unwrap().route.is_some())
    };
    assert_eq!(routed(&inventory), [true, true]);
    inventory.apply(carried(&[4]), |_| None);
    inventory.apply(link(3, "eth1"), |_| None);
    assert_eq!(routed(&inventory), [false, true]);
}
