//! The container changes what ADD made, or keeps the plugin from its work. DEL must succeed, and change nothing outside of the
//! container.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use cni_lab::testing::{assert_unchanged, routes};
use cni_lab::{Place as _, Pod, TIMEOUT, eventually};
use common::{attached, config, destinations, link, rules};
use serde_json::json;

/// The routes of ADD, in all tables.
fn tables(pod: &Pod) -> Vec<String> {
    ["100", "101"].iter().flat_map(|table| destinations(pod, table)).collect()
}

/// A lock on the file of the namespace, which each process in it can open.
#[test]
fn a_lock_on_the_namespace_stops_no_call() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({})));
    let mut flock = Command::new("flock");
    flock.args(["/proc/self/ns/net", "sleep", "1000"]);
    let _holder = pod.spawn(flock).unwrap();
    let is_held = || pod.sh("flock -n /proc/self/ns/net true").is_err();
    assert!(eventually(TIMEOUT, is_held), "no lock");
    ctx.add(&net, &conf);
    ctx.check(&net, &conf);
    ctx.del(&net, &conf);
    assert_eq!(rules(&pod), [""; 0]);
    assert!(is_held(), "the lock is gone");
}

/// Two attachments of one container at the same time.
#[test]
fn two_additions_take_different_tables() {
    let (ctx, pod) = attached();
    link(&ctx, &pod, "net2", "host2");
    pod.sh("ip addr add 10.1.0.3/24 dev net2 && ip -6 addr add fd01::3/64 dev net2 nodad").unwrap();
    for _ in 0..5 {
        let one = (pod.attachment("net1"), config("1.1.0", &json!({})));
        let mut two = (pod.attachment("net2"), one.1.clone());
        two.1["prevResult"] =
            json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.3/24"}, {"address": "fd01::3/64"}]});
        let calls = [&one, &two];
        std::thread::scope(|scope| {
            for (net, conf) in calls {
                scope.spawn(|| ctx.add(net, conf));
            }
        });
        let mut tables: Vec<String> =
            rules(&pod).iter().map(|rule| rule.split(' ').next_back().unwrap().to_owned()).collect();
        tables.sort();
        assert_eq!(tables, ["100", "101", "102", "103"]);
        std::thread::scope(|scope| {
            for (net, conf) in calls {
                scope.spawn(|| ctx.del(net, conf));
            }
        });
        assert_eq!(rules(&pod), [""; 0]);
    }
}

#[test]
fn del_does_without_the_lock() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({})));
    ctx.add(&net, &conf);
    ctx.node.sh("rm /run/ferrule-netns.lock && mkdir /run/ferrule-netns.lock").unwrap();
    ctx.del(&net, &conf);
    assert_eq!(rules(&pod), [""; 0]);
    ctx.fail("ADD", &net, &conf).expect(5, "failed to lock /run/ferrule-netns.lock");
}

#[test]
fn del_finds_a_renamed_interface_beside_a_decoy() {
    for decoy in
        ["true", "ip link add net1 type bridge && ip addr add 10.1.0.77/24 dev net1 && ip link set net1 up"]
    {
        let (ctx, pod) = attached();
        let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({"addSourceHints": true})));
        let node = ctx.snapshot();
        ctx.add(&net, &conf);
        pod.sh(&format!("ip link set net1 down; ip link set net1 name other; {decoy}")).unwrap();
        pod.sh("ip link set other up; ip -6 addr add fd01::2/64 dev other nodad; ip rule add from 10.5.0.1 lookup 78")
            .unwrap();
        ctx.del(&net, &conf);
        assert_eq!(rules(&pod), ["10.5.0.1 78"], "{decoy}");
        assert_eq!((tables(&pod), routes(&pod, "table all proto 67")), (vec![], vec![]), "{decoy}");
        ctx.del(&net, &conf);
        assert_unchanged(&ctx.node, &node, decoy);
    }
}

