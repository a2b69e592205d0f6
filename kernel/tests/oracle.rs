//! Compares our rtnetlink encoder with another implementation: netlink-packet-route decodes every request
//! that we build, and the decoded fields must be the expected ones. (`nftables*.rs` compare nf_tables requests
//! with `nft`.)
//!
//! netlink-packet-route does not decode RTM_GETMULTICAST and alternative names of links, so those requests are missing here.
//! Attributes that it does not know appear as bytes: the options of a token bucket filter (`struct tc_tbf_qopt`, burst and rate64
//! in attributes 1, 6 and 4 of linux/pkt_sched.h) and the settings of a bridge port (attributes 4,
//! `IFLA_BRPORT_MODE`, and 33, `IFLA_BRPORT_ISOLATED`).

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::bridge::{PVID, PortSettings, UNTAGGED, Vlans};
use ferrule_kernel::netlink::link::{IFF_PROMISC, IFF_UP, NewLink};
use ferrule_kernel::netlink::qdisc::{INGRESS, ROOT, Tbf};
use ferrule_kernel::netlink::route::{MAIN_TABLE, Route};
use ferrule_kernel::netlink::rule::Rule;
use ferrule_kernel::netlink::stored_route::{self, StoredRoute};
use ferrule_kernel::netlink::{
    LinkData, LinkId, Mac, Message, addr, bridge, filter, ifb, link, nsid, qdisc, route, rule, transfer, vrf,
};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;

/// Header fields with the value 0 or "unspecified", which the expected texts omit.
const DEFAULTS: [&str; 11] = [
    "interface_family: Unspec, ",
    "family: Unspec, ",
    "link_layer_type: Netrom, ", // 0
    "flags: LinkFlags(0x0), ",
    ", change_mask: LinkFlags(0x0)",
    "flags: AddressHeaderFlags(0x0), ",
    "scope: Universe, ", // 0
    "source_prefix_length: 0, ",
    "tos: 0, ",
    ", flags: RouteFlags(0x0)",
    ", info: 0",
];

/// The flags and the fields of a request, as netlink-packet-route decodes them.
fn decode(request: Message) -> String {
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&request.finish(7, 0).unwrap()).unwrap();
    assert_eq!(message.header.sequence_number, 7);
    let NetlinkPayload::InnerMessage(fields) = message.payload else { panic!("{message:?}") };
    let text = format!("{:#x} {fields:?}", message.header.flags);
    DEFAULTS.iter().fold(text, |text, default| text.replace(default, ""))
}

#[test]
fn another_implementation_decodes_the_same_fields() {
    let netns = File::open("/proc/self/ns/net").unwrap();
    let number = format!("Fd({})", netns.as_raw_fd());
    for (request, expected) in table(&netns) {
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(decode(request), expected.join(" ").replace("Fd(NETNS)", &number));
    }
}

/// What follows the netlink header, as in the kernel's description of an object.
fn body(request: Message) -> Vec<u8> {
    request.finish(7, 0).unwrap().split_off(16)
}

