//! ADDs on all nodes at once, while daemons, API server and nodes come and go. `FERRULE_SHARED_PODS=336 FERRULE_SHARED_RESTARTS=100` makes
//! a thousand of both families, and a hundred restarts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use cni_lab::Place as _;
use cni_lab::testing::{Random, mac};
use ferrule_kernel::netlink::{LinkId, Mac, Socket};
use ferrule_kernel::probe::{MOST, probe};
use serde_json::{Value, json};

use crate::lab::{Lan, Member, assert_unique, network};

/// How many pods each node has.
fn pods() -> usize {
    number("FERRULE_SHARED_PODS", 8)
}

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// A thousand pods on three nodes, with the usual options.
#[test]
#[ignore = "slow: cargo test -p ferrule-node --test blocks -- --ignored --nocapture"]
fn a_thousand_pods_need_at_most_a_hundred_requests() {
    let lan = Lan::new();
    let members = ["a", "b", "c"].map(|name| lan.quiet_member(name));
    for member in &members {
        member.start_with("");
        member.answers();
    }
    let net = network("net", json!([[{"subnet": "10.20.0.0/20"}]]), 32);
    let (begin, mut ips) = (Instant::now(), Vec::new());
    for round in 0..25 {
        let pods = (0..40).map(|pod| (&members[pod % 3], format!("pod{round}-{pod}")));
        ips.extend(add_at_once(&net, pods));
    }
    let time = begin.elapsed();
    assert_unique(&ips);
    let requests = lan.server.requests().len();
    println!("{} pods: {requests} requests, {time:?}", ips.len());
    assert!(requests <= 100);
}

/// 200 pods on each of three nodes. Each pod joins four networks one after another, as Multus does it. whereabouts needs about a minute for
/// each interface of so many pods: https://github.com/k8snetworkplumbingwg/whereabouts/issues/508.
#[test]
#[ignore = "slow: cargo test -p ferrule-node --test blocks -- --ignored --nocapture"]
fn six_hundred_pods_join_four_networks() {
    let lan = Lan::new();
    let members = ["a", "b", "c"].map(|name| lan.quiet_member(name));
    for member in &members {
        member.start_with("");
        member.answers();
    }
    let net = |n: usize| network(&format!("net{n}"), json!([[{"subnet": format!("10.2{n}.0.0/20")}]]), 32);
    let nets: Vec<Value> = (0..4).map(net).collect();
    let (begin, mut ips) = (Instant::now(), Vec::new());
    // A node starts at most ten pods at once.
    for round in 0..20 {
        scope(|scope| {
            let pods = (0..30).map(|pod| {
                let (member, name, nets) = (&members[pod % 3], format!("pod{round}-{pod}"), &nets);
                scope.spawn(move || {
                    nets.iter().flat_map(|net| member.add_until(net, &name)).collect::<Vec<_>>()
                })
            });
            let pods: Vec<_> = pods.collect();
            ips.extend(pods.into_iter().flat_map(|pod| pod.join().unwrap()));
        });
    }
    let (time, requests) = (begin.elapsed(), lan.server.requests().len());
    println!("{} interfaces: {requests} requests, {time:?}", ips.len());
    assert_unique(&ips);
    assert!(ips.len() == 2400 && requests <= 400, "{requests} requests");
}

