//! ICMP echo requests.

use std::time::{Duration, Instant};

use cni_lab::Place as _;
use ferrule_node::probe::probe;

use crate::lab::{LIMIT, ip, runtime, two_hosts};

#[test]
fn each_address_is_judged_by_its_own_answer() {
    let [one, _two] = two_hosts();
    // No host has 192.0.2.9 and fd02::9, which are on the link; 203.0.113.1 has no route.
    let addresses =
        ["192.0.2.2", "192.0.2.9", "fd02::2", "203.0.113.1", "192.0.2.2", "127.0.0.1", "fd02::9", "::1"]
            .map(ip);
    let found =
        one.node.run(|| runtime().block_on(probe(&addresses, Duration::from_secs(3))).unwrap()).unwrap();
    let answers: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!(answers, [true, false, true, false, true, true, false, true]);
    assert!(found.iter().flatten().all(|took| *took > Duration::ZERO && *took < Duration::from_secs(3)));
}

#[test]
fn it_ends_with_the_last_answer() {
    let [one, _two] = two_hosts();
    // The kernel keeps only some packets for a neighbour that it does not know yet.
    one.node.sh("ping -c 1 -W 30 192.0.2.2; ping -c 1 -W 30 fd02::2").unwrap();
    let addresses: Vec<_> = (0..2000).map(|n| ip(if n % 2 == 0 { "192.0.2.2" } else { "fd02::2" })).collect();
    let started = Instant::now();
    let found = one.node.run(|| runtime().block_on(probe(&addresses, LIMIT)).unwrap()).unwrap();
    let count = |from: usize| found.iter().skip(from).step_by(2).flatten().count();
    assert_eq!((count(0), count(1)), (1000, 1000));
    assert!(started.elapsed() < LIMIT);
    let empty = one.node.run(|| runtime().block_on(probe(&[], LIMIT)).unwrap()).unwrap();
    assert!(empty.is_empty());
}
