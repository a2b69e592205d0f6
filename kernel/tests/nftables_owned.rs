//! Tests against the kernel of owned tables, verdict maps, ranges, sets that rules renew, and messages about elements. They need
//! root, `nft` and Linux 6.9.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use common::{isolated, ruleset, sh};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::matches::{End, family, read_address};
use ferrule_kernel::nftables::notice::{Elements, elements_of};
use ferrule_kernel::nftables::{
    Batch, ChainType, CmpOp, DataType, Element, Expr, Family, Hook, HookPoint, MetaKey, PayloadBase, Policy,
    Register, Rule, Table, TableState, Value, Values, Verdict, elements, rules, table_state,
};
use ferrule_kernel::notices::Messages;

const TABLE: Table<'static> = Table::new(Family::Inet, "test");
const R1: Register = Register::R1;

fn to(address: [u8; 4], chain: &str) -> Element {
    let verdict = Verdict::Jump(chain.to_owned());
    Element { value: Some(Value::Verdict(verdict)), ..Element::new(address.to_vec()) }
}

fn fails(script: &str) -> bool {
    !Command::new("sh").args(["-ec", script]).output().unwrap().status.success()
}

/// Other processes cannot change an owned table. It stays when its owner ends, and the next owner claims it.
#[test]
fn an_owned_table_stays_and_is_claimed_again() {
    isolated(|_| {
        let mut batch = Batch::new();
        batch.own_table(TABLE, None).add_chain(TABLE, "c", None, None);
        let mut owner = Socket::netfilter().unwrap();
        batch.commit(&mut owner).unwrap();
        let owned = TableState { is_dormant: false, is_owned: true, is_persistent: true };
        assert_eq!(table_state(&mut owner, TABLE).unwrap(), Some(owned));
        sh("nft flush ruleset");
        assert!(ruleset().contains("table inet test") && fails("nft delete table inet test"));
        drop(owner);
        let mut next = Socket::netfilter().unwrap();
        let orphan = TableState { is_owned: false, ..owned };
        assert_eq!(table_state(&mut next, TABLE).unwrap(), Some(orphan));
        sh("nft add chain inet test d");
        let mut batch = Batch::new();
        batch.own_table(TABLE, None).delete_chain(TABLE, "d");
        batch.commit(&mut next).unwrap();
        assert_eq!(table_state(&mut next, TABLE).unwrap(), Some(owned));
        assert!(fails("nft add chain inet test d"));
        let mut batch = Batch::new();
        batch.own_table(TABLE, None).delete_table(TABLE).own_table(TABLE, None);
        batch.commit(&mut next).unwrap();
        assert!(!ruleset().contains("chain c"));
        assert_eq!(table_state(&mut next, Table::new(Family::Inet, "other")).unwrap(), None);
    });
}

#[test]
fn an_element_of_a_verdict_map_is_replaced_in_one_batch() {
    isolated(|socket| {
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_chain(TABLE, "one", None, None).add_chain(TABLE, "two", None, None);
        batch.add_set(TABLE, "to", 1, &[DataType::Ipv4Addr], Some(Values::Verdict));
        batch.add_elements(TABLE, "to", &[to([10, 0, 0, 1], "one"), to([10, 0, 0, 2], "one")]);
        batch.commit(socket).unwrap();
        let mut batch = Batch::new();
        batch.add_chain(TABLE, "three", None, None);
        batch.delete_elements(TABLE, "to", &[vec![10, 0, 0, 1]]);
        batch.add_elements(TABLE, "to", &[to([10, 0, 0, 1], "three")]).delete_chain(TABLE, "two");
        batch.commit(socket).unwrap();
        let printed = ruleset();
        assert!(
            printed.contains("10.0.0.1 : jump three") && printed.contains("10.0.0.2 : jump one"),
            "{printed}"
        );
        let mut batch = Batch::new();
        batch.put_elements(TABLE, "to", &[to([10, 0, 0, 2], "one")]);
        batch.commit(socket).unwrap();
        let mut batch = Batch::new();
        batch.put_elements(TABLE, "to", &[to([10, 0, 0, 2], "three")]);
        assert!(batch.commit(socket).unwrap_err().is_taken());
    });
}

