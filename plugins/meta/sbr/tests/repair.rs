//! Repair makes the rules and routes again that CHECK refuses, in the tables that ADD has chosen.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{assert_unchanged, overlay, routes};
use cni_lab::{Place as _, Snapshot};
use common::{attached, config, destinations, rules};
use serde_json::json;

const REPAIR: &str = env!("CARGO_BIN_EXE_sbr-repair");

/// Each is mended so that nothing differs from what ADD has made.
const DAMAGES: [&str; 9] = [
    "ip rule del from 10.1.0.2",
    "ip rule del from 10.1.0.2; ip -6 rule del from fd01::2",
    "ip route del default table 100",
    "ip -6 route del default table 101",
    "ip route del 10.1.0.0/24 table 100",
    "ip -6 route del fd01::/64 table 101",
    "ip -6 route del fd08::/64 table 101",
    "ip rule del from 10.1.0.2; ip route del default table 100; ip route del 10.1.0.0/24 table 100",
    // As the plugin that made the interface adds it again.
    "ip -6 route del fd08::/64 table 101; ip -6 route add fd01::/64 dev net1; ip -6 route add fd08::/64 via fd01::9 dev net1",
];

#[test]
fn damage_is_mended_in_the_same_tables() {
    let (ctx, pod) = attached();
    let before = Snapshot::take(&pod).unwrap();
    let result = |routes| json!({"prevResult": overlay(&config("1.1.0", &json!({}))["prevResult"], &json!({"routes": routes}))});
    let reported = json!([{"dst": "fd08::/64", "gw": "fd01::9"}, {"dst": "10.8.0.0/16", "gw": "10.1.0.1"}]);
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &result(reported)));
    ctx.add(&net, &conf);
    ctx.check(&net, &conf);
    let added = Snapshot::take(&pod).unwrap();
    for damage in DAMAGES {
        ctx.mend(REPAIR, &net, &conf, &pod, damage);
        assert_unchanged(&pod, &added, damage);
    }
    ctx.del(&net, &conf);
    assert_unchanged(&pod, &before, "DEL");
}

const DOWN: &str = "ip link set net1 down; ip -6 addr replace fd01::2/64 dev net1 nodad";

/// The container has added a route of its own to the main table, and a rule with a table of its own.
#[test]
fn a_flush_leaves_routes_of_others() {
    let (ctx, pod) = attached();
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({})));
    ctx.add(&net, &conf);
    pod.sh("ip route add 10.7.0.0/16 dev net1; ip route add 10.6.0.0/16 dev net1 table 102; ip rule add from 10.6.0.2 lookup 102")
        .unwrap();
    for damage in [
        "ip route flush table 100; ip rule del from 10.1.0.2; ip -6 route flush table 101",
        // The kernel adds the IPv4 subnet to the main table again.
        "ip link set net1 down && ip link set net1 up && ip -6 addr replace fd01::2/64 dev net1 nodad
         ip route add 10.7.0.0/16 dev net1; ip route add 10.6.0.0/16 dev net1 table 102
         timeout 60 sh -c 'until ip -6 route show table local fd01::2 | grep -q .; do sleep .05; done'",
        DOWN,
    ] {
        match damage {
            // When the link is up, the kernel adds routes from a work queue.
            DOWN => {
                pod.sh(damage).unwrap();
                ctx.fail("CHECK", &net, &conf);
                ctx.repairing(REPAIR).add(&net, &conf);
                ctx.check(&net, &conf);
            }
            _ => drop(ctx.mend(REPAIR, &net, &conf, &pod, damage)),
        }
        assert_eq!(destinations(&pod, "100")[..2], ["default", "10.1.0.0/24"], "{damage}");
        assert!(destinations(&pod, "101").contains(&"default".to_owned()), "{damage}");
        assert!(rules(&pod).contains(&"10.1.0.2 100".to_owned()), "{damage}");
        assert!(rules(&pod).contains(&"10.6.0.2 102".to_owned()), "{damage}");
        assert!(routes(&pod, "10.1.0.0/24").is_empty(), "{damage}");
    }
    assert!(pod.sh("ip link show net1").unwrap().contains("UP"));
}
