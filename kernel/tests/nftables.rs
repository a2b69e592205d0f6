//! Tests of nf_tables against the kernel, each in a separate network namespace. They need root and `nft`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{isolated, ruleset};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Mac;
use ferrule_kernel::nftables::matches::{
    End, address, ct_bits, family_of, input_interface, input_interface_of, read_address, set_mark_bit,
    source_mac,
};
use ferrule_kernel::nftables::{
    Batch, ChainType, CmpOp, CtKey, DataType, Element, Expr, Family, Hook, HookPoint, MetaKey, Policy,
    Register, Rule, STATE_KNOWN, STATUS_DNAT, Table, Verdict, chains, probe, rules,
};

const TABLE: Table<'static> = Table::new(Family::Inet, "test");

#[test]
fn probe_detects_nf_tables_and_changes_nothing() {
    isolated(|socket| {
        assert_eq!(probe(socket, Family::Inet), Ok(()));
        assert_eq!(ruleset(), "");
    });
}

fn verdict(verdict: Verdict) -> Vec<Expr> {
    vec![Expr::Verdict(verdict)]
}

fn destination(op: CmpOp, network: &str, end: Verdict) -> Vec<Expr> {
    let network: ipnetwork::IpNetwork = network.parse().unwrap();
    let mut exprs = family_of(network.ip()).to_vec();
    exprs.extend(address(End::Destination, op, network));
    exprs.push(Expr::Verdict(end));
    exprs
}

#[test]
fn nft_prints_the_rules_that_were_added() {
    isolated(|socket| {
        let hook = Hook {
            chain_type: ChainType::Filter,
            point: HookPoint::Forward,
            priority: -5,
            policy: Policy::Drop,
        };
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_chain(TABLE, "to", None, Some("ends here"));
        batch.add_chain(TABLE, "forward", Some(hook), None);
        batch.add_rule(TABLE, "forward", &destination(CmpOp::Eq, "10.0.16.0/20", Verdict::Drop), None);
        batch.add_rule(TABLE, "forward", &verdict(Verdict::Jump("to".to_owned())), Some("second"));
        for network in
            ["0.0.0.0/0", "128.0.0.0/1", "10.0.0.0/8", "10.0.0.1/32", "fd00::/50", "::/0", "fd00::1/128"]
        {
            batch.add_rule(TABLE, "to", &destination(CmpOp::Neq, network, Verdict::Accept), None);
        }
        batch.commit(socket).unwrap();
        let listed = "table inet test {\n\tchain to {\n\t\tcomment \"ends here\"\n\
            \t\tip daddr != 0.0.0.0/0 accept\n\t\tip daddr != 128.0.0.0/1 accept\n\
            \t\tip daddr != 10.0.0.0/8 accept\n\t\tip daddr != 10.0.0.1 accept\n\
            \t\tip6 daddr != fd00::/50 accept\n\t\tip6 daddr != ::/0 accept\n\t\tip6 daddr != fd00::1 accept\n\t}\n\n\
            \tchain forward {\n\t\ttype filter hook forward priority filter - 5; policy drop;\n\
            \t\tip daddr 10.0.16.0/20 drop\n\t\tjump to comment \"second\"\n\t}\n}\n";
        assert_eq!(ruleset(), listed);
        let read = rules(socket, TABLE, "forward").unwrap();
        assert_eq!(read[1].jump_target().as_deref(), Some("to"));
        assert_eq!(read[1].comment.as_deref(), Some("second"));
        // 7 rules in the chain, and 1 jump to it.
        let found = chains(socket, &[(TABLE, "to"), (TABLE, "none")]).unwrap();
        assert_eq!(
            found.iter().map(|chain| chain.map(|chain| chain.uses)).collect::<Vec<_>>(),
            [Some(8), None]
        );
    });
}

#[test]
fn nft_prints_the_rules_of_a_bridge_table() {
    isolated(|socket| {
        let table = Table::new(Family::Bridge, "test");
        let mac = Mac([2, 0, 0, 0, 0x12, 0x34]);
        let from_port = [input_interface(CmpOp::Eq, "veth1").as_slice(), &verdict(Verdict::Return)].concat();
        let from_mac = [source_mac(mac).as_slice(), &verdict(Verdict::Drop)].concat();
        let mut batch = Batch::new();
        batch.add_table(table, None).add_chain(table, "c", None, None);
        batch.add_rule(table, "c", &from_port, None).add_rule(table, "c", &from_mac, None);
        batch.commit(socket).unwrap();
        let listed = "table bridge test {\n\tchain c {\n\t\tiifname \"veth1\" return\n\
            \t\tether saddr 02:00:00:00:12:34 drop\n\t}\n}\n";
        assert_eq!(ruleset(), listed);
        let read: Vec<_> = rules(socket, table, "c").unwrap().iter().filter_map(Rule::decode).collect();
        assert_eq!(input_interface_of(&read[0]).as_deref(), Some("veth1"));
        assert_eq!(input_interface_of(&read[1]), None);
        assert_eq!(read, [from_port, from_mac]);
    });
}

