//! Tests of sets, maps, NAT and generations against the kernel, each in a separate network namespace. They
//! need root and `nft`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{isolated, ruleset};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{
    Batch, COMMENT_MAX, ChainType, DataType, Element, Expr, FULLY_RANDOM, Family, Hook, HookPoint, MetaKey,
    PayloadBase, Policy, Register, Rule, Table, Value, Values, Verdict, elements, find_elements, generation,
    rules, sets,
};

const TABLE: Table<'static> = Table::new(Family::Inet, "test");
const R1: Register = Register::R1;

fn port_key(proto: u8, port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    vec![proto, 0, 0, 0, high, low, 0, 0]
}

fn map_element(key: Vec<u8>, ip: [u8; 4], port: u16) -> Element {
    let mut value = ip.to_vec();
    value.extend(port.to_be_bytes());
    value.extend([0, 0]);
    Element { value: Some(Value::Bytes(value)), ..Element::new(key) }
}

fn name_key(name: &str) -> Vec<u8> {
    let mut key = name.as_bytes().to_vec();
    key.resize(16, 0);
    key
}

/// Adds a set of interface names, and a map from ports to addresses.
fn add_sets(socket: &mut Socket) {
    let mut batch = Batch::new();
    batch.add_table(TABLE, None).add_set(TABLE, "names", 1, &[DataType::IfName], None);
    let values = [DataType::Ipv4Addr, DataType::Service];
    batch.add_set(TABLE, "ports", 2, &[DataType::Proto, DataType::Service], Some(Values::Of(&values)));
    batch.commit(socket).unwrap();
}

