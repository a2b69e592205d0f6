//! `ipMasqExclude`, `ipMasqFamilies` and `ipMasqWithinSubnet` in all backends: who sees the pod's own address, what CHECK says, and that the
//! reference's DEL removes the rules of its own backend.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::iptables::{VARIANTS, variant};
use cni_lab::testing::{Origin, host_local, overlay, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use common::{config, ours, plugins, wait_for_dad};
use serde_json::{Value, json};

/// An address of the pods' subnet that is behind the node.
const INSIDE: &str = "10.1.0.200";

/// The keys, and whether the pod is masqueraded towards 192.0.2.0/24, 198.51.100.0/24, 2001:db8::/64 and [`INSIDE`].
fn table() -> [(Value, [bool; 4]); 4] {
    let exclude = json!({"ipMasqExclude": ["192.0.2.7/24", "10.1.0.0/24", "2001:db8::/60"]});
    let within =
        json!({"ipMasqWithinSubnet": true, "ipMasqExclude": ["198.51.100.0/25", "198.51.100.128/25"]});
    [
        (json!({}), [true, true, true, false]),
        (exclude, [false, true, false, false]),
        (json!({"ipMasqFamilies": ["ipv6"]}), [false, false, true, false]),
        (within, [true, false, true, true]),
    ]
}

fn conf(backend: &str, keys: &Value) -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    let base = json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend, "ipam": ipam});
    config("1.0.0", &overlay(&base, keys))
}

#[test]
fn nftables() {
    who_sees_the_pods_address("nftables", VARIANTS[0]);
}

#[test]
fn iptables() {
    who_sees_the_pods_address("iptables", VARIANTS[0]);
}

#[test]
fn the_other_iptables() {
    who_sees_the_pods_address("iptables", VARIANTS[1]);
}

fn who_sees_the_pods_address(backend: &str, name: &str) {
    let programs = variant(name);
    let ctx = ours().with_programs(programs.path());
    let reference = ctx.with_plugins(plugins(Origin::Reference));
    // A client can answer only the node.
    let clients = [("192.0.2.0/24", "-4"), ("198.51.100.0/24", "-4"), ("2001:db8::/64", "-6")];
    let clients = clients.map(|(subnet, family)| {
        let client = ctx.node.outside_client(subnet).unwrap();
        client.sh(&format!("ip {family} route del default")).unwrap();
        client
    });
    clients.iter().for_each(|client| wait_for_dad(&ctx, client));
    clients[0].sh(&format!("ip link set lo up; ip addr add {INSIDE}/32 dev lo")).unwrap();
    let via = clients[0].address();
    ctx.node.sh(&format!("ip route add {INSIDE}/32 via {via}")).unwrap();
    ctx.add(&ctx.pod("stays").attachment("eth0"), &conf(backend, &json!({})));
    let rules = || {
        let programs = VARIANTS.map(|name| format!("iptables-{name} -t nat -S; ip6tables-{name} -t nat -S"));
        let list = format!("nft list table inet cni_plugins_masquerade; {}", programs.join("; "));
        ctx.node.sh(&format!("({list}) 2>/dev/null || true")).unwrap()
    };
    let before = rules();
    for (keys, expected) in table() {
        let pod = ctx.pod("pod1");
        let (attachment, conf) = (pod.attachment("eth0"), conf(backend, &keys));
        let result = ctx.add(&attachment, &conf);
        pod.sh(&format!("ip route add {INSIDE}/32 via 10.1.0.1")).unwrap();
        let targets = clients.iter().map(|client| client.address().to_string()).chain([INSIDE.to_owned()]);
        for (target, is_masqueraded) in targets.zip(expected) {
            let ping = |wait: f32| pod.sh(&format!("ping -n -c 1 -W {wait} {target}")).is_ok();
            let what = format!("{backend} {name} {keys}: {target}");
            match is_masqueraded {
                true => assert!(eventually(TIMEOUT, || ping(1.0)), "{what} does not answer"),
                false => assert!(!ping(0.1), "{what} answers"),
            }
        }
        for (other, _) in table() {
            let called = with_prev(&self::conf(backend, &other), &result);
            let answer = ctx.call("CHECK", &attachment, &called);
            // Who wants only one family does not look at rules of the other.
            let is_subset = keys == json!({}) && other.get("ipMasqFamilies").is_some();
            assert_eq!(answer.status.success(), other == keys || is_subset, "{backend} {keys} {other}");
        }
        let finisher = if backend == "iptables" { &reference } else { &ctx };
        finisher.del(&attachment, &with_prev(&conf, &result));
        assert_eq!(rules(), before, "{backend} {name} {keys}");
        pod.delete().unwrap();
    }
}

#[test]
fn invalid_keys_are_refused() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    let before = ctx.snapshot();
    for (keys, text) in [
        (json!({"ipMasqExclude": ["10.0.0/8"]}), "invalid ipMasqExclude \"10.0.0/8\""),
        (json!({"ipMasqFamilies": ["ipv5"]}), "invalid ipMasqFamilies [\"ipv5\"]"),
    ] {
        ctx.fail("ADD", &pod.attachment("eth0"), &conf("nftables", &keys)).expect(7, text);
    }
    cni_lab::testing::assert_unchanged(&ctx.node, &before, "a refused ADD");
}
