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
        of("ip link set v0 nomaster", &|change| {
            matches!(change, Change::Link(link) if link.name == "v0" && link.kind == "veth" && link.master.is_none())
        });
        of("ip link set v0 master br0 && bridge link set dev v0 hairpin on", &|change| {
            matches!(change, Change::Port(_, settings) if settings.hairpin == Some(true))
        });
        of("ip link set v0 type bridge_slave hairpin off", &|change| {
            matches!(change, Change::Link(link) if link.port.hairpin == Some(false))
        });
        of("ip link set br0 down", &|change| {
            matches!(change, Change::Link(link) if link.kind == "bridge" && !link.is_up())
        });
        of("ip address del 10.1.0.1/24 dev br0", &|change| matches!(change, Change::AddressGone(_)));
        let tbf = "tc qdisc add dev v0 root tbf rate 1mbit burst 10k latency 10ms && tc qdisc del dev v0 root";
        of(tbf, &|change| matches!(change, Change::ShapingGone(_, kind) if kind == "tbf"));
        of("echo 0 > /proc/sys/net/ipv4/ip_forward", &|change| *change == Change::ForwardingOff);
        of("ip link del v0", &|change| matches!(change, Change::LinkGone(_)));
        assert_eq!(notices.wait(Duration::ZERO).unwrap(), []);
    });
}

#[test]
fn changes_of_the_ruleset_name_their_process() {
    isolated(|_| {
        sh("nft 'add table inet t; add chain inet t c; add rule inet t c accept; add set inet t s { type ipv4_addr; elements = { 10.1.0.1 } }'");
        let mut notices = Notices::open().unwrap();
        let by_nft =
            |notice: &Notice| *notice == Notice::Ruleset(Ruleset::Generation { process: "nft".to_owned() });
        let gone = |chain: Option<&str>| {
            Notice::Ruleset(Ruleset::Gone { table: "t".to_owned(), chain: chain.map(str::to_owned) })
        };
        let element = of(&mut notices, "nft delete element inet t s '{ 10.1.0.1 }'", by_nft);
        assert!(element[0] == gone(None) && by_nft(&element[1]) && element.len() == 2, "{element:?}");
        let rule = of(&mut notices, "nft flush chain inet t c", by_nft);
        assert!(rule[0] == gone(Some("c")) && by_nft(&rule[1]) && rule.len() == 2, "{rule:?}");
        let all = of(&mut notices, "nft flush ruleset", by_nft);
        assert!(all.contains(&gone(None)) && all.contains(&gone(Some("c"))) && by_nft(&all[all.len() - 1]));
        let made = of(&mut notices, "nft add table ip firewalld", by_nft);
        assert_eq!(made[0], Notice::Ruleset(Ruleset::Made { table: "firewalld".to_owned() }));
    });
}

/// More messages than the buffer has room for, which nobody reads.
#[test]
fn lost_messages_are_noticed() {
    isolated(|_| {
        let mut notices = Notices::open().unwrap();
        let churn = "yes 'link set lo mtu 60000' | sed 'n;s/60000/65536/' | head -n 20000 | ip -batch -";
        assert!(of(&mut notices, churn, |notice| *notice == Notice::Lost).len() > 1);
    });
}
