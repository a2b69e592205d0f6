//! Concurrent commands, and commands that `strace` kills.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;

use cni_lab::{KillPoint, Node};
use cni_runner::{Attachment, Exec};
use common::{GO, Net, OURS, Outcome, finish, listing, run, start};
use serde_json::json;

const CONTAINERS: usize = 64;
const ROUNDS: usize = 50;

/// Starts one process for each container at the same time. Returns their outcomes in order.
fn run_concurrently(net: &Net, verb: &str, ids: &[String]) -> Vec<Outcome> {
    let conf = net.conf.to_string();
    let children: Vec<_> =
        ids.iter().map(|id| start(net.command(OURS, verb, id, "eth0"), conf.as_bytes())).collect();
    children.into_iter().map(finish).collect()
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
            dels.join().unwrap().iter().for_each(Outcome::ok);
        });
        assert_eq!(net.reservations().len(), more.len(), "round {round}");
        run_concurrently(&net, "DEL", &more).iter().for_each(Outcome::ok);
        assert!(net.reservations().is_empty(), "round {round}");
    }
}

/// Of eight concurrent ADDs of one attachment, exactly one gets an address.
#[test]
fn one_of_several_equal_adds_succeeds() {
    let net = Net::of("10.0.0.0/24");
    for _ in 0..10 {
        let outcomes = run_concurrently(&net, "ADD", &vec!["c1".to_owned(); 8]);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.success).count(), 1);
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
        let removals: [fn(&Net) -> Outcome; 3] = [
            |net| net.del("killed"),
            |net| run(net.command(GO, "DEL", "killed", "eth0"), &net.conf),
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
    let attachment = Attachment::new("killed", "/some/where", "eth0");
    let exec = Exec::new(OURS, verb).attachment(&attachment).stdin(net.conf.to_string());
    (net, exec)
}
