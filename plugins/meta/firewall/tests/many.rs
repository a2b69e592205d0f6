//! The time of a connection, ADD and CHECK with 1 container and with 5,001 containers on the node. Other tests must not run
//! at the same time, so this is a separate test program. It needs root and `nft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use cni_lab::Place as _;
use cni_lab::testing::{Added, connect_time, measure, serve};
use common::{World, fill, pods};
use serde_json::json;

/// The maximum ratio of two times.
const MOST: f64 = 1.2;
const ROUNDS: usize = 40;

/// The time of one call.
fn time(world: &World, added: &Added<'_>, verb: &str) -> Duration {
    let exec = world.exec(verb, &added.attachment, &added.config());
    world.node.run(|| exec.run().unwrap().wall).unwrap()
}

#[test]
fn times_do_not_grow_with_5000_containers() {
    let worlds = [World::new(), World::new()];
    let keys = json!({"backend": "nftables", "ingressPolicy": "same-bridge"});
    let added = worlds.each_ref().map(|world| {
        world.node.sh("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP").unwrap();
        serve(&world.outside[0], "outside", 80);
        world.add("one", &pods(keys.clone()))
    });
    fill(&worlds[1]);
    // Measures the two nodes alternately; the lowest time of each counts.
    let lowest = |rounds, of: &dyn Fn(usize) -> Duration| {
        let mut lowest = [Duration::MAX; 2];
        for _ in 0..rounds {
            for (index, lowest) in lowest.iter_mut().enumerate() {
                *lowest = (*lowest).min(of(index));
            }
        }
        lowest
    };
    let connection = |index: usize| {
        let to = SocketAddr::new(worlds[index].outside[0].address(), 80);
        connect_time(&added[index].pod, to)
    };
    let call = |index: usize, verb: &str| time(&worlds[index], &added[index], verb);
    let check = |index: usize| call(index, "CHECK");
    let add = |index: usize| {
        call(index, "DEL");
        call(index, "ADD")
    };
    let of_what: [&dyn Fn(usize) -> Duration; 3] = [&connection, &check, &add];
    for ((what, rounds), of) in
        [("connection", 6), ("CHECK", ROUNDS), ("ADD", ROUNDS)].into_iter().zip(of_what)
    {
        let times = measure(
            what,
            5,
            |[few, many]: &[Duration; 2]| many.as_secs_f64() <= MOST * few.as_secs_f64(),
            || lowest(rounds, of),
        );
        let ratio = times[1].as_secs_f64() / times[0].as_secs_f64();
        println!("{what}: {times:?} with 1 and 5,001 containers, {ratio:.2}");
        assert!(ratio <= MOST, "{what}: {ratio:.2}");
    }
}