#[test]
fn a_failed_batch_changes_nothing_and_names_the_rejected_request() {
    isolated(|socket| {
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_chain(TABLE, "a", None, None).delete_rule(TABLE, "a", 77);
        let error = batch.commit(socket).unwrap_err();
        assert!(error.is_not_found());
        assert!(error.to_string().starts_with("delete rule 77 of inet test a: no such file"), "{error}");
        assert_eq!(ruleset(), "");
        assert_eq!(rules(socket, TABLE, "a").unwrap(), []);
        assert!(Batch::new().commit(socket).is_ok());

        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_chain(TABLE, "a", None, None);
        batch.add_rule(TABLE, "a", &verdict(Verdict::Return), None);
        batch.commit(socket).unwrap();
        let mut batch = Batch::new();
        batch.flush_chain(TABLE, "a").delete_chain(TABLE, "a").delete_table(TABLE);
        batch.commit(socket).unwrap();
        assert_eq!(ruleset(), "");
    });
}

/// What a rule of a firewall needs: sets of pairs of interface names, `!=` a set, the state of a connection, and a place
/// between other rules.
#[test]
fn nft_prints_pairs_of_interfaces_states_and_the_order_of_inserted_rules() {
    isolated(|socket| {
        let hook = Hook {
            chain_type: ChainType::Filter,
            point: HookPoint::Forward,
            priority: -5,
            policy: Policy::Drop,
        };
        let pair = [
            Expr::Meta { key: MetaKey::IifName, to: Register::R1 },
            Expr::Meta { key: MetaKey::OifName, to: Register::word(4) },
            Expr::NotIn { set: "pairs".to_owned(), from: Register::R1 },
        ];
        let last = |exprs: &[Expr]| [exprs, &verdict(Verdict::Drop)].concat();
        let own_error = [
            read_address(End::Source, IpFamily::V4),
            Expr::CtSource { family: IpFamily::V4, is_reply: true, to: Register::word(1) },
            Expr::Lookup { set: "ends".to_owned(), from: Register::R1, to: None },
        ];
        let mut key = [[0; 16]; 2];
        key[0][..4].copy_from_slice(b"cni0");
        key[1][..4].copy_from_slice(b"cni1");
        let mut batch = Batch::new();
        batch.add_table(TABLE, None).add_set(TABLE, "pairs", 1, &[DataType::IfName; 2], None);
        batch.add_elements(TABLE, "pairs", &[Element::new(key.concat())]);
        batch.add_set(TABLE, "ends", 2, &[DataType::Ipv4Addr; 2], None);
        batch.add_chain(TABLE, "forward", Some(hook), None);
        batch.add_rule(TABLE, "forward", &last(&pair), None);
        batch.add_rule(TABLE, "forward", &last(&ct_bits(CtKey::State, STATE_KNOWN, true)), None);
        batch.add_rule(TABLE, "forward", &last(&own_error), None);
        batch.commit(socket).unwrap();
        let found = rules(socket, TABLE, "forward").unwrap();
        assert_eq!([found[0].decode(), found[2].decode()], [Some(last(&pair)), Some(last(&own_error))]);
        let mut batch = Batch::new();
        batch.insert_rule(
            TABLE,
            "forward",
            &last(&ct_bits(CtKey::Status, STATUS_DNAT, false)),
            Some(found[0].handle),
        );
        batch.insert_rule(TABLE, "forward", &set_mark_bit(20), None);
        batch.commit(socket).unwrap();
        assert_eq!(
            ruleset(),
            "table inet test {\n\tset pairs {\n\t\ttype ifname . ifname\n\t\telements = { \"cni0\" . \"cni1\" }\n\t}\n\n\
            \tset ends {\n\t\ttype ipv4_addr . ipv4_addr\n\t}\n\n\
            \tchain forward {\n\t\ttype filter hook forward priority filter - 5; policy drop;\n\
            \t\tmeta mark set meta mark | 0x00100000\n\t\tiifname . oifname != @pairs drop\n\
            \t\tct status ! dnat drop\n\t\tct state established,related drop\n\
            \t\t@nh,96,32 . ct reply ip saddr @ends drop\n\t}\n}\n"
        );
        let base = chains(socket, &[(TABLE, "forward")]).unwrap()[0].unwrap().base.unwrap();
        assert!(base.is(&hook) && base.drops && base.is_on(HookPoint::Forward));
        assert!(
            !base.is(&Hook { priority: -4, ..hook }) && !base.is(&Hook { policy: Policy::Accept, ..hook })
        );
    });
}
