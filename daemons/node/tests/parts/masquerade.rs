//! The table `inet ferrule_node`.

use cni_lab::testing::{serve, tcp};
use cni_lab::{Place as _, TIMEOUT};
use ferrule_node::masquerade::{Part, cleanup};
use ferrule_node::plan::Masquerade;

use crate::lab::{Host, host, ip, isolated, networks, runtime, sh, within_limit};

const TABLE: &str = "nft list table inet ferrule_node";

fn wanted() -> Masquerade {
    Masquerade {
        own: networks("10.1.1.0/24 fd00:0:0:1::/64"),
        cluster: networks("10.1.1.0/24 10.1.2.0/24 fd00:0:0:1::/64 fd00:0:0:2::/64"),
        exclude: networks("203.0.113.0/25"),
    }
}

#[test]
fn the_table_is_what_nft_prints() {
    isolated(|_| {
        let mut part = Part::open().unwrap();
        part.sync(Some(&wanted())).unwrap();
        let printed = sh(TABLE);
        for line in [
            "type nat hook postrouting priority srcnat + 10; policy accept;",
            "ip saddr 10.1.1.0/24 ip daddr != @cluster4 ip daddr != @exclude4 ip daddr != 224.0.0.0/4 masquerade fully-random",
            "ip6 saddr fd00:0:0:1::/64 ip6 daddr != @cluster6 ip6 daddr != @exclude6 ip6 daddr != ff00::/8 masquerade fully-random",
            "elements = { 10.1.1.0/24, 10.1.2.0/24 }",
            "elements = { 203.0.113.0/25 }",
        ] {
            assert!(printed.contains(line), "{line}: {printed}");
        }
        // nft can load its own output.
        sh(&format!(
            "{TABLE} >/tmp/ferrule-node-table.$$; nft flush ruleset; nft -f /tmp/ferrule-node-table.$$; rm /tmp/ferrule-node-table.$$"
        ));
        assert_eq!(sh(TABLE), printed);

        assert_eq!(cleanup().unwrap(), ["table inet ferrule_node"]);
        assert_eq!((sh("nft list tables"), cleanup().unwrap().len()), (String::new(), 0));
    });
}

#[test]
fn a_change_of_one_node_touches_its_elements_only() {
    isolated(|_| {
        let mut part = Part::open().unwrap();
        part.sync(Some(&wanted())).unwrap();
        let handles = || sh(&TABLE.replace("nft", "nft -a"));
        let before = handles();
        let mut more = wanted();
        more.cluster.extend(networks("10.1.3.0/24 fd00:0:0:3::/64"));
        part.sync(Some(&more)).unwrap();
        assert!(
            sh(TABLE).contains("elements = { 10.1.1.0/24, 10.1.2.0/24,\n\t\t\t     10.1.3.0/24 }"),
            "{}",
            sh(TABLE)
        );
        part.sync(Some(&wanted())).unwrap();
        assert_eq!(handles(), before);
        // Another program has added the next element already.
        sh("nft add element inet ferrule_node cluster4 '{ 10.1.3.0/24 }'");
        part.sync(Some(&more)).unwrap();
        assert!(sh(TABLE).contains("10.1.3.0/24"));
        part.sync(None).unwrap();
        assert_eq!(sh("nft list tables"), "");
    });
}

#[test]
fn changes_by_other_programs_are_undone() {
    isolated(|runtime| {
        let mut part = Part::open().unwrap();
        part.sync(Some(&wanted())).unwrap();
        let whole = sh(TABLE);
        for damage in [
            "nft flush ruleset",
            "nft delete table inet ferrule_node",
            "nft flush chain inet ferrule_node postrouting",
            "nft insert rule inet ferrule_node postrouting accept",
            "nft add rule inet ferrule_node postrouting accept",
            "nft delete element inet ferrule_node cluster4 '{ 10.1.2.0/24 }'",
            "nft add element inet ferrule_node exclude6 '{ fd07::/64 }'",
            "nft flush set inet ferrule_node exclude4",
            "nft add set inet ferrule_node more '{ type ipv4_addr; }'",
            "nft add chain inet ferrule_node more",
            "nft 'delete table inet ferrule_node; add table inet ferrule_node; add chain inet ferrule_node postrouting { type nat hook postrouting priority 0; }'",
        ] {
            sh(damage);
            within_limit(runtime, part.disturbed());
            part.sync(Some(&wanted())).unwrap();
            assert_eq!(sh(TABLE), whole, "{damage}");
        }
    });
}

