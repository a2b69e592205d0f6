//! The kernel's messages about changes, in network namespaces of their own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::{Duration, Instant};

use common::{isolated, sh};
use ferrule_kernel::netlink::notice::Notice as Change;
use ferrule_kernel::nftables::notice::Notice as Ruleset;
use ferrule_kernel::notices::{Notice, Notices};

const LIMIT: Duration = Duration::from_secs(10);

/// The messages of a script, until one of them is `last`.
fn of(notices: &mut Notices, script: &str, last: impl Fn(&Notice) -> bool) -> Vec<Notice> {
    sh(script);
    let (mut found, started) = (Vec::new(), Instant::now());
    while !found.iter().any(&last) {
        assert!(started.elapsed() < LIMIT, "{script}: {found:?}");
        found.extend(notices.wait(LIMIT).unwrap());
    }
    found
}

#[test]
fn changes_of_links() {
    isolated(|_| {
        sh("ip link add br0 type bridge && ip link set br0 up && ip link add v0 type veth peer name v1 && \
            ip link set v0 master br0 up && ip address add 10.1.0.1/24 dev br0 && echo 1 > /proc/sys/net/ipv4/ip_forward");
        let mut notices = Notices::open().unwrap();
        let mut of = |script: &str, last: &dyn Fn(&Change) -> bool| {
            let is_last = |notice: &Notice| matches!(notice, Notice::Link(change) if last(change));
            of(&mut notices, script, is_last)
        };
        of(
            "ip link set v0 nomaster",
            &|change| matches!(change, Change::Link(link) if link.name == "v0" && link.kind == "veth" && link.master.is_none()),
        );
        of(
            "ip link set v0 master br0 && bridge link set dev v0 hairpin on",
            &|change| matches!(change, Change::Port(_, settings) if settings.hairpin == Some(true)),
        );
        of(
            "ip link set v0 type bridge_slave hairpin off",
            &|change| matches!(change, Change::Link(link) if link.port.hairpin == Some(false)),
        );
        of(
            "ip link set br0 down",
            &|change| matches!(change, Change::Link(link) if link.kind == "bridge" && !link.is_up()),
        );
        of("ip link set br0 up", &|change| matches!(change, Change::Link(link) if link.is_up()));
        of("ip address del 10.1.0.1/24 dev br0", &|change| matches!(change, Change::AddressGone(_)));
        of("ip route add 10.9.0.1 dev br0 && ip route del 10.9.0.1", &|change| {
            matches!(change, Change::RouteGone(_))
        });
        of("ip -6 route add fd00:9::1 dev br0 && ip -6 route del fd00:9::1", &|change| {
            matches!(change, Change::RouteGone(_))
        });
        let tbf =
            "tc qdisc add dev v0 root tbf rate 1mbit burst 10k latency 10ms && tc qdisc del dev v0 root";
        of(tbf, &|change| matches!(change, Change::ShapingGone(_, kind) if kind == "tbf"));
        of("echo 0 > /proc/sys/net/ipv4/ip_forward", &|change| *change == Change::ForwardingOff);
        of("ip link del v0", &|change| matches!(change, Change::LinkGone(_)));
        assert_eq!(notices.wait(Duration::ZERO).unwrap(), []);
    });
}

#[test]
fn changes_of_the_ruleset_name_their_process() {
    isolated(|_| {
        sh(
            "nft 'add table inet t; add chain inet t c; add rule inet t c accept; add set inet t s { type ipv4_addr; elements = { 10.1.0.1 } }'",
        );
        let mut notices = Notices::open().unwrap();
        let by_nft =
            |notice: &Notice| *notice == Notice::Ruleset(Ruleset::Generation { process: "nft".to_owned() });
        let rule_gone = Ruleset::RuleGone { table: "t".to_owned(), chain: "c".to_owned() };
        let mut of = |script: &str| {
            let found = of(&mut notices, script, by_nft);
            assert!(by_nft(&found[found.len() - 1]), "{found:?}");
            found
        };
        let element = of("nft delete element inet t s '{ 10.1.0.1 }'");
        assert_eq!(element[0], Notice::Ruleset(Ruleset::ElementGone("t".to_owned())));
        assert_eq!(of("nft flush chain inet t c")[0], Notice::Ruleset(rule_gone.clone()));
        let table_gone = Notice::Ruleset(Ruleset::TableGone("t".to_owned()));
        assert!(of("nft flush ruleset").contains(&table_gone));
        let made = Notice::Ruleset(Ruleset::TableMade("firewalld".to_owned()));
        assert_eq!(of("nft add table ip firewalld")[0], made);
    });
}

/// More messages than the buffer has room for.
#[test]
fn lost_messages_are_noticed() {
    isolated(|_| {
        let mut notices = Notices::open().unwrap();
        let churn = "yes 'link set lo mtu 60000' | sed 'n;s/60000/65536/' | head -n 20000 | ip -batch -";
        assert!(of(&mut notices, churn, |notice| *notice == Notice::Lost).len() > 1);
    });
}
