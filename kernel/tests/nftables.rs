//! Tests of nf_tables against the kernel, each in a separate network namespace. They need root and `nft`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{isolated, ruleset};
use ferrule_kernel::netlink::Mac;
use ferrule_kernel::nftables::matches::{
    End, address, family_of, input_interface, input_interface_of, source_mac,
};
use ferrule_kernel::nftables::{
    Batch, ChainType, CmpOp, Expr, Family, Hook, HookPoint, Policy, Rule, Table, Verdict, chains, probe,
    rules,
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
