//! The table `inet ferrule_guard`. What it lets pass: `tests/cluster/guard.rs`.

use std::collections::BTreeSet;

use ferrule_node::guard::{Part, cleanup};
use ferrule_node::plan::{Guard, GuardedVxlan};

use crate::lab::{ip, isolated, networks, sh, within_limit};

const TABLE: &str = "nft -s list table inet ferrule_guard";

/// All that the table may have, with outer addresses of this family.
fn wanted(outer: [&str; 3]) -> Guard {
    let [me, other, third] = outer.map(ip);
    let own = networks("10.1.2.0/24 fd00:0:0:2::/64 192.0.2.2/32");
    let vxlan = GuardedVxlan {
        port: 4789,
        nodes: BTreeSet::from([me, other, third, ip("2001:db8::9")]),
        device: Some((7471, me)),
        owned: own.into_iter().map(|network| (other, network)).collect(),
    };
    let uplinks = BTreeSet::from(["eth0".to_owned(), "fifteen-letters".to_owned()]);
    Guard { sources: true, allow: networks("203.0.113.0/24 fd07::/64"), uplinks, vxlan: Some(vxlan) }
}

fn ipv4() -> Guard {
    wanted(["192.0.2.1", "192.0.2.2", "192.0.2.3"])
}

fn part() -> Part {
    Part::open(vec!["ferrule0".to_owned()]).unwrap()
}

#[test]
fn nft_prints_the_table_and_can_load_it_again() {
    isolated(|_| {
        for (guard, lines) in [
            (
                ipv4(),
                &[
                    "meta iifkind \"veth\" iifname != @uplinks goto pod",
                    "iifname @bridges udp dport 4789 jump to_vxlan",
                    "fib saddr . iif oif missing goto forged",
                    "update @offenders { iifname counter }",
                    "ip daddr @nodes4 counter drop",
                    "ip6 daddr @nodes6 counter drop",
                    "udp dport 4789 ct status dnat jump to_vxlan",
                    "udp dport 4789 @th,96,24 0x1d2f goto arrived",
                    "ip daddr != 192.0.2.1 counter drop",
                    "@th,224,16 0x800 ip saddr . @th,336,32 @owned4 accept",
                    "@th,224,16 0x86dd ip saddr . @th,304,128 @owned6 accept",
                    "typeof ip saddr . @th,336,32",
                    "elements = { 203.0.113.0/24 }",
                    "elements = { \"eth0\",",
                ][..],
            ),
            (
                wanted(["2001:db8::1", "2001:db8::2", "2001:db8::3"]),
                &["@th,224,16 0x800 ip6 saddr . @th,336,32 @owned4 accept", "typeof ip6 saddr . @th,304,128"],
            ),
            (Guard { sources: false, ..ipv4() }, &["goto pod"]),
            (Guard { vxlan: None, ..ipv4() }, &["fib saddr . iif oif missing goto forged"]),
        ] {
            part().sync(Some(&guard)).unwrap();
            let printed = sh(TABLE);
            for line in lines {
                assert!(printed.contains(line), "{line}: {printed}");
            }
            sh(&format!(
                "{TABLE} >/tmp/ferrule-guard.$$; nft flush ruleset; nft -f /tmp/ferrule-guard.$$; rm /tmp/ferrule-guard.$$"
            ));
            assert_eq!(sh(TABLE), printed);
        }
        assert_eq!(cleanup().unwrap(), ["table inet ferrule_guard"]);
        assert_eq!((sh("nft list tables"), cleanup().unwrap().len()), (String::new(), 0));
    });
}

/// A restart of the daemon does not touch the table. A new node is elements, and what others change is undone.
#[test]
fn only_elements_change_and_changes_of_others_are_undone() {
    isolated(|runtime| {
        let mut part = part();
        part.sync(Some(&ipv4())).unwrap();
        let handles = || sh(&TABLE.replace("-s", "-a"));
        let before = handles();
        let mut more = ipv4();
        let vxlan = more.vxlan.as_mut().unwrap();
        vxlan.nodes.insert(ip("192.0.2.4"));
        vxlan.owned.insert((ip("192.0.2.4"), networks("10.1.4.0/24")[0]));
        more.uplinks.insert("eth1".to_owned());
        for _ in 0..2 {
            part.sync(Some(&more)).unwrap();
            assert!(handles().contains("192.0.2.4 . 0xa010400-0xa0104ff"), "{}", handles());
            part.sync(Some(&ipv4())).unwrap();
            assert_eq!(handles(), before);
            part = self::part();
            part.sync(Some(&ipv4())).unwrap();
        }
        part.sync(Some(&ipv4())).unwrap();
        let whole = sh(TABLE);
        for damage in [
            "nft flush ruleset",
            "nft flush chain inet ferrule_guard pod",
            "nft insert rule inet ferrule_guard prerouting accept",
            "nft delete element inet ferrule_guard owned4 '{ 192.0.2.2 . 0xa010200-0xa0102ff }'",
            "nft add element inet ferrule_guard uplinks '{ veth0 }'",
            "nft add chain inet ferrule_guard more",
            "nft add table inet ferrule_guard '{ flags dormant; }'",
        ] {
            sh(damage);
            within_limit(runtime, part.disturbed());
            part.sync(Some(&ipv4())).unwrap();
            assert_eq!(sh(TABLE), whole, "{damage}");
        }
    });
}

#[test]
fn five_thousand_nodes_fit() {
    isolated(|_| {
        let mut guard = ipv4();
        let vxlan = guard.vxlan.as_mut().unwrap();
        for number in 0..5000_u32 {
            let (high, low) = (number / 256, number % 256);
            let outer = ip(&format!("172.16.{high}.{low}"));
            vxlan.nodes.extend([outer, ip(&format!("2001:db8::{number:x}"))]);
            let own = networks(&format!("10.{high}.{low}.0/24 fd00:0:0:{number:x}::/64 {outer}/32"));
            vxlan.owned.extend(own.into_iter().map(|network| (outer, network)));
        }
        let began = std::time::Instant::now();
        part().sync(Some(&guard)).unwrap();
        let made = began.elapsed();
        let began = std::time::Instant::now();
        let mut part = part();
        part.sync(Some(&guard)).unwrap();
        let looked = began.elapsed();
        guard.vxlan.as_mut().unwrap().owned.insert((ip("172.31.0.1"), networks("10.99.0.0/24")[0]));
        let began = std::time::Instant::now();
        part.sync(Some(&guard)).unwrap();
        println!("made in {made:?}, compared in {looked:?}, one more in {:?}", began.elapsed());
        assert!(sh(TABLE).contains("0xa138700-0xa1387ff"));
    });
}
