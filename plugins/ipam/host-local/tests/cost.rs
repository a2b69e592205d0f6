//! The number of system calls of a command must not depend on the number of reservations.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::process::Command;

use common::{Net, OURS, run};

/// Counts a command's system calls with strace(1). The test fails without it.
fn system_calls(net: &Net, verb: &str, id: &str) -> u64 {
    let counts = net.root().join("counts");
    let mut command = net.command("strace", verb, id, "eth0");
    command.env("PATH", "/usr/bin:/bin").args(["-f", "-c", "-o"]).arg(&counts).arg(OURS);
    let outcome = run(command, &net.conf);
    assert!(outcome.success, "{outcome:?}");
    let text = fs::read_to_string(counts).unwrap();
    let total = text.lines().find(|line| line.ends_with("total")).unwrap_or_else(|| panic!("{text}"));
    total.split_whitespace().nth(3).unwrap().parse().unwrap()
}

/// Four commands with their numbers of system calls.
fn costs(reservations: u32) -> [(&'static str, u64); 4] {
    assert!(Command::new("strace").arg("-V").output().is_ok(), "this test needs strace");
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
