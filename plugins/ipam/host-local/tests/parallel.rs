//! Concurrent commands, and commands that `strace` kills.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;

use cni_lab::testing::{Expect, at_once};
use cni_lab::{KillPoint, Machine, Node};
use cni_runner::{Exec, Output};
use common::{Net, OURS, go, listing};
use serde_json::json;

const CONTAINERS: usize = 64;
const ROUNDS: usize = 10;

/// Makes one call for each container at the same time. Returns their outputs in order.
fn run_concurrently(net: &Net, verb: &str, ids: &[String]) -> Vec<Output> {
    let calls: Vec<Exec> = ids.iter().map(|id| net.exec(OURS, verb, id, "eth0")).collect();
    at_once(&Machine, &calls)
}

#[test]
fn concurrent_adds_and_dels_neither_duplicate_nor_leak() {
    let net = Net::of("10.0.0.0/24");
    for round in 0..ROUNDS {
        let ids: Vec<String> = (0..CONTAINERS).map(|i| format!("r{round}c{i}")).collect();
        let ips: BTreeSet<String> =
            run_concurrently(&net, "ADD", &ids).iter().flat_map(|outcome| outcome.ips()).collect();
        assert_eq!(ips.len(), CONTAINERS, "round {round}");
        assert_eq!(net.reservations().into_keys().collect::<BTreeSet<_>>(), ips, "round {round}");
        // DELs of these containers and ADDs of new ones run concurrently.
        let more: Vec<String> = (0..CONTAINERS / 2).map(|i| format!("r{round}more{i}")).collect();
        thread::scope(|scope| {
            let dels = scope.spawn(|| run_concurrently(&net, "DEL", &ids));
            run_concurrently(&net, "ADD", &more)
                .iter()
                .for_each(|outcome| assert_eq!(outcome.ips().len(), 1));
            dels.join().unwrap().iter().for_each(Expect::ok);
        });
        assert_eq!(net.reservations().len(), more.len(), "round {round}");
        run_concurrently(&net, "DEL", &more).iter().for_each(Expect::ok);
        assert!(net.reservations().is_empty(), "round {round}");
    }
}

/// Of eight concurrent ADDs of one attachment, exactly one gets an address.
#[test]
fn one_of_several_equal_adds_succeeds() {
    let net = Net::of("10.0.0.0/24");
    for _ in 0..10 {
        let outcomes = run_concurrently(&net, "ADD", &vec!["c1".to_owned(); 8]);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.success()).count(), 1);
        assert_eq!(net.reservations().len(), 1);
        net.del("c1").ok();
    }
}

/// Kills a command before each system call that is visible outside the process. Every reservation left is
/// complete, and DEL of either program and GC remove it and leave nothing else.
#[test]
fn del_and_gc_clean_up_after_killed_commands() {
    let node = Node::new().unwrap();
    for verb in ["ADD", "DEL"] {
        let (_net, exec) = killable_command(verb);
        let kill_points = KillPoint::all(&node, &exec).unwrap();
        let removals: [fn(&Net) -> Output; 3] = [
            |net| net.del("killed"),
            |net| net.exec(go(), "DEL", "killed", "eth0").run().unwrap(),
            |net| net.gc(json!([{ "containerID": "live", "ifname": "eth0" }])),
        ];
        for (kill_point, remove) in
            kill_points.iter().flat_map(|kill_point| removals.map(|remove| (kill_point, remove)))
        {
            let (net, exec) = killable_command(verb);
            kill_point.kill(&node, &exec).unwrap();
            for (name, content) in net.reservations() {
                assert!(name.parse::<IpAddr>().is_ok(), "{verb} killed {kill_point}: {name}");
                let is_complete = ["live\r\neth0", "killed\r\neth0"].contains(&content.as_str());
                assert!(is_complete, "{verb} killed {kill_point}: {name} {content:?}");
            }
            remove(&net).ok();
            assert_eq!(net.reservations().len(), 2, "{verb} killed {kill_point}");
            // The next command repairs the index.
            net.add("last").result();
            net.del("last").ok();
            let index: Vec<_> = listing(&net.root().join("data/.ferrule/net")).into_values().collect();
            assert_eq!(index.len(), 1, "{verb} killed {kill_point}: {index:?}");
        }
    }
}

/// A network with a reservation that must stay, and a command on another attachment. The command has the same
/// kill points in each call of this function.
fn killable_command(verb: &str) -> (Net, Exec) {
    let net = Net::new(json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]]));
    net.add("live").result();
    if verb == "DEL" {
        net.add("killed").result();
    }
    let exec = net.exec(OURS, verb, "killed", "eth0");
    (net, exec)
}