/// Requests, each with its flags (`NLM_F_*`) and fields. `NETNS` is the number of the file descriptor.
fn table(netns: &File) -> Vec<(Message, &'static str)> {
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let cni0 = NewLink { kind: "bridge", name: "cni0", mac: Some(mac), ..NewLink::default() };
    let veth = NewLink { kind: "veth", name: "veth1", mtu: 1450, ..NewLink::default() };
    let end = NewLink { name: "eth0", mac: Some(mac), netns: Some(netns.as_fd()), ..veth };
    let macvlan = LinkData::Macvlan { mode: 4, broadcast_queue: 2000 };
    let vlans =
        [Vlans { first: 100, last: 100, flags: PVID | UNTAGGED }, Vlans { first: 200, last: 4094, flags: 0 }];
    let tbf = Tbf { rate: 5_000_000_000, limit: 300_000, buffer: 1_000, burst: Some(6_400) };
    let v4 = Route {
        dst: "10.1.0.0/16".parse().unwrap(),
        gw: Some([10, 0, 0, 1].into()),
        src: Some([10, 0, 0, 2].into()),
        onlink: false,
        mtu: 1400,
        advmss: 1360,
        priority: 50,
        table: Some(1000),
        scope: None,
        protocol: 0,
    };
    let v6 = Route {
        dst: "::/0".parse().unwrap(),
        gw: None,
        src: None,
        onlink: true,
        mtu: 0,
        advmss: 0,
        priority: 0,
        table: None,
        scope: Some(253),
        protocol: 0,
    };
    // Without the netlink header, the request is the kernel's own description of the route.
    let listed = body(route::add(3, &v4));
    let stored = StoredRoute::parse(&listed).unwrap();
    vec![
        (
            link::get(LinkId::Name("eth0")),
            r#"0x1 GetLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [IfName("eth0"),
               ExtMask([SkipStats])] })"#,
        ),
        (
            link::get(LinkId::Index(3)),
            r#"0x1 GetLink(LinkMessage { header: LinkHeader { index: 3 }, attributes:
               [ExtMask([SkipStats])] })"#,
        ),
        (
            link::delete(LinkId::Name("eth0")),
            r#"0x1 DelLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [IfName("eth0")] })"#,
        ),
        (
            link::delete(LinkId::Index(3)),
            r#"0x1 DelLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [] })"#,
        ),
        (
            link::set_flags(3, IFF_UP, IFF_UP | IFF_PROMISC),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3, flags: LinkFlags(Up), change_mask:
               LinkFlags(Up | Promisc) }, attributes: [] })"#,
        ),
        (
            link::set_mac(3, mac),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [Address([2, 0, 0, 0,
               0, 9])] })"#,
        ),
        (
            link::set_mtu(3, 1400),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [Mtu(1400)] })"#,
        ),
        (
            link::set_tx_queue_len(3, 77),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [TxQueueLen(77)] })"#,
        ),
        (
            link::set_master(3, 5),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [Controller(5)] })"#,
        ),
        (
            NewLink { mtu: 1450, flags: IFF_UP | IFF_PROMISC, ..cni0 }.request(),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0, flags: LinkFlags(Up | Promisc),
               change_mask: LinkFlags(Up | Promisc) }, attributes: [IfName("cni0"), Address([2, 0, 0, 0, 0,
               9]), Mtu(1450), LinkInfo([Kind(Bridge)])] })"#,
        ),
        (
            NewLink { flags: IFF_UP, ..cni0 }.request(),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0, flags: LinkFlags(Up),
               change_mask: LinkFlags(Up) }, attributes: [IfName("cni0"), Address([2, 0, 0, 0, 0, 9]),
               LinkInfo([Kind(Bridge)])] })"#,
        ),
        (
            link::new_veth(&NewLink { flags: IFF_UP, master: Some(5), ..veth }, &end),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0, flags: LinkFlags(Up),
               change_mask: LinkFlags(Up) }, attributes: [IfName("veth1"), Mtu(1450), Controller(5),
               LinkInfo([Kind(Veth), Data(Veth(Peer(LinkMessage { header: LinkHeader { index: 0 },
               attributes: [IfName("eth0"), Address([2, 0, 0, 0, 0, 9]), Mtu(1450), NetNsFd(NETNS), NumTxQueues(1),
               NumRxQueues(1)] })))]), NumTxQueues(1), NumRxQueues(1)]
               })"#,
        ),
        (
            link::new_netkit(&NewLink { kind: "netkit", flags: IFF_UP, ..veth }, &end),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0, flags: LinkFlags(Up),
               change_mask: LinkFlags(Up) }, attributes: [IfName("veth1"), Mtu(1450), LinkInfo([Kind(Netkit),
               Data(Netkit([Peer(LinkMessage { header: LinkHeader { index: 0 }, attributes: [IfName("eth0"),
               Address([2, 0, 0, 0, 0, 9]), Mtu(1450), NetNsFd(NETNS)] }), Mode(L2)]))])] })"#,
        ),
        (
            PortSettings { hairpin: Some(true), isolated: None }.request(3),
            r#"0x1 SetLink(LinkMessage { header: LinkHeader { interface_family: Bridge, index: 3 },
               attributes: [ProtoInfoBridge([Other(DefaultNla { kind: 4, value: [1] })])] })"#,
        ),
        (
            PortSettings { hairpin: Some(false), isolated: Some(true) }.request(3),
            r#"0x1 SetLink(LinkMessage { header: LinkHeader { interface_family: Bridge, index: 3 },
               attributes: [ProtoInfoBridge([Other(DefaultNla { kind: 4, value: [0] }), Other(DefaultNla {
               kind: 33, value: [1] })])] })"#,
        ),
        (
            NewLink { kind: "macvlan", parent: Some(3), data: macvlan, ..end }.request(),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [IfName("eth0"), Address([2,
               0, 0, 0, 0, 9]), Mtu(1450), Link(3), NetNsFd(NETNS), LinkInfo([Kind(MacVlan),
               Data(MacVlan([Mode(Bridge), BcQueueLen(2000)]))])] })"#,
        ),
        (
            NewLink { kind: "ipvlan", index: 99, data: LinkData::Ipvlan { mode: 1, flags: 2 }, ..veth }
                .request(),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 99 }, attributes: [IfName("veth1"), Mtu(1450),
               LinkInfo([Kind(IpVlan), Data(IpVlan([Mode(L3), Flags(IpVlanFlags(Vepa))]))])] })"#,
        ),
        (
            NewLink { kind: "vlan", data: LinkData::Vlan { id: 100 }, ..veth }.request(),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [IfName("veth1"), Mtu(1450),
               LinkInfo([Kind(Vlan), Data(Vlan([Id(100)]))])] })"#,
        ),
        (
            bridge::new_filtering(&NewLink { flags: IFF_UP, ..cni0 }),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0, flags: LinkFlags(Up),
               change_mask: LinkFlags(Up) }, attributes: [IfName("cni0"), Address([2, 0, 0, 0, 0, 9]),
               LinkInfo([Kind(Bridge), Data(Bridge([VlanFiltering(true)]))])] })"#,
        ),
        (
            bridge::probe_filtering(),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [LinkInfo([Kind(Bridge),
               Data(Bridge([VlanProtocol(Ieee8021Q)]))]), NumTxQueues(0)] })"#,
        ),
        (
            bridge::add_vlans(3, &vlans),
            r#"0x1 SetLink(LinkMessage { header: LinkHeader { interface_family: Bridge, index: 3 },
               attributes: [AfSpecBridge([Flags(Controller), VlanInfo(BridgeVlanInfo { flags:
               BridgeVlanInfoFlags(Pvid | Untagged), vid: 100 }), VlanInfo(BridgeVlanInfo { flags:
               BridgeVlanInfoFlags(RangeBegin), vid: 200 }), VlanInfo(BridgeVlanInfo { flags:
               BridgeVlanInfoFlags(RangeEnd), vid: 4094 })])] })"#,
        ),
        (
            bridge::delete_vlans(3, &vlans[..1]),
            r#"0x1 DelLink(LinkMessage { header: LinkHeader { interface_family: Bridge, index: 3 },
               attributes: [AfSpecBridge([Flags(Controller), VlanInfo(BridgeVlanInfo { flags:
               BridgeVlanInfoFlags(Pvid | Untagged), vid: 100 })])] })"#,
        ),
        (
            bridge::list_vlans(),
            r#"0x301 GetLink(LinkMessage { header: LinkHeader { interface_family: Bridge, index: 0 },
               attributes: [ExtMask([BrvlanCompressed])] })"#,
        ),
        (
            ifb::create("bwp1", 1450),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [IfName("bwp1"),
               Mtu(1450), LinkInfo([Kind(Ifb)]), TxQueueLen(0)] })"#,
        ),
        (
            ifb::set_up(3, 1450),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3, flags: LinkFlags(Up), change_mask:
               LinkFlags(Up) }, attributes: [Mtu(1450)] })"#,
        ),
        (
            ifb::set_alias(3, "owner"),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [IfAlias("owner")] })"#,
        ),
        (
            transfer::rename(3, "net1"),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [IfName("net1")] })"#,
        ),
        (
            transfer::move_to(3, netns.as_fd(), "net1"),
            r#"0x1 NewLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [IfName("net1"),
               NetNsFd(NETNS)] })"#,
        ),
        (
            ifb::probe("ifb"),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [Address([255, 255,
               255, 255, 255, 255]), LinkInfo([Kind(Ifb)])] })"#,
        ),
        (
            ifb::list(None),
            r#"0x301 GetLink(LinkMessage { header: LinkHeader { index: 0 }, attributes:
               [ExtMask([SkipStats])] })"#,
        ),
        (
            ifb::list(Some("ifb")),
            r#"0x301 GetLink(LinkMessage { header: LinkHeader { index: 0 }, attributes:
               [ExtMask([SkipStats]), LinkInfo([Kind(Ifb)])] })"#,
        ),
        (
            addr::add(3, "10.0.0.2/24".parse().unwrap(), addr::NODAD),
            r#"0x601 NewAddress(AddressMessage { header: AddressHeader { family: Inet, prefix_len: 24,
               index: 3 }, attributes: [Local(10.0.0.2), Address(10.0.0.2), Broadcast(10.0.0.255)] })"#,
        ),
        (
            addr::add(3, "10.0.0.2/32".parse().unwrap(), 0),
            r#"0x601 NewAddress(AddressMessage { header: AddressHeader { family: Inet, prefix_len: 32,
               index: 3 }, attributes: [Local(10.0.0.2), Address(10.0.0.2)] })"#,
        ),
        (
            addr::add(3, "fd00::2/64".parse().unwrap(), addr::NODAD),
            r#"0x601 NewAddress(AddressMessage { header: AddressHeader { family: Inet6, prefix_len: 64,
               index: 3 }, attributes: [Local(fd00::2), Address(fd00::2), Flags(AddressFlags(Nodad))] })"#,
        ),
        (
            addr::delete(3, "fd00::2/64".parse().unwrap()),
            r#"0x1 DelAddress(AddressMessage { header: AddressHeader { family: Inet6, prefix_len: 64,
               index: 3 }, attributes: [Local(fd00::2), Address(fd00::2)] })"#,
        ),
        (
            addr::delete_local(3, "10.0.0.2/24".parse().unwrap()),
            r#"0x1 DelAddress(AddressMessage { header: AddressHeader { family: Inet, prefix_len: 24,
               index: 3 }, attributes: [Local(10.0.0.2)] })"#,
        ),
        (
            addr::list(3),
            r#"0x301 GetAddress(AddressMessage { header: AddressHeader { prefix_len: 0, index: 3 },
               attributes: [] })"#,
        ),
        (
            route::add(3, &v4),
            r#"0x401 NewRoute(RouteMessage { header: RouteHeader { address_family: Inet,
               destination_prefix_length: 16, table: 0, protocol: Boot, kind: Unicast }, attributes:
               [Destination(Inet(10.1.0.0)), Oif(3), Table(1000), Gateway(Inet(10.0.0.1)),
               PrefSource(Inet(10.0.0.2)), Priority(50), Metrics([Mtu(1400), Advmss(1360)])] })"#,
        ),
        (
            route::add(3, &v6),
            r#"0x401 NewRoute(RouteMessage { header: RouteHeader { address_family: Inet6,
               destination_prefix_length: 0, table: 254, protocol: Boot, scope: Link, kind: Unicast, flags:
               RouteFlags(Onlink) },
               attributes: [Destination(Inet6(::)), Oif(3), Table(254)] })"#,
        ),
        (
            route::delete(3, &v6),
            r#"0x1 DelRoute(RouteMessage { header: RouteHeader { address_family: Inet6,
               destination_prefix_length: 0, table: 254, protocol: Boot, scope: Link, kind: Unicast, flags:
               RouteFlags(Onlink) },
               attributes: [Destination(Inet6(::)), Oif(3), Table(254)] })"#,
        ),
        (
            route::lookup([10, 0, 0, 1].into()),
            r#"0x1 GetRoute(RouteMessage { header: RouteHeader { address_family: Inet,
               destination_prefix_length: 32, table: 0, protocol: Unspec, kind: Unspec, flags:
               RouteFlags(LookupTable | FibMatch) }, attributes: [Destination(Inet(10.0.0.1))] })"#,
        ),
        (
            route::list(IpFamily::V6, MAIN_TABLE),
            r#"0x301 GetRoute(RouteMessage { header: RouteHeader { address_family: Inet6,
               destination_prefix_length: 0, table: 254, protocol: Unspec, kind: Unspec }, attributes:
               [Table(254)] })"#,
        ),
        (
            route::list(IpFamily::V4, 1000),
            r#"0x301 GetRoute(RouteMessage { header: RouteHeader { address_family: Inet,
               destination_prefix_length: 0, table: 0, protocol: Unspec, kind: Unspec }, attributes:
               [Table(1000)] })"#,
        ),
        (
            stored_route::list(IpFamily::V6, None),
            r#"0x301 GetRoute(RouteMessage { header: RouteHeader { address_family: Inet6,
               destination_prefix_length: 0, table: 0, protocol: Unspec, kind: Unspec }, attributes: [] })"#,
        ),
        (
            stored.add_to(100),
            r#"0xc01 NewRoute(RouteMessage { header: RouteHeader { address_family: Inet,
               destination_prefix_length: 16, table: 100, protocol: Boot, kind: Unicast }, attributes:
               [Table(100), Destination(Inet(10.1.0.0)), Oif(3), Gateway(Inet(10.0.0.1)),
               PrefSource(Inet(10.0.0.2)), Priority(50), Metrics([Mtu(1400), Advmss(1360)])] })"#,
        ),
        (
            stored.delete_from(1000),
            r#"0x1 DelRoute(RouteMessage { header: RouteHeader { address_family: Inet,
               destination_prefix_length: 16, table: 0, protocol: Boot, kind: Unicast }, attributes:
               [Table(1000), Destination(Inet(10.1.0.0)), Oif(3), Gateway(Inet(10.0.0.1)),
               PrefSource(Inet(10.0.0.2)), Priority(50), Metrics([Mtu(1400), Advmss(1360)])] })"#,
        ),
        (
            rule::add(&Rule::from([10, 0, 0, 2].into(), 1000, 67)),
            r#"0x601 NewRule(RuleMessage { header: RuleHeader { family: Inet, dst_len: 0, src_len: 32, table: 0,
               action: ToTable, flags: RuleFlags(0x0) }, attributes: [Table(1000), Source(10.0.0.2),
               Protocol(Other(67))] })"#,
        ),
        (
            rule::delete(&Rule { priority: Some(5), ..Rule::from("fd00::2".parse().unwrap(), 100, 0) }),
            r#"0x1 DelRule(RuleMessage { header: RuleHeader { family: Inet6, dst_len: 0, src_len: 128, table: 100,
               action: ToTable, flags: RuleFlags(0x0) }, attributes: [Table(100), Source(fd00::2), Priority(5)]
               })"#,
        ),
        (
            rule::add_again(&body(rule::add(&Rule::from([10, 0, 0, 2].into(), 1000, 4))), 67),
            r#"0x601 NewRule(RuleMessage { header: RuleHeader { family: Inet, dst_len: 0, src_len: 32, table: 0,
               action: ToTable, flags: RuleFlags(0x0) }, attributes: [Protocol(Other(67)), Table(1000),
               Source(10.0.0.2)] })"#,
        ),
        (
            rule::delete_again(&body(rule::add(&Rule::from([10, 0, 0, 2].into(), 1000, 4))), 67),
            r#"0x1 DelRule(RuleMessage { header: RuleHeader { family: Inet, dst_len: 0, src_len: 32, table: 0,
               action: ToTable, flags: RuleFlags(0x0) }, attributes: [Protocol(Other(67)), Table(1000),
               Source(10.0.0.2)] })"#,
        ),
        (
            rule::list(),
            r#"0x301 GetRule(RuleMessage { header: RuleHeader { dst_len: 0, src_len: 0, table: 0, action: Unspec,
               flags: RuleFlags(0x0) }, attributes: [] })"#,
        ),
        (
            vrf::list_ports(5),
            r#"0x301 GetLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [ExtMask([SkipStats]),
               Controller(5)] })"#,
        ),
        (
            vrf::create("blue", 1000),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0, flags: LinkFlags(Up), change_mask:
               LinkFlags(Up) }, attributes: [IfName("blue"), LinkInfo([Kind(Vrf),
               Data(Vrf([TableId(1000)]))])] })"#,
        ),
        (
            stored_route::list(IpFamily::V6, Some(3)),
            r#"0x301 GetRoute(RouteMessage { header: RouteHeader { address_family: Inet6,
               destination_prefix_length: 0, table: 0, protocol: Unspec, kind: Unspec }, attributes: [Oif(3)] })"#,
        ),
        (
            addr::add_again(5, &body(addr::add(3, "fd00::2/64".parse().unwrap(), addr::NODAD))),
            r#"0x601 NewAddress(AddressMessage { header: AddressHeader { family: Inet6, prefix_len: 64, index: 5 },
               attributes: [Local(fd00::2), Address(fd00::2), Flags(AddressFlags(Nodad))] })"#,
        ),
        (
            qdisc::get(3, ROOT),
            r#"0x9 GetQueueDiscipline(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major: 0,
               minor: 0 }, parent: TcHandle { major: 65535, minor: 65535 } }, attributes: [] })"#,
        ),
        (
            qdisc::delete(3, INGRESS),
            r#"0x1 DelQueueDiscipline(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major: 0,
               minor: 0 }, parent: TcHandle { major: 65535, minor: 65521 } }, attributes: [] })"#,
        ),
        (
            qdisc::create_tbf(3, &tbf),
            r#"0x601 NewQueueDiscipline(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major:
               1, minor: 0 }, parent: TcHandle { major: 65535, minor: 65535 } }, attributes: [Kind("tbf"),
               Options([Other(DefaultNla { kind: 32770, value: [40, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
               242, 5, 42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 224, 147, 4, 0, 232, 3, 0, 0, 0, 0, 0, 0, 8,
               0, 6, 0, 0, 25, 0, 0, 12, 0, 4, 0, 0, 242, 5, 42, 1, 0, 0, 0] })])] })"#,
        ),
        (
            qdisc::replace_tbf(3, &Tbf { rate: 1_000, limit: 2_000, buffer: 3_000, burst: None }),
            r#"0x501 NewQueueDiscipline(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major:
               1, minor: 0 }, parent: TcHandle { major: 65535, minor: 65535 } }, attributes: [Kind("tbf"),
               Options([Other(DefaultNla { kind: 32770, value: [40, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 232,
               3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 208, 7, 0, 0, 184, 11, 0, 0, 0, 0, 0, 0] })])]
               })"#,
        ),
        (
            qdisc::create_ingress(3),
            r#"0x601 NewQueueDiscipline(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major:
               65535, minor: 0 }, parent: TcHandle { major: 65535, minor: 65521 } }, attributes:
               [Kind("ingress"), Options([])] })"#,
        ),
        (
            qdisc::probe(3, "tbf"),
            r#"0x601 NewQueueDiscipline(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major:
               0, minor: 0 }, parent: TcHandle { major: 65535, minor: 65535 } }, attributes: [Kind("tbf"),
               Other(DefaultNla { kind: 13, value: [0, 0, 0, 0] })] })"#,
        ),
        (
            filter::redirect_all(3, filter::AT_INGRESS, 10, 4),
            r#"0x601 NewTrafficFilter(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major: 0,
               minor: 0 }, parent: TcHandle { major: 65535, minor: 0 }, info: 656128 }, attributes:
               [Kind("u32"), Options([U32(ClassId(TcHandle { major: 1, minor: 1 })),
               U32(Selector(TcU32Selector { flags: TcU32SelectorFlags(Terminal), offshift: 0, nkeys: 1,
               offmask: 0, off: 0, offoff: 0, hoff: 0, hmask: 0, keys: [TcU32Key { mask: 0, val: 0, off: 0,
               offmask: 0 }] })), U32(Action([TcAction { tab: 1, attributes: [Kind("mirred"),
               Options([Mirror(Parms(TcMirror { generic: TcActionGeneric { index: 0, capab: 0, action:
               Stolen, refcnt: 0, bindcnt: 0 }, eaction: EgressRedir, ifindex: 4 }))])] }]))])] })"#,
        ),
        (
            filter::delete(3, filter::AT_CLSACT_INGRESS, 10, 0x8000_0800),
            r#"0x1 DelTrafficFilter(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major:
               32768, minor: 2048 }, parent: TcHandle { major: 65535, minor: 65522 }, info: 656128 },
               attributes: [Kind("u32")] })"#,
        ),
        (
            filter::list(3, filter::AT_INGRESS),
            r#"0x301 GetTrafficFilter(TcMessage { header: TcHeader { index: 3, handle: TcHandle { major: 0,
               minor: 0 }, parent: TcHandle { major: 65535, minor: 0 } }, attributes: [] })"#,
        ),
        (
            filter::probe_action("mirred"),
            r#"0x401 NewTrafficAction(TcActionMessage { header: TcActionMessageHeader { family: Unspec },
               attributes: [Actions([TcAction { tab: 1, attributes: [Kind("mirred")] }])] })"#,
        ),
        (
            nsid::get(netns.as_fd()),
            r#"0x1 GetNsId(NsidMessage { header: NsidHeader { family: Unspec }, attributes: [Fd(NETNS)] })"#,
        ),
        (
            nsid::assign(netns.as_fd()),
            r#"0x1 NewNsId(NsidMessage { header: NsidHeader { family: Unspec }, attributes: [Id(-1), Fd(NETNS)] })"#,
        ),
        (
            nsid::translate(7, 0),
            r#"0x1 GetNsId(NsidMessage { header: NsidHeader { family: Unspec }, attributes: [Id(7), TargetNsid(0)] })"#,
        ),
    ]
}
