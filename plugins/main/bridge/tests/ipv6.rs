//! IPv6 addresses work as soon as ADD returns, although the kernel sets them up asynchronously.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::panic::{catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use cni_lab::testing::{addresses, host_local, sysctl};
use cni_lab::{Node, Place};
use common::{config, ours, wait_for_dad};
use ferrule_kit::address_wait::GROUPS_TIMEOUT;
use serde_json::json;

/// Without duplicate address detection the first packet gets through, also on a new bridge. The timeout is
/// shorter than the one second after which a neighbour repeats its solicitation.
#[test]
fn first_ipv6_packet_gets_through() {
    for round in 0..5 {
        let ctx = ours();
        let ipam = host_local(&["fd00:1::/64", "10.1.0.0/24"]);
        let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipam": ipam}));
        for (name, target) in [("one", "fd00:1::1"), ("two", "fd00:1::1"), ("three", "fd00:1::2")] {
            let pod = ctx.pod(name);
            ctx.add(&pod.attachment("eth0"), &conf);
            let ping = pod.sh(&format!("ping -6 -c 1 -W 0.8 {target}"));
            ping.unwrap_or_else(|error| panic!("round {round}, {name} to {target}: {error:#}"));
            assert_eq!(pod.sh("ip -6 address show tentative scope global").unwrap(), "");
        }
        assert_eq!(ctx.node.sh("ip -6 address show dev br0 tentative scope global").unwrap(), "");
    }
}

/// The kernel joins an address's solicited-node group asynchronously; on a busy machine that takes
/// milliseconds. ADD must wait for it, because earlier solicitations are lost, but for [`GROUPS_TIMEOUT`] at most.
#[test]
fn add_waits_for_ipv6_addresses_on_a_busy_machine() {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // Dropping the node deletes its links under the RTNL lock, which the kernel's work queue
                    // needs.
                    let node = Node::new().unwrap();
                    node.sh("for i in 1 2 3 4 5 6 7 8; do ip link add a$i type veth peer name b$i; done")
                        .unwrap();
                }
            });
        }
        let rounds = || {
            for _ in 0..4 {
                let ctx = ours();
                let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["fd00:1::/64"])}));
                for number in 2..7 {
                    let pod = ctx.pod(&format!("pod{number}"));
                    let began = Instant::now();
                    ctx.add(&pod.attachment("eth0"), &conf);
                    let has_waited = began.elapsed() >= GROUPS_TIMEOUT;
                    assert!(
                        has_waited || has_joined(&pod, "eth0", number),
                        "fd00:1::{number} does not answer"
                    );
                }
                assert!(has_joined(&ctx.node, "br0", 1), "the gateway does not answer");
            }
        };
        let outcome = catch_unwind(rounds);
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Whether the link has joined the solicited-node group of an address that ends in `last`.
fn has_joined<P: Place>(place: &P, name: &str, last: u8) -> bool {
    let groups = place.read_file("/proc/thread-self/net/igmp6").unwrap();
    let group = format!("ff0200000000000000000001ff0000{last:02x}");
    groups.lines().any(|line| line.contains(&group) && line.split_whitespace().nth(1) == Some(name))
}

/// The host can send the first packet: it solicits from the bridge's link-local address.
#[test]
fn first_ipv6_packet_from_outside_gets_through() {
    for _ in 0..3 {
        let ctx = ours();
        let client = ctx.node.outside_client("2001:db8::/64").unwrap();
        wait_for_dad(&ctx, &client);
        let conf = config("1.0.0", &json!({"isDefaultGateway": true, "ipam": host_local(&["fd00:1::/64"])}));
        let pod = ctx.pod("pod1");
        ctx.add(&pod.attachment("eth0"), &conf);
        client.sh("ping -6 -c 1 -W 0.8 fd00:1::2").unwrap();
    }
}

/// Some container images disable IPv6 by default.
#[test]
fn ipv6_is_enabled_if_an_address_needs_it() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    pod.sh("for i in default lo; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; done").unwrap();
    let conf = config("1.0.0", &json!({"isGateway": true, "ipam": host_local(&["fd00:1::/64"])}));
    ctx.add(&pod.attachment("eth0"), &conf);
    assert_eq!(addresses(&pod, "eth0"), ["fd00:1::2/64"]);
    for name in ["lo", "eth0"] {
        assert_eq!(sysctl(&pod, &format!("ipv6/conf/{name}/disable_ipv6")), "0");
    }
    assert_eq!(sysctl(&pod, "ipv6/conf/eth0/keep_addr_on_down"), "1");
    pod.sh("ping -6 -c 1 -W 1 fd00:1::1").unwrap();
}