#[test]
fn own_changes_and_other_tables_are_ignored() {
    isolated(|runtime| {
        let mut part = Part::open().unwrap();
        part.sync(Some(&wanted())).unwrap();
        part.sync(Some(&Masquerade { exclude: Vec::new(), ..wanted() })).unwrap();
        sh(
            "nft 'add table inet other; add chain inet other c'; nft 'add table ip ferrule_node'; nft delete table inet other",
        );
        // All messages are there already.
        let is_quiet = runtime.block_on(async {
            tokio::time::timeout(std::time::Duration::from_millis(300), part.disturbed()).await.is_err()
        });
        assert!(is_quiet);
    });
}

/// A restart of the daemon does not touch a table that is as wanted.
#[test]
fn a_new_process_keeps_the_table() {
    isolated(|_| {
        Part::open().unwrap().sync(Some(&wanted())).unwrap();
        let generation = || {
            let mut socket = ferrule_kernel::netlink::Socket::netfilter().unwrap();
            ferrule_kernel::nftables::generation(&mut socket).unwrap()
        };
        let before = generation();
        Part::open().unwrap().sync(Some(&wanted())).unwrap();
        assert_eq!(generation(), before);
        Part::open().unwrap().sync(Some(&Masquerade { own: networks("10.1.9.0/24"), ..wanted() })).unwrap();
        assert_ne!(generation(), before);
        assert!(sh(TABLE).contains("ip saddr 10.1.9.0/24"));
    });
}

#[test]
fn five_thousand_nodes_fit_and_hostile_lists_do_no_harm() {
    isolated(|_| {
        let mut part = Part::open().unwrap();
        let nodes = (0..5000_u32)
            .flat_map(|n| networks(&format!("10.{}.{}.0/24 fd00:0:0:{n:x}::/64", n / 256, n % 256)));
        let mut many = Masquerade { cluster: nodes.collect(), ..wanted() };
        part.sync(Some(&many)).unwrap();
        assert!(sh(TABLE).contains("10.19.135.0/24"));
        // Twice, nested, the whole family.
        many.cluster.extend(networks("10.1.1.0/24 10.0.0.0/9 fd00:0:0:1::/64 0.0.0.0/0 10.3.0.0/16"));
        part.sync(Some(&many)).unwrap();
        assert!(sh(TABLE).contains("elements = { 0.0.0.0/0 }"));
    });
}

#[test]
fn only_what_leaves_the_cluster_gets_the_nodes_address() {
    let Host { node, pod } = host(1);
    let outside = [
        ("198.51.100.0/24", "198.51.100.1"),
        ("203.0.113.0/24", "10.1.1.2"),
        ("2001:db8:7::/64", "2001:db8:7::1"),
        ("2001:db8:8::/64", "fd00:0:0:1::2"),
    ];
    let clients = outside.map(|(subnet, _)| node.outside_client(subnet).unwrap());
    clients.iter().for_each(|client| serve(client, "outside", 80));
    node.run(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let mut wanted = wanted();
        // Another node's pods, and an excluded network that holds one client.
        wanted.cluster.extend(networks("2001:db8:8::/64"));
        Part::open().unwrap().sync(Some(&wanted)).unwrap();
    })
    .unwrap();
    for ((_, seen), client) in outside.iter().zip(&clients) {
        let answer = tcp(&pod, (client.address(), 80).into(), TIMEOUT).unwrap();
        assert_eq!(answer, format!("outside {}", ip(seen)));
    }
}