/// A rule renews the elements of a set, and drops packets with these keys; another one accepts ports and ranges.
#[test]
fn renewed_elements_and_ranges() {
    isolated(|socket| {
        sh("ip link set lo up");
        let tuple =
            [DataType::Ipv4Addr, DataType::Ipv4Addr, DataType::Proto, DataType::Service, DataType::Service];
        let place = [DataType::Ipv6Addr, DataType::Proto, DataType::Service];
        let hook = Hook {
            chain_type: ChainType::Filter,
            point: HookPoint::Input,
            priority: -15,
            policy: Policy::Accept,
        };
        let load = |base, offset, len, to| Expr::Payload { base, offset, len, to: Register::word(to) };
        let key = [
            read_address(End::Source, IpFamily::V4),
            load(PayloadBase::Network, 16, 4, 1),
            Expr::Meta { key: MetaKey::L4Proto, to: Register::word(2) },
            load(PayloadBase::Transport, 0, 2, 3),
            load(PayloadBase::Transport, 2, 2, 4),
        ];
        let ended = "ended".to_owned();
        let lookup = Expr::Lookup { set: ended.clone(), from: R1, to: None };
        let renew = Expr::Renew { set: ended, from: R1 };
        let rule =
            [&family(IpFamily::V4)[..], &key, &[lookup, renew, Expr::Counter, Expr::Verdict(Verdict::Drop)]]
                .concat();
        let port = |op, port: u16| Expr::Cmp { register: R1, op, value: port.to_be_bytes().to_vec() };
        let range = [
            Expr::Meta { key: MetaKey::L4Proto, to: R1 },
            Expr::Cmp { register: R1, op: CmpOp::Eq, value: vec![17] },
            load(PayloadBase::Transport, 2, 2, 0),
            port(CmpOp::Gte, 80),
            port(CmpOp::Lte, 90),
            Expr::Verdict(Verdict::Accept),
        ];
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_timed_set(TABLE, "ended", 1, &tuple, (16, 180_000));
        batch.add_range_set(TABLE, "places", 2, &place);
        let place = |port: u16, last: bool| {
            let host: &[u8] = if last { &[0xff; 8] } else { &[0; 8] };
            [&[0xfd, 0, 0, 0, 0, 0, 0, 1], host, &[6, 0, 0, 0], &port.to_be_bytes(), &[0, 0]].concat()
        };
        batch.add_elements(TABLE, "places", &[Element::of_range(place(80, false), place(90, true))]);
        batch
            .add_chain(TABLE, "in", Some(hook), None)
            .add_rule(TABLE, "in", &rule, None)
            .add_rule(TABLE, "in", &range, None);
        batch.commit(socket).unwrap();
        let printed = ruleset();
        for part in [
            "type ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service\n\t\tsize 16\n\t\tflags dynamic,timeout\n\t\ttimeout 3m",
            "elements = { fd00:0:0:1::/64 . tcp . 80-90 }",
            "ip saddr . ip daddr . meta l4proto . th sport . th dport @ended update @ended { ip saddr . ip daddr . meta l4proto . th sport . th dport } counter packets 0 bytes 0 drop",
            "udp dport 80-90 accept",
        ] {
            assert!(printed.contains(part), "{part} is not in {printed}");
        }
        let read: Vec<_> = rules(socket, TABLE, "in").unwrap().iter().map(Rule::decode).collect();
        assert_eq!(read, [Some(rule), Some(range.to_vec())]);

        // A flow that is in the set from elsewhere, for a shorter time.
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let [from, at]: [SocketAddr; 2] = [client.local_addr().unwrap(), server.local_addr().unwrap()];
        sh(&format!(
            "nft add element inet test ended '{{ 127.0.0.1 . 127.0.0.1 . udp . {} . {} timeout 1h }}'",
            from.port(),
            at.port()
        ));
        server.set_nonblocking(true).unwrap();
        client.send_to(b"?", at).unwrap();
        assert!(server.recv_from(&mut [0; 8]).is_err());
        assert_eq!(rules(socket, TABLE, "in").unwrap()[0].packets(), Some(1));
        let [element] = &elements(socket, TABLE, "ended").unwrap()[..] else { panic!("one element") };
        assert_eq!(element.key[16..18], at.port().to_be_bytes());
        let mut batch = Batch::new();
        batch.delete_elements(TABLE, "ended", std::slice::from_ref(&element.key));
        batch.commit(socket).unwrap();
        client.send_to(b"?", at).unwrap();
        assert!(server.recv_from(&mut [0; 8]).is_ok());
    });
}

#[test]
fn messages_have_elements_with_their_comments() {
    isolated(|socket| {
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_set(TABLE, "s", 1, &[DataType::Ipv4Addr], None);
        batch.commit(socket).unwrap();
        let mut messages = Messages::of_ruleset().unwrap();
        let element = Element { comment: Some("who".to_owned()), ..Element::new(vec![10, 0, 0, 1]) };
        let mut batch = Batch::new();
        batch.add_elements(TABLE, "s", std::slice::from_ref(&element));
        batch.commit(socket).unwrap();
        sh("nft flush set inet test s; nft delete table inet test");
        let mut found = Vec::new();
        messages
            .receive(|message| found.extend(message.and_then(|message| elements_of(message, TABLE))))
            .unwrap();
        let of = |are_new| Elements { set: "s".to_owned(), are_new, elements: vec![element.clone()] };
        assert_eq!(found, [of(true), of(false)]);
        assert!(
            elements_of(
                &ferrule_kernel::netlink::message::Received {
                    kind: 0,
                    flags: 0,
                    sequence: 0,
                    port: 0,
                    body: &[]
                },
                TABLE
            )
            .is_none()
        );
    });
}
