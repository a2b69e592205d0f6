//! What a command costs does not depend on how many reservations there are: it makes the same system calls.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::process::Command;

use common::{Net, OURS, run};

/// The system calls of a command, counted by strace(1); without it the test fails.
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

fn costs(reservations: u32) -> [u64; 4] {
    assert!(Command::new("strace").arg("-V").output().is_ok(), "this test needs strace");
    let net = Net::of("10.0.0.0/16");
    let ip = |n: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).to_string();
    for n in 2..reservations + 2 {
        net.seed(&ip(n), &format!("{n:064x}\r\neth0"));
    }
    net.seed("last_reserved_ip.0", &ip(reservations + 1));
    // The first one reads the store, which somebody else has filled.
    net.add("first").result();
    let add = system_calls(&net, "ADD", "c1");
    let del = system_calls(&net, "DEL", "c1");
    let again = system_calls(&net, "DEL", "c1");
    let oldest = system_calls(&net, "DEL", &format!("{:064x}", 2));
    assert_eq!(net.reservations().len() as u32, reservations);
    [add, del, again, oldest]
}

#[test]
fn as_many_system_calls_with_5000_reservations_as_with_10() {
    let (few, many) = (costs(10), costs(5000));
    for (few, many) in few.iter().zip(many) {
        // A few more for memory are no reason to worry.
        assert!(many <= few + 3, "ADD, DEL, DEL again, DEL of an old one: {few:?} calls became {many:?}");
    }
}
