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

fn costs(reservations: u32) -> [usize; 4] {
    let net = Net::of("10.0.0.0/16");
    let ip = |n: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).to_string();
    for n in 2..reservations + 2 {
        net.seed(&ip(n), &format!("{n:064x}\r\neth0"));
    }
    net.seed("last_reserved_ip.0", &ip(reservations + 1));
    // The first ADD reads the whole store, because the index does not know the files made above.
    net.add("first").result();
    let add = system_calls(&net, "ADD", "c1");
    let del = system_calls(&net, "DEL", "c1");
    let again = system_calls(&net, "DEL", "c1");
    let oldest = system_calls(&net, "DEL", &format!("{:064x}", 2));
    assert_eq!(net.reservations().len() as u32, reservations);
    [add, del, again, oldest]
}

#[test]
fn system_calls_do_not_grow_with_reservations() {
    let (few, many) = (costs(10), costs(5000));
    for (few, many) in few.iter().zip(many) {
        // The allocator may need up to three more.
        assert!(many <= few + 3, "{few} system calls with 10 reservations, {many} with 5000");
    }
}
