//! Many commands at once, and commands that are killed, by `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;

use common::{GO, Net, OURS, Outcome, finish, listing, run, start};
use conformance::fixture::{Moment, Node};
use conformance::runner::{Attachment, Exec};
use serde_json::json;

const CONTAINERS: usize = 64;
const ROUNDS: usize = 50;

/// Starts a command for each container at the same time, in processes of their own.
fn all_at_once(net: &Net, verb: &str, ids: &[String]) -> Vec<Outcome> {
    let conf = net.conf.to_string();
    let children: Vec<_> =
        ids.iter().map(|id| start(net.command(OURS, verb, id, "eth0"), conf.as_bytes())).collect();
    children.into_iter().map(finish).collect()
}

#[test]
fn no_address_twice_and_none_lost() {
    let net = Net::of("10.0.0.0/24");
    for round in 0..ROUNDS {
        let ids: Vec<String> = (0..CONTAINERS).map(|i| format!("r{round}c{i}")).collect();
        let ips: BTreeSet<String> =
            all_at_once(&net, "ADD", &ids).iter().flat_map(|outcome| outcome.ips()).collect();
        assert_eq!(ips.len(), CONTAINERS, "round {round}");
        assert_eq!(net.reservations().into_keys().collect::<BTreeSet<_>>(), ips, "round {round}");
        // Half of them go while others come.
        let more: Vec<String> = (0..CONTAINERS / 2).map(|i| format!("r{round}more{i}")).collect();
        thread::scope(|scope| {
            let dels = scope.spawn(|| all_at_once(&net, "DEL", &ids));
            all_at_once(&net, "ADD", &more).iter().for_each(|outcome| assert_eq!(outcome.ips().len(), 1));
            dels.join().unwrap().iter().for_each(Outcome::ok);
        });
        assert_eq!(net.reservations().len(), more.len(), "round {round}");
        all_at_once(&net, "DEL", &more).iter().for_each(Outcome::ok);
        assert!(net.reservations().is_empty(), "round {round}");
    }
}

/// The same attachment many times at once: one of them gets an address.
#[test]
fn one_of_many_equal_adds_wins() {
    let net = Net::of("10.0.0.0/24");
    for _ in 0..10 {
        let outcomes = all_at_once(&net, "ADD", &vec!["c1".to_owned(); 8]);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.success).count(), 1);
        assert_eq!(net.reservations().len(), 1);
        net.del("c1").ok();
    }
}

/// Killed at any moment: what is there is complete, GC and DEL of either program remove it, and nothing else is left.
#[test]
fn nothing_is_left_of_killed_commands() {
    let node = Node::new().unwrap();
    for verb in ["ADD", "DEL"] {
        let (_net, exec) = to_be_killed(verb);
        let moments = Moment::all(&node, &exec).unwrap();
        let removals: [fn(&Net) -> Outcome; 3] = [
            |net| net.del("killed"),
            |net| run(net.command(GO, "DEL", "killed", "eth0"), &net.conf),
            |net| net.gc(json!([{ "containerID": "live", "ifname": "eth0" }])),
        ];
        for (moment, remove) in moments.iter().flat_map(|moment| removals.map(|remove| (moment, remove))) {
            let (net, exec) = to_be_killed(verb);
            moment.kill(&node, &exec).unwrap();
            for (name, content) in net.reservations() {
                assert!(name.parse::<IpAddr>().is_ok(), "{verb} killed {moment}: {name}");
                let is_whole = ["live\r\neth0", "killed\r\neth0"].contains(&content.as_str());
                assert!(is_whole, "{verb} killed {moment}: {name} {content:?}");
            }
            remove(&net).ok();
            assert_eq!(net.reservations().len(), 2, "{verb} killed {moment}");
            // The next command puts the index right.
            net.add("last").result();
            net.del("last").ok();
            let index: Vec<_> = listing(&net.root().join("data/.ferrule/net")).into_values().collect();
            assert_eq!(index.len(), 1, "{verb} killed {moment}: {index:?}");
        }
    }
}

/// A network with a reservation that has to stay, and a command on another one; it does the same each time.
fn to_be_killed(verb: &str) -> (Net, Exec) {
    let net = Net::new(json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]]));
    net.add("live").result();
    if verb == "DEL" {
        net.add("killed").result();
    }
    let attachment = Attachment::new("killed", "/some/where", "eth0");
    let exec = Exec::new(OURS, verb).attachment(&attachment).stdin(net.conf.to_string());
    (net, exec)
}