#[test]
fn nft_prints_the_sets_maps_and_nat_rules_that_were_added() {
    isolated(|socket| {
        add_sets(socket);
        let hook = Hook {
            chain_type: ChainType::Nat,
            point: HookPoint::Prerouting,
            priority: -99,
            policy: Policy::Accept,
        };
        let mut batch = Batch::new();
        batch.add_chain(TABLE, "end", None, None).add_chain(TABLE, "in", Some(hook), None);
        batch.add_set(TABLE, "verdicts", 3, &[DataType::Ipv6Addr], Some(Values::Verdict));
        let verdict = Element {
            value: Some(Value::Verdict(Verdict::Jump("end".to_owned()))),
            ..Element::new(vec![0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
        };
        batch.add_elements(TABLE, "verdicts", &[verdict]);
        let name = Element { comment: Some("owner".to_owned()), ..Element::new(name_key("eth0")) };
        batch.add_elements(TABLE, "names", &[name]);
        batch.add_elements(TABLE, "ports", &[map_element(port_key(132, 8080), [10, 0, 0, 2], 80)]);
        let daddr = Expr::Payload { base: PayloadBase::Network, offset: 24, len: 16, to: R1 };
        let family = ferrule_kernel::nftables::matches::family_of("::".parse().unwrap());
        let verdicts = Expr::Lookup { set: "verdicts".to_owned(), from: R1, to: Some(Register::VERDICT) };
        batch.add_rule(TABLE, "in", &[family.as_slice(), &[daddr, verdicts]].concat(), None);
        let dport = Expr::Payload { base: PayloadBase::Transport, offset: 2, len: 2, to: Register::word(1) };
        let translate = [
            Expr::Meta { key: MetaKey::L4Proto, to: R1 },
            dport,
            Expr::Lookup { set: "ports".to_owned(), from: R1, to: Some(R1) },
            Expr::Dnat { family: IpFamily::V4, address: R1, port: Register::word(1) },
        ];
        let v4 = ferrule_kernel::nftables::matches::family_of([0, 0, 0, 0].into());
        let translate = [v4.as_slice(), &translate].concat();
        batch.add_rule(TABLE, "in", &translate, None);
        let hook = Hook { point: HookPoint::Postrouting, ..hook };
        batch.add_chain(TABLE, "out", Some(hook), None);
        batch.add_rule(TABLE, "out", &[Expr::Masquerade { flags: FULLY_RANDOM }], None);
        batch.commit(socket).unwrap();
        let listed = ruleset();
        for part in [
            "set names {\n\t\ttype ifname\n\t\telements = { \"eth0\" comment \"owner\" }",
            "map ports {\n\t\ttype inet_proto . inet_service : ipv4_addr . inet_service\n\t\telements = { sctp . 8080 : 10.0.0.2 . 80 }",
            "map verdicts {\n\t\ttype ipv6_addr : verdict\n\t\telements = { fd00::1 : jump end }",
            "type nat hook prerouting priority dstnat + 1; policy accept;\n\t\tip6 daddr vmap @verdicts\n\
             \t\tmeta nfproto ipv4 dnat ip to meta l4proto . th dport map @ports\n",
            "\t\tmasquerade fully-random\n",
        ] {
            assert!(listed.contains(part), "{part}\nis not in\n{listed}");
        }
        let read: Vec<_> = rules(socket, TABLE, "in").unwrap().iter().map(Rule::decode).collect();
        assert_eq!(read[1], Some(translate));
        let mut names = sets(socket, TABLE).unwrap();
        names.sort();
        assert_eq!(names, ["names", "ports", "verdicts"]);
    });
}

#[test]
fn elements_are_found_by_key_and_existing_keys_are_rejected() {
    isolated(|socket| {
        // A missing table is not an error.
        assert_eq!(find_elements(socket, TABLE, &[("ports", &port_key(6, 1))]).unwrap(), [None]);
        assert_eq!(elements(socket, TABLE, "ports").unwrap(), []);
        add_sets(socket);
        let first = Element {
            comment: Some("c".repeat(COMMENT_MAX)),
            metadata: Some(vec![7; Element::METADATA_MAX]),
            ..map_element(port_key(6, 80), [10, 0, 0, 1], 8000)
        };
        let mut batch = Batch::new();
        batch.add_elements(TABLE, "ports", std::slice::from_ref(&first));
        batch.commit(socket).unwrap();
        let wanted = [port_key(17, 80), port_key(6, 80)];
        let wanted = wanted.each_ref().map(|key| ("ports", key.as_slice()));
        assert_eq!(find_elements(socket, TABLE, &wanted).unwrap(), [None, Some(first.clone())]);
        // The kernel rejects the whole batch if a key exists, with the same or another value.
        for again in [first.clone(), map_element(first.key.clone(), [10, 0, 0, 9], 8000)] {
            let mut batch = Batch::new();
            batch.add_elements(TABLE, "ports", &[map_element(port_key(6, 81), [10, 0, 0, 1], 8000), again]);
            assert!(batch.commit(socket).unwrap_err().is_taken());
        }
        assert_eq!(elements(socket, TABLE, "ports").unwrap(), std::slice::from_ref(&first));
        let mut batch = Batch::new();
        batch.delete_elements(TABLE, "ports", std::slice::from_ref(&first.key));
        batch.commit(socket).unwrap();
        assert_eq!(elements(socket, TABLE, "ports").unwrap(), []);
        let mut batch = Batch::new();
        batch.delete_elements(TABLE, "ports", &[first.key]);
        assert!(batch.commit(socket).unwrap_err().is_not_found());
        let mut batch = Batch::new();
        batch.delete_set(TABLE, "ports");
        batch.commit(socket).unwrap();
        assert_eq!(sets(socket, TABLE).unwrap(), ["names"]);
    });
}

/// 5000 elements do not fit into one request, one datagram or one answer.
#[test]
fn five_thousand_elements() {
    isolated(|socket| {
        add_sets(socket);
        let all: Vec<Element> = (1..=5000)
            .map(|port| Element {
                comment: Some("c".repeat(COMMENT_MAX)),
                ..map_element(port_key(6, port), [10, 0, 0, 1], port)
            })
            .collect();
        let mut batch = Batch::new();
        batch.add_elements(TABLE, "ports", &all);
        batch.commit(socket).unwrap();
        let mut read = elements(socket, TABLE, "ports").unwrap();
        read.sort_by(|a, b| a.key.cmp(&b.key));
        assert!(read == all, "{} of {}", read.len(), all.len());
        let keys: Vec<_> = all.iter().map(|element| ("ports", element.key.as_slice())).collect();
        let found = find_elements(socket, TABLE, &keys).unwrap();
        assert!(found.into_iter().flatten().eq(all));
    });
}

#[test]
fn a_batch_for_an_outdated_generation_changes_nothing() {
    isolated(|socket| {
        add_sets(socket);
        let before = generation(socket).unwrap();
        assert_eq!(generation(socket).unwrap(), before);
        let add = |port: u16| {
            let mut batch = Batch::new();
            batch.add_elements(TABLE, "ports", &[map_element(port_key(6, port), [10, 0, 0, 1], 1)]);
            batch
        };
        // Another process changes any table.
        common::sh("nft add table ip other");
        assert!(add(1).commit_at(socket, before).unwrap_err().is_outdated());
        assert_eq!(elements(socket, TABLE, "ports").unwrap(), []);
        let now = generation(socket).unwrap();
        assert_ne!(now, before);
        add(1).commit_at(socket, now).unwrap();
        assert!(add(2).commit_at(socket, now).unwrap_err().is_outdated());
        assert_eq!(elements(socket, TABLE, "ports").unwrap().len(), 1);
    });
}

#[test]
fn intervals_are_networks() {
    isolated(|socket| {
        let networks = |networks: &[&str]| -> Vec<Element> {
            networks.iter().flat_map(|network| Element::of_network(network.parse().unwrap())).collect()
        };
        let mut batch = Batch::new();
        batch.add_table(TABLE, None);
        for (id, (name, key)) in
            [("four", DataType::Ipv4Addr), ("six", DataType::Ipv6Addr)].into_iter().enumerate()
        {
            batch.add_interval_set(TABLE, name, u32::try_from(id).unwrap() + 1, key);
        }
        // The first two are adjacent. The last one ends with the family.
        batch.add_elements(
            TABLE,
            "four",
            &networks(&["10.1.0.0/24", "10.1.1.0/24", "192.0.2.7/32", "240.0.0.0/4"]),
        );
        batch.add_elements(TABLE, "six", &networks(&["fd00:1::/64", "ff00::/8"]));
        batch.commit(socket).unwrap();
        let printed = ruleset();
        for line in ["10.1.0.0/24, 10.1.1.0/24", "192.0.2.7, 240.0.0.0/4", "fd00:1::/64,", "ff00::/8"] {
            assert!(printed.contains(line), "{line}: {printed}");
        }
        assert_eq!(
            elements(socket, TABLE, "four").unwrap().iter().filter(|element| element.is_end).count(),
            3
        );

        let mut batch = Batch::new();
        batch.delete(TABLE, "four", &networks(&["10.1.0.0/24", "240.0.0.0/4"]));
        batch.add_elements(TABLE, "four", &networks(&["10.1.2.0/23"]));
        batch.commit(socket).unwrap();
        assert!(ruleset().contains("elements = { 10.1.1.0/24, 10.1.2.0/23,"), "{}", ruleset());

        // The kernel refuses what overlaps, and the whole batch with it. It does not notice an interval without an end.
        for network in ["10.1.1.0/24", "10.1.0.0/16", "10.1.3.0/24"] {
            let mut batch = Batch::new();
            batch.add_elements(TABLE, "four", &networks(&["10.9.0.0/24", network]));
            assert!(batch.commit(socket).unwrap_err().is_taken(), "{network}");
        }
        assert!(!ruleset().contains("10.9.0.0"));
    });
}

/// Before Linux 5.12 elements have no expressions of their set.
#[test]
fn each_element_has_a_counter_and_a_limit() {
    isolated(|socket| {
        let hook = Hook {
            chain_type: ChainType::Filter,
            point: HookPoint::Output,
            priority: 0,
            policy: Policy::Accept,
        };
        let exprs = [Expr::Counter, Expr::Limit { rate: 1, burst: 1 }];
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_chain(TABLE, "out", Some(hook), None);
        batch.add_set_of_exprs(TABLE, "pods", 1, DataType::Ipv4Addr, &exprs);
        let keys = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|key| Element::new(key.to_vec()));
        batch.add_elements(TABLE, "pods", &keys);
        let v4 = ferrule_kernel::nftables::matches::family_of([0, 0, 0, 0].into());
        let daddr = Expr::Payload { base: PayloadBase::Network, offset: 16, len: 4, to: R1 };
        let found = [daddr, Expr::Lookup { set: "pods".to_owned(), from: R1, to: None }, Expr::Counter];
        batch.add_rule(TABLE, "out", &[v4.as_slice(), &found].concat(), None);
        batch.commit(socket).unwrap();
        std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..1000 {
            // The error is about an earlier packet: no socket listens there.
            let _ = sender.send_to(b"x", "127.0.0.1:9");
        }
        let mut packets = |key: &[u8; 4]| {
            find_elements(socket, TABLE, &[("pods", key)]).unwrap()[0].clone().unwrap().packets
        };
        let (seen, other) = (packets(&[127, 0, 0, 1]).unwrap(), packets(&[127, 0, 0, 2]));
        assert!(seen >= 500 && other == Some(0), "{seen} {other:?}");
        let passed = rules(socket, TABLE, "out").unwrap()[0].packets().unwrap();
        assert!((1..seen).contains(&passed), "{passed} of {seen}");
        let listed = ruleset();
        assert!(listed.contains("counter limit rate 1/second burst 1 packets"), "{listed}");
    });
}
