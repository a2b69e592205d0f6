use ferrule_kernel::netlink::Message;
use ferrule_kernel::netlink::message::HEADER;
use ferrule_kernel::netlink::route;

use super::*;
use crate::kernel::{Link, PROTOCOL};

const PODS: &str = "10.244.1.0/24";

/// eth0 with an address and a route of ours, and the VXLAN device.
fn local() -> Local {
    let mut local = Local::default();
    for (index, name, master) in [
        (2, "eth0", None),
        (3, names::VXLAN, None),
        (4, "veth0", None),
        (5, crate::kernel::BRIDGE, None),
        (6, "veth1", Some(5)),
        (7, "veth2", Some(5)),
        (8, "veth3", Some(5)),
    ] {
        let link = Link { name: name.into(), mtu: 1500, master, is_up: true, ..Link::default() };
        local.links.insert(index, link);
    }
    local.addresses.insert((2, "192.0.2.1".parse().unwrap()));
    local.routes.extend(Route::parse(&body(ours("10.244.2.0/24"))));
    local
}

fn ours(dst: &str) -> Message {
    foreign(dst, PROTOCOL)
}

fn foreign(dst: &str, protocol: u8) -> Message {
    let (dst, gw) = (dst.parse().unwrap(), Some("192.0.2.2".parse().unwrap()));
    let numbers = route::Route {
        dst,
        gw,
        protocol,
        src: None,
        onlink: false,
        mtu: 0,
        advmss: 0,
        priority: 0,
        table: None,
        scope: None,
    };
    route::add(2, &numbers)
}

fn body(message: Message) -> Vec<u8> {
    message.finish(0, 0).unwrap()[HEADER..].to_vec()
}

fn effect(local: &mut Local, kind: u16, message: Message) -> Effect {
    let body = body(message);
    let message = Received { kind, flags: 0, sequence: 0, port: 0, body: &body };
    let interest: Interest = Box::new(|dst| !dst.to_string().starts_with("198.51.100."));
    apply(local, &message, &[PODS.parse().unwrap()], Some(&interest))
}

#[test]
fn routes_of_pods_and_known_routes_do_not_matter() {
    for (kind, message, expected) in [
        (RTM_NEWROUTE, ours("10.244.2.0/24"), Effect::None),
        (RTM_DELROUTE, ours("10.244.2.0/24"), Effect::Routes),
        (RTM_DELROUTE, ours("10.244.3.0/24"), Effect::None),
        (RTM_NEWROUTE, foreign("10.244.2.0/24", 3), Effect::Routes),
        (RTM_NEWROUTE, foreign("10.244.1.7/32", 3), Effect::None),
        (RTM_NEWROUTE, foreign("10.244.1.0/24", 2), Effect::None),
        (RTM_NEWROUTE, foreign("10.244.1.64/26", 80), Effect::Routes),
        (RTM_NEWROUTE, foreign("198.51.100.0/24", 3), Effect::Later),
        (RTM_DELROUTE, foreign("198.51.100.0/24", 3), Effect::None),
    ] {
        assert_eq!(effect(&mut local(), kind, message), expected);
    }
}

#[test]
fn addresses_matter_unless_they_are_those_of_pods() {
    let address = |link, text: &str| addr::add(link, text.parse().unwrap(), 0);
    for (kind, message, expected) in [
        (RTM_NEWADDR, address(2, "192.0.2.1/24"), Effect::None),
        (RTM_NEWADDR, address(2, "192.0.2.7/24"), Effect::Matters),
        (RTM_DELADDR, address(2, "192.0.2.1/24"), Effect::Routes),
        (RTM_NEWADDR, address(4, "10.244.1.1/24"), Effect::None),
        (RTM_NEWADDR, address(4, "fe80::1/64"), Effect::None),
        (RTM_NEWADDR, address(3, "10.244.1.0/32"), Effect::Device),
    ] {
        assert_eq!(effect(&mut local(), kind, message), expected);
    }
}

#[test]
fn the_node_must_forward() {
    let body = |index: u32, forwarding: u8| {
        let index = index.to_ne_bytes();
        [&[2, 0, 0, 0, 8, 0, 1, 0], &index[..], &[8, 0, 2, 0, forwarding, 0, 0, 0]].concat()
    };
    for (body, expected) in
        [(body(ALL, 0), Effect::Matters), (body(ALL, 1), Effect::None), (body(7, 0), Effect::None)]
    {
        let message = Received { kind: RTM_NEWNETCONF, flags: 0, sequence: 0, port: 0, body: &body };
        assert_eq!(apply(&mut local(), &message, &[], None), expected);
    }
}

#[test]
fn links_matter_if_something_needs_them() {
    let down = |index| link::set_flags(index, 0, 0);
    for (index, expected) in [(2, Effect::Routes), (4, Effect::None), (9, Effect::None)] {
        assert_eq!(effect(&mut local(), RTM_NEWLINK, down(index)), expected, "{index}");
    }
    for (index, expected) in [(2, Effect::Routes), (3, Effect::Device), (4, Effect::None)] {
        assert_eq!(effect(&mut local(), RTM_DELLINK, down(index)), expected, "{index}");
    }
    // A pod of ptp: its link has the gateway's address and a route.
    let (mut local, own) = (local(), foreign("10.244.1.7/32", 3));
    local.addresses.insert((4, "10.244.1.1".parse().unwrap()));
    local.routes.extend(Route::parse(&body(own)).map(|route| Route { links: vec![4], ..route }));
    assert_eq!(effect(&mut local, RTM_NEWLINK, down(4)), Effect::None);
    assert_eq!(effect(&mut local, RTM_DELLINK, down(4)), Effect::None);
    assert!(local.routes.iter().all(|route| route.links != [4]));
    // The last port leaves the bridge, in either way.
    assert_eq!(effect(&mut local, RTM_DELLINK, down(6)), Effect::None);
    assert_eq!(effect(&mut local.clone(), RTM_DELLINK, down(7)), Effect::Matters);
    assert_eq!(effect(&mut local, RTM_NEWLINK, down(7)), Effect::Matters);
}