/// The kernel refuses to delete some of the rules as ours, and some of the routes in the main table.
#[test]
fn rules_and_routes_of_the_container_that_look_like_ours() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({})));
    ctx.add(&net, &conf);
    let main = destinations(&pod, "main");
    pod.sh(
        "for protocol in 67 68; do
             ip rule add from 10.1.0.2 blackhole protocol $protocol
             ip rule add from 10.5.0.1 fwmark 7 iif lo lookup 100 protocol $protocol
             ip -6 rule add from fd05::1 lookup 101 protocol $protocol
         done
         ip rule add from 10.1.0.2 lookup main protocol 67; ip rule add from 10.1.0.2 lookup local protocol 67
         ip route add 10.44.0.0/16 dev eth0 table 100 proto 67; ip route add blackhole 10.45.0.0/16 table 100
         ip route add local 10.46.0.0/16 dev net1 table 100
         ip -6 route add fd44::/64 via fd01::44 dev net1 table 101 && ip -6 addr add fd01::44/128 dev net1 nodad",
    )
    .unwrap();
    let local = routes(&pod, "table local");
    ctx.del(&net, &conf);
    // The first two are foreign: the kernel finds no rule to a table there.
    assert_eq!(pod.sh("ip rule show | grep -c 'from 10.1.0.2 blackhole'").unwrap(), "2\n");
    assert_eq!(
        rules(&pod).iter().filter(|rule| !rule.starts_with("10.1.0.2 ")).count(),
        0,
        "{:?}",
        rules(&pod)
    );
    assert_eq!(routes(&pod, "table local"), local);
    let kept = destinations(&pod, "main");
    assert!(main.iter().all(|dst| kept.contains(dst)), "{kept:?}");
    // Those are not through `net1`.
    assert_eq!(destinations(&pod, "100"), ["10.44.0.0/16", "blackhole"]);
}

/// More requests than a socket takes at once, more failures than it can answer at once, and no loop over both rules and routes.
#[test]
fn del_removes_ten_thousand_rules_and_routes() {
    const EACH: usize = 5_000;
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({})));
    ctx.add(&net, &conf);
    let mut batch = String::new();
    for number in 0..EACH {
        let [a, b] = [number / 250, number % 250];
        let action = if number % 2 == 0 { "lookup 100" } else { "blackhole" };
        writeln!(batch, "rule add from 10.5.{a}.{b} {action} protocol 67 priority {}", 1000 + number)
            .unwrap();
        writeln!(batch, "route add 10.6.{a}.{b} via 10.1.0.{} dev net1 table 100", 3 + b).unwrap();
    }
    ctx.node.write_file("/run/batch", &batch).unwrap();
    pod.sh("ip -batch /run/batch").unwrap();

    for verb in ["CHECK", "DEL"] {
        let started = Instant::now();
        ctx.succeed(verb, &net, &conf);
        let took = started.elapsed();
        assert!(took < Duration::from_secs(20), "{verb}: {took:?}");
    }
    assert_eq!(pod.sh("ip rule show | grep -v blackhole").unwrap().lines().count(), 3);
    assert_eq!(destinations(&pod, "100"), [""; 0]);
}

#[test]
fn a_changed_container_is_left_to_itself() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.0.0", &json!({})));
    let harms = [
        "ip rule flush; ip -6 rule flush",
        "ip route flush table 100; ip -6 route flush table 101",
        "ip link set net1 down",
        "ip addr flush dev net1",
        "sysctl -qw net.ipv6.conf.all.disable_ipv6=1",
    ];
    let node = ctx.snapshot();
    for harm in harms {
        ctx.add(&net, &conf);
        pod.sh(harm).unwrap();
        ctx.del(&net, &conf);
        assert_unchanged(&ctx.node, &node, harm);
        assert_eq!(rules(&pod), [""; 0], "{harm}");
        pod.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=0; ip link del net1
             for family in -4 -6; do ip $family rule add lookup main priority 32766; done; true")
            .unwrap();
        common::net1(&ctx, &pod);
    }
}
