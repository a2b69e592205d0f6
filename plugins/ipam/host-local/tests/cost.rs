//! The number of system calls of a command must not depend on the number of reservations.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Machine;
use cni_lab::testing::{Expect as _, Trace};
use common::{Net, OURS};

/// Counts a call's system calls.
fn system_calls(net: &Net, verb: &str, id: &str) -> usize {
    Trace::of(&Machine, &net.exec(OURS, verb, id, "eth0"), "all").total()
}

/// Four commands with their numbers of system calls.
fn costs(reservations: u32) -> [(&'static str, usize); 4] {
    let net = Net::of("10.0.0.0/16");
    let ip = |n: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).to_string();
    for n in 2..reservations + 2 {
        net.seed(&ip(n), &format!("{n:064x}\r\neth0"));
    }
    net.seed("last_reserved_ip.0", &ip(reservations + 1));
    // The first ADD reads the whole store, because the index does not know the files made above.
    net.add("first").result();
    let costs = [
        ("ADD", system_calls(&net, "ADD", "c1")),
        ("DEL", system_calls(&net, "DEL", "c1")),
        ("repeated DEL", system_calls(&net, "DEL", "c1")),
        ("DEL of the oldest reservation", system_calls(&net, "DEL", &format!("{:064x}", 2))),
    ];
    assert_eq!(net.reservations().len() as u32, reservations);
    costs
}

#[test]
fn system_calls_do_not_grow_with_reservations() {
    let (few, many) = (costs(10), costs(5000));
    for ((command, few), (_, many)) in few.iter().zip(many) {
        // The allocator may need up to three more.
        assert!(many <= few + 3, "{command}: {few} system calls with 10 reservations, {many} with 5000");
    }
}
