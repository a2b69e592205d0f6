//! Requests about links.

use std::fs::File;
use std::os::fd::AsFd;

use ferrule_kernel::netlink::bridge::{PVID, PortSettings, UNTAGGED, Vlans};
use ferrule_kernel::netlink::link::{IFF_PROMISC, IFF_UP, NewLink};
use ferrule_kernel::netlink::vf::{DOT1AD, Setting};
use ferrule_kernel::netlink::{LinkData, LinkId, Mac, Message, bridge, ifb, link, nsid, transfer, vf, vrf};

/// Requests, each with its flags (`NLM_F_*`) and fields. `NETNS` is the number of the file descriptor.
pub(crate) fn table(netns: &File) -> Vec<(Message, &'static str)> {
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let cni0 = NewLink { kind: "bridge", name: "cni0", mac: Some(mac), ..NewLink::default() };
    let veth = NewLink { kind: "veth", name: "veth1", mtu: 1450, ..NewLink::default() };
    let end = NewLink { name: "eth0", mac: Some(mac), netns: Some(netns.as_fd()), ..veth };
    let macvlan = LinkData::Macvlan { mode: 4, broadcast_queue: 2000 };
    let vxlan = LinkData::Vxlan { id: 7471, local: Some([192, 0, 2, 1].into()), port: 4789, learning: false };
    let vlans =
        [Vlans { first: 100, last: 100, flags: PVID | UNTAGGED }, Vlans { first: 200, last: 4094, flags: 0 }];
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
            NewLink { kind: "vxlan", data: vxlan, ..veth }.request(),
            r#"0x601 NewLink(LinkMessage { header: LinkHeader { index: 0 }, attributes: [IfName("veth1"), Mtu(1450),
               LinkInfo([Kind(Vxlan), Data(Vxlan([Id(7471), Port(4789), Learning(false), Local(192.0.2.1)]))])] })"#,
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
            ifb::create("bwp1", 1450, None),
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
            link::list(None),
            r#"0x301 GetLink(LinkMessage { header: LinkHeader { index: 0 }, attributes:
               [ExtMask([SkipStats])] })"#,
        ),
        (
            link::list(Some("ifb")),
            r#"0x301 GetLink(LinkMessage { header: LinkHeader { index: 0 }, attributes:
               [ExtMask([SkipStats]), LinkInfo([Kind(Ifb)])] })"#,
        ),
        (
            link::list_ports(5),
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
        (
            vf::get(3),
            r#"0x1 GetLink(LinkMessage { header: LinkHeader { index: 3 }, attributes:
               [ExtMask([Vf, SkipStats])] })"#,
        ),
        (
            Setting::Vlan { id: 100, qos: 3, proto: DOT1AD }.request(3, 7),
            r#"0x1 SetLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [VfInfoList([LinkVfInfo([VlanList([Info(VfVlanInfo { vf_id: 7, vlan_id: 100, qos: 3, protocol: Ieee8021Ad })])])])] })"#,
        ),
        (
            Setting::Rate { min: 10, max: 200 }.request(3, 7),
            r#"0x1 SetLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [VfInfoList([LinkVfInfo([Rate(VfInfoRate { vf_id: 7, min_tx_rate: 10, max_tx_rate: 200 })])])] })"#,
        ),
        (
            Setting::SpoofCheck(true).request(3, 7),
            r#"0x1 SetLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [VfInfoList([LinkVfInfo([SpoofCheck(VfInfoSpoofCheck { vf_id: 7, enabled: true })])])] })"#,
        ),
        (
            Setting::Trust(true).request(3, 7),
            r#"0x1 SetLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [VfInfoList([LinkVfInfo([Trust(VfInfoTrust { vf_id: 7, enabled: true })])])] })"#,
        ),
        (
            Setting::LinkState(2).request(3, 7),
            r#"0x1 SetLink(LinkMessage { header: LinkHeader { index: 3 }, attributes: [VfInfoList([LinkVfInfo([LinkState(VfInfoLinkState { vf_id: 7, state: Disable })])])] })"#,
        ),
    ]
}