/// As many addresses as pods; the variable `FERRULE_SHARED_PODS` is a multiple of four. Each creation and deletion that is a third one
/// loses its answer. The LAN is asked who has each address.
#[test]
fn no_address_is_given_twice_and_none_is_lost() {
    let lan = Lan::new();
    let members = ["a", "b", "c"].map(|name| lan.member(name));
    let all = 3 * pods();
    let last = Ipv4Addr::from_bits(Ipv4Addr::new(10, 20, 1, 0).to_bits() + u32::try_from(all).unwrap() - 1);
    let range = json!({"subnet": "10.20.0.0/16", "rangeStart": "10.20.1.0", "rangeEnd": last.to_string()});
    let last = format!("fd00:20::1:{:x}", all - 1);
    let range6 = json!({"subnet": "fd00:20::/64", "rangeStart": "fd00:20::1:0", "rangeEnd": last});
    let net = network("net", json!([[range], [range6]]), 4);
    lan.server.faults(|faults| faults.lost = Some(("create", 3)));
    let ips = while_all_restart(&lan, &members, || {
        let pods =
            members.iter().flat_map(|member| (0..pods()).map(move |pod| (member, format!("pod{pod}"))));
        add_at_once(&net, pods)
    });
    assert_eq!(ips.len(), 2 * all);
    assert_unique(&ips);
    assert_one_owner(&lan, &members);

    // All pods end. Then one node gets every address.
    lan.server.faults(|faults| faults.lost = Some(("delete", 3)));
    for member in &members {
        (0..pods()).for_each(|pod| member.del(&net, &format!("pod{pod}")));
    }
    let again = add_at_once(&net, (0..all).map(|pod| (&members[0], format!("again{pod}"))));
    assert_unique(&again);
    assert_eq!(lan.blocks_of("a").len(), 2 * all / 4);
}

/// Each node has the addresses of its store on its link. Each of them has this owner on the LAN, and there are no others.
fn assert_one_owner(lan: &Lan, members: &[Member; 3]) {
    let mut expected = BTreeMap::new();
    for member in members {
        let files = member.node.sh("cd /run/stores/net && ls -d 10.* fd*").unwrap();
        let ips: Vec<IpAddr> = files.lines().map(|name| name.replace('-', ":").parse().unwrap()).collect();
        let adds = ips.iter().map(|ip| match ip {
            IpAddr::V4(ip) => format!("addr add {ip}/32 dev eth0\n"),
            IpAddr::V6(ip) => format!("addr add {ip}/128 dev eth0 nodad\n"),
        });
        member.node.write_file("/run/batch", &adds.collect::<String>()).unwrap();
        member.node.sh("ip -batch /run/batch").unwrap();
        let mac: Mac = mac(&member.node, "eth0").parse().unwrap();
        for ip in ips {
            assert_eq!(expected.insert(ip, mac), None, "two nodes have {ip}");
        }
    }
    let found = lan.hub.run(|| {
        let link = Socket::route().unwrap().link(LinkId::Name("lan")).unwrap().unwrap();
        let all: Vec<IpAddr> = expected.keys().copied().collect();
        let ask = |some| probe(&link, some, Duration::from_secs(30)).unwrap();
        all.chunks(MOST).flat_map(ask).collect::<BTreeMap<IpAddr, Mac>>()
    });
    assert_eq!(found.unwrap(), expected);
}

/// The addresses of all pods.
fn add_at_once<'m>(net: &Value, pods: impl Iterator<Item = (&'m Member, String)>) -> Vec<String> {
    scope(|scope| {
        let adds: Vec<_> =
            pods.map(|(member, pod)| scope.spawn(move || member.add_until(net, &pod))).collect();
        adds.into_iter().flat_map(|add| add.join().unwrap()).collect()
    })
}

/// Kills daemons, and now and then the API server, at random points of the work.
fn while_all_restart<T: Send>(lan: &Lan, members: &[Member; 3], work: impl FnOnce() -> T + Send) -> T {
    // Not for ever: a block that a daemon has no time to give back is none that is lost.
    let restarts = number("FERRULE_SHARED_RESTARTS", 12);
    let (mut random, mut random_boot) = (Random::seeded(), Random::seeded());
    let mut pause = || sleep(Duration::from_millis(random.below(400) as u64));
    scope(|scope| {
        let work = scope.spawn(work);
        for round in 0..restarts {
            pause();
            if work.is_finished() {
                break;
            }
            match members.get(round % 4) {
                Some(member) => {
                    member.kill();
                    if random_boot.below(2) == 0 {
                        // The node boots: it compares before it opens a block.
                        member.forget_boot();
                    }
                    member.start();
                }
                None => {
                    lan.server.kill();
                    pause();
                    lan.server.revive();
                }
            }
        }
        work.join().unwrap()
    })
}
