use super::*;
use crate::nftables::{Expr, Verdict, matches};

/// The rule that the kernel would return for these expressions.
fn rule(exprs: &[Expr]) -> Rule {
    let read = |expr: &Expr| {
        let bytes = expr.encode(Message::new(0, 0, &[])).finish(0, 0).unwrap();
        read_expr(&bytes[16..])
    };
    Rule { expressions: exprs.iter().map(read).collect(), ..Rule::default() }
}

fn source(op: CmpOp, network: &str) -> Vec<Expr> {
    matches::address(End::Source, op, network.parse().unwrap())
}

#[test]
fn a_refused_request_is_no_missing_table() {
    let absent = |errno| {
        cni_lab::testing::isolated(|| absent(&mut Socket::netfilter().unwrap(), &netlink::Error::from(errno)))
    };
    assert!(absent(Errno::ENOENT) && absent(Errno::EOPNOTSUPP));
    assert!(!absent(Errno::EINVAL), "this kernel has nf_tables");
    assert!(!absent(Errno::EINTR) && !absent(Errno::EPERM));
}

#[test]
fn source_is_a_single_address_and_not_a_network() {
    assert_eq!(rule(&source(CmpOp::Eq, "10.0.0.2/32")).source(), "10.0.0.2".parse().ok());
    assert_eq!(rule(&source(CmpOp::Eq, "fd00::2/128")).source(), "fd00::2".parse().ok());
    assert_eq!(rule(&source(CmpOp::Neq, "10.0.0.2/32")).source(), None);
    assert_eq!(rule(&source(CmpOp::Eq, "10.0.0.0/24")).source(), None);
    assert_eq!(rule(&source(CmpOp::Eq, "10.0.0.0/20")).source(), None);
    let destination = matches::address(End::Destination, CmpOp::Eq, "10.0.0.2/32".parse().unwrap());
    assert_eq!(rule(&destination).source(), None);
}

#[test]
fn only_jumps_have_a_target() {
    let jump = rule(&[Expr::Verdict(Verdict::Jump("CNI-x".to_owned()))]);
    assert_eq!(jump.jump_target().as_deref(), Some("CNI-x"));
    assert!(jump.has("immediate") && !jump.has("masq"));
    assert_eq!(rule(&[Expr::Verdict(Verdict::Return)]).jump_target(), None);
    assert_eq!(jump.compat_comment(), None);
}

#[test]
fn an_iptables_comment_ends_at_the_first_zero_byte() {
    let mut info = b"name: \"net\" id: \"one\"".to_vec();
    info.resize(256, 0);
    let data = Message::new(0, 0, &[]).attr_text(MATCH_NAME, "comment").attr(MATCH_INFO, &info);
    let expr = RawExpr { name: "match".to_owned(), data: data.finish(0, 0).unwrap()[16..].to_vec() };
    let rule = Rule { expressions: vec![expr], ..Rule::default() };
    assert_eq!(rule.compat_comment().as_deref(), Some("name: \"net\" id: \"one\""));
    assert_eq!(rule.effect(), Some(Vec::new()));
}

#[test]
fn a_rule_that_logs_and_drops_has_no_condition() {
    let expr = |name: &str| RawExpr { name: name.to_owned(), data: Vec::new() };
    let mut drop = rule(&[Expr::Verdict(Verdict::Drop)]);
    drop.expressions.insert(0, expr("log"));
    assert!(drop.drops_everything());
    drop.expressions.insert(0, expr("limit"));
    assert!(!drop.drops_everything() && drop.verdict() == Some(Verdict::Drop));
    let reject = Rule { expressions: vec![expr("counter"), expr("reject")], ..Rule::default() };
    assert!(reject.drops_everything());
}
