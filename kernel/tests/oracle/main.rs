//! Compares our rtnetlink encoder with another implementation: netlink-packet-route decodes every request
//! that we build, and the decoded fields must be the expected ones. (`nftables*.rs` compare nf_tables requests
//! with `nft`.)
//!
//! netlink-packet-route does not decode RTM_GETMULTICAST and alternative names of links, so those requests are missing here.
//! Attributes that it does not know appear as bytes: the options of a token bucket filter (`struct tc_tbf_qopt`, burst and rate64
//! in attributes 1, 6 and 4 of linux/pkt_sched.h) and the settings of a bridge port (attributes 4,
//! `IFLA_BRPORT_MODE`, and 33, `IFLA_BRPORT_ISOLATED`).

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod links;

use std::fs::File;
use std::os::fd::AsRawFd;

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::neighbour::{self, Neighbour, Table};
use ferrule_kernel::netlink::qdisc::{INGRESS, ROOT, Tbf};
use ferrule_kernel::netlink::route::{MAIN_TABLE, Route};
use ferrule_kernel::netlink::rule::Rule;
use ferrule_kernel::netlink::stored_route::{self, StoredRoute};
use ferrule_kernel::netlink::{Mac, Message, addr, filter, qdisc, route, rule};
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
    for (request, expected) in links::table(&netns).into_iter().chain(table()) {
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(decode(request), expected.join(" ").replace("Fd(NETNS)", &number));
    }
}

/// What follows the netlink header, as in the kernel's description of an object.
fn body(request: Message) -> Vec<u8> {
    request.finish(7, 0).unwrap().split_off(16)
}

/// Requests about everything else, as [`links::table`].
fn table() -> Vec<(Message, &'static str)> {
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
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let fdb = Neighbour { table: Table::Fdb, mac, ip: [192, 0, 2, 1].into(), is_permanent: true };
    let permanent = Neighbour { table: Table::Neighbours, ip: "fd00::".parse().unwrap(), ..fdb };
    vec![
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
            addr::list_in(4),
            r#"0x301 GetAddress(AddressMessage { header: AddressHeader { prefix_len: 0, index: 0 },
               attributes: [TargetNetNsId(4)] })"#,
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
            route::find([10, 0, 0, 1].into()),
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
            fdb.set(3),
            r#"0x501 NewNeighbour(NeighbourMessage { header: NeighbourHeader { family: Bridge, ifindex: 3, state:
               Permanent, flags: NeighbourFlags(Own), kind: Unspec }, attributes: [Destination(Other([192, 0, 2, 1])),
               LinkLayerAddress([2, 0, 0, 0, 0, 9])] })"#,
        ),
        (
            permanent.set(3),
            r#"0x501 NewNeighbour(NeighbourMessage { header: NeighbourHeader { family: Inet6, ifindex: 3, state:
               Permanent, flags: NeighbourFlags(0x0), kind: Unspec }, attributes: [Destination(Inet6(fd00::)),
               LinkLayerAddress([2, 0, 0, 0, 0, 9])] })"#,
        ),
        (
            fdb.delete(3),
            r#"0x1 DelNeighbour(NeighbourMessage { header: NeighbourHeader { family: Bridge, ifindex: 3, state:
               Permanent, flags: NeighbourFlags(Own), kind: Unspec }, attributes: [Destination(Other([192, 0, 2, 1])),
               LinkLayerAddress([2, 0, 0, 0, 0, 9])] })"#,
        ),
        (
            neighbour::get(3, [10, 1, 0, 1].into()),
            r#"0x1 GetNeighbour(NeighbourMessage { header: NeighbourHeader { family: Inet, ifindex: 3, state:
               None, flags: NeighbourFlags(0x0), kind: Unspec }, attributes: [Destination(Inet(10.1.0.1))] })"#,
        ),
        (
            neighbour::list(3, None),
            r#"0x301 GetNeighbour(NeighbourMessage { header: NeighbourHeader { family: Bridge, ifindex: 3, state:
               None, flags: NeighbourFlags(0x0), kind: Unspec }, attributes: [] })"#,
        ),
        (
            neighbour::list(3, Some(IpFamily::V4)),
            r#"0x301 GetNeighbour(NeighbourMessage { header: NeighbourHeader { family: Inet, ifindex: 0, state:
               None, flags: NeighbourFlags(0x0), kind: Unspec }, attributes: [IfIndex(3)] })"#,
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
    ]
}
