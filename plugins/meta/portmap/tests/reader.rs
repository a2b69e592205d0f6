//! An independent reader, the `nftables` crate with `nft -j`, finds in the table what this plugin meant to
//! write. The test needs root and `nft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;

use cni_lab::Place as _;
use common::{World, mapping, pods};
use nftables::expr::{Expression, NamedExpression};
use nftables::schema::{Chain, NfListObject, Rule};
use nftables::stmt::Statement;
use nftables::types::{NfChainType, NfHook};
use serde_json::{Value, json};

/// The objects of our table, as `nft` prints them.
fn objects(world: &World) -> Vec<Value> {
    let text = world.node.tool("nft", &["-j", "list", "table", "inet", "cni_portmap"]).unwrap();
    let listing: Value = serde_json::from_str(&text).unwrap();
    listing["nftables"].as_array().unwrap().clone()
}

/// Decodes an object with the crate. The crate cannot decode the type of a map with concatenated values or
/// verdicts, so these types are replaced; elements and rules stay unchanged.
fn read(mut object: Value) -> NfListObject<'static> {
    if let Some(map) = object.get_mut("map") {
        let values = match map["map"].as_str().unwrap() {
            "verdict" => json!("mark"),
            parts => json!(parts.split(" . ").collect::<Vec<_>>()),
        };
        map["map"] = values;
    }
    // The crate also requires a list of flags, even for one flag.
    let steps = object.get_mut("rule").and_then(|rule| rule["expr"].as_array_mut());
    for step in steps.into_iter().flatten() {
        if let Some(flags) = step.get_mut("masquerade").and_then(|masquerade| masquerade.get_mut("flags")) {
            *flags = json!([flags.clone()]);
        }
    }
    let text = object.to_string();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn text(value: &Expression<'_>) -> String {
    match value {
        Expression::String(text) => text.to_string(),
        Expression::Number(number) => number.to_string(),
        Expression::Named(NamedExpression::Concat(parts)) => {
            parts.iter().map(text).collect::<Vec<_>>().join(" . ")
        }
        Expression::Named(NamedExpression::Elem(elem)) => {
            let comment = elem.comment.as_deref().unwrap_or_default();
            format!("{} ({comment})", text(&elem.val))
        }
        other => format!("{other:?}"),
    }
}

/// The elements of all dnat maps: `MAP: KEY (COMMENT) -> TARGET`.
fn dnat_elements(objects: &[NfListObject<'_>]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for object in objects {
        let NfListObject::Map(map) = object else { continue };
        if !map.name.starts_with("dnat") {
            continue;
        }
        for element in map.elem.iter().flat_map(|elements| elements.iter()) {
            let Expression::List(pair) = element else { panic!("{element:?}") };
            found.insert(format!("{}: {} -> {}", map.name, text(&pair[0]), text(&pair[1])));
        }
    }
    found
}

fn rules<'o>(objects: &'o [NfListObject<'static>], chain: &str) -> Vec<&'o Rule<'static>> {
    let of_chain = |object: &'o NfListObject<'static>| match object {
        NfListObject::Rule(rule) if rule.chain == chain => Some(rule),
        _ => None,
    };
    objects.iter().filter_map(of_chain).collect()
}

#[test]
fn independent_reader_finds_all_maps_chains_and_rules() {
    let world = World::new();
    let mappings = json!([
        mapping("tcp", "", 8080, 80),
        mapping("udp", "0.0.0.0", 53, 5353),
        mapping("sctp", "192.0.2.1", 9000, 90),
        mapping("sctp", "", 9001, 91),
        mapping("tcp", "2001:db8::1", 8443, 443)
    ]);
    let added = world.add("one", &pods(json!({})), &mappings);
    let objects: Vec<_> =
        objects(&world).into_iter().filter(|object| object.get("metainfo").is_none()).map(read).collect();
    let (v4, v6) = (added.address(false), added.address(true));
    let owner = "pods/eth0/one";
    let wanted = [
        format!("dnat4: tcp . 8080 ({owner}) -> {v4} . 80"),
        format!("dnat4: udp . 53 ({owner}) -> {v4} . 5353"),
        format!("dnat4: sctp . 9001 ({owner}) -> {v4} . 91"),
        format!("dnat6: sctp . 9001 ({owner}) -> {v6} . 91"),
        format!("dnat4_ip: 192.0.2.1 . sctp . 9000 ({owner}) -> {v4} . 90"),
        format!("dnat6: tcp . 8080 ({owner}) -> {v6} . 80"),
        format!("dnat6_ip: 2001:db8::1 . tcp . 8443 ({owner}) -> {v6} . 443"),
    ];
    assert_eq!(dnat_elements(&objects), wanted.into_iter().collect());

    let hooks: BTreeSet<String> = objects
        .iter()
        .filter_map(|object| match object {
            NfListObject::Chain(Chain {
                name, _type: Some(of), hook: Some(hook), prio: Some(prio), ..
            }) => {
                let of = if *of == NfChainType::NAT { "nat" } else { "other" };
                Some(format!("{name} {of} {hook:?} {prio}"))
            }
            _ => None,
        })
        .collect();
    let wanted = [
        format!("prerouting nat {:?} -99", NfHook::Prerouting),
        format!("output nat {:?} -99", NfHook::Output),
        format!("postrouting nat {:?} 99", NfHook::Postrouting),
        format!("guard other {:?} -150", NfHook::Prerouting),
        format!("foreign-marks other {:?} -350", NfHook::Prerouting),
    ];
    assert_eq!(hooks, wanted.into_iter().collect());

    for chain in ["prerouting", "output"] {
        let [rule] = rules(&objects, chain)[..] else { panic!("{chain}") };
        let [Statement::Jump(jump)] = &rule.expr[..] else { panic!("{rule:?}") };
        assert_eq!(jump.target, "local");
    }
    let [for_services, rule] = rules(&objects, "local")[..] else { panic!("local") };
    assert!(matches!(for_services.expr[..], [Statement::Match(_), Statement::Return(_)]), "{for_services:?}");
    let [Statement::Match(first), Statement::Jump(jump)] = &rule.expr[..] else { panic!("{rule:?}") };
    assert!(matches!(first.left, Expression::Named(NamedExpression::Fib(_))), "{first:?}");
    assert_eq!((text(&first.right).as_str(), jump.target.as_ref()), ("local", "hostports"));
    assert_eq!(rules(&objects, "hostports").len(), 10);
    let dnats = rules(&objects, "hostports")
        .iter()
        .filter(|rule| matches!(rule.expr.last(), Some(Statement::DNAT(_))))
        .count();
    assert_eq!(dnats, 4);
}
