//! The time of a connection with 1 mapping and with 10,001 mappings on the node. Other tests must not run at
//! the same time, so this is a separate test program. It needs root and `nft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cni_lab::Place as _;
use cni_lab::testing::{self, measure, serve};
use common::{World, fill, mapping, pods};
use serde_json::json;

/// The maximum ratio of the two times.
const MOST: f64 = 1.2;

/// The time of one connection to the port.
fn connect_time(world: &World, port: u16) -> Duration {
    testing::connect_time(&world.outside[0], SocketAddr::new(world.address(false), port))
}

#[test]
fn connection_time_does_not_grow_with_10000_mappings() {
    let few = World::new();
    let many = World::new();
    fill(&many);
    let one = few.add("one", &pods(json!({})), &json!([mapping("tcp", "", 8080, 80)]));
    let last = many.add("last", &pods(json!({})), &json!([mapping("tcp", "", 8080, 80)]));
    serve(&one.pod, "one", 80);
    serve(&last.pod, "last", 80);
    // Measures the two nodes alternately; the lowest time of each counts.
    let ratio = |few: &World, many: &World| {
        let (mut of_few, mut of_many) = (Duration::MAX, Duration::MAX);
        for _ in 0..6 {
            of_few = of_few.min(connect_time(few, 8080));
            of_many = of_many.min(connect_time(many, 8080));
        }
        of_many.as_secs_f64() / of_few.as_secs_f64()
    };
    let maps = measure("connection time by maps", 5, |maps| *maps <= MOST, || ratio(&few, &many));
    // The reference's linear rules must exceed the limit, otherwise the measurement would prove nothing.
    let linear = World::new();
    let behind = linear.add("behind", &pods(json!({})), &json!([]));
    serve(&behind.pod, "behind", 80);
    let mut rules = String::from(
        "add table ip cni_hostport\nadd chain ip cni_hostport hostports\n\
        add chain ip cni_hostport prerouting { type nat hook prerouting priority -100; }\n\
        add rule ip cni_hostport prerouting fib daddr type local jump hostports\n",
    );
    let target = behind.address(false);
    for port in (10_000..20_000).chain([8080]) {
        rules += &format!("add rule ip cni_hostport hostports tcp dport {port} dnat to {target}:80\n");
    }
    linear.node.write_file("/run/rules", &rules).unwrap();
    linear.node.sh("nft -f /run/rules").unwrap();
    let rules = ratio(&few, &linear);
    println!("10,001 mappings to 1: {maps:.2} by maps, {rules:.2} by rules");
    assert!(maps <= MOST, "{maps:.2}");
    assert!(rules > MOST, "{rules:.2}");
    // DEL leaves all other mappings alone.
    let began = Instant::now();
    last.del();
    println!("DEL of a pod with one mapping among 10,000, bridge included: {:?}", began.elapsed());
    assert_eq!(many.count(), 10_000);
}
