//! Many commands at once, and commands that are killed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use common::{GO, Net, OURS, Random, finish, listing, run, start};
use serde_json::json;

const CONTAINERS: usize = 64;
const ROUNDS: usize = 50;

/// Starts a command for each container at the same time, in processes of their own.
fn all_at_once(net: &Net, verb: &str, ids: &[String]) -> Vec<common::Outcome> {
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
            dels.join().unwrap().iter().for_each(common::Outcome::ok);
        });
        assert_eq!(net.reservations().len(), more.len(), "round {round}");
        all_at_once(&net, "DEL", &more).iter().for_each(common::Outcome::ok);
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

/// Killed at any moment: what is there is complete, DEL removes it, and nothing else is left. Half of the kills hit
/// ADD, half DEL, which is then repeated.
#[test]
fn nothing_is_left_of_killed_commands() {
    let mut random = Random::new();
    println!("seed {}", random.0);
    let net = Net::new(json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]]));
    net.add("live").result();
    let conf = net.conf.to_string();
    let mut hits = 0;
    for round in 0..300 {
        let id = format!("c{round}");
        if round % 2 == 1 {
            net.add(&id).result();
        }
        let verb = ["ADD", "DEL"][round % 2];
        let mut child = start(net.command(OURS, verb, &id, "eth0"), conf.as_bytes());
        thread::sleep(Duration::from_micros(random.below(2500)));
        child.kill().unwrap();
        hits += usize::from(!finish(child).success);
        for (name, content) in net.reservations() {
            assert!(name.parse::<std::net::IpAddr>().is_ok(), "round {round}: {name}");
            assert!(
                content == "live\r\neth0" || content == format!("{id}\r\neth0"),
                "round {round}: {name} {content:?}"
            );
        }
        let program = [OURS, GO][random.below(2) as usize];
        run(net.command(program, "DEL", &id, "eth0"), &net.conf).ok();
        assert_eq!(net.reservations().len(), 2, "round {round}");
    }
    assert!(hits > 20, "only {hits} commands were killed before they ended");
    // The next command has put the index right.
    net.add("last").result();
    net.del("last").ok();
    let entries: Vec<_> = listing(&net.root().join("data/.ferrule/net")).into_values().collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
}
