//! Concurrent calls: runtimes start pods in parallel, and containerd also runs the networks of one pod in
//! parallel.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;

use cni_lab::testing::{TestContext, addresses, at_once, flags, host_local, mac, overlay, ports, with_prev};
use cni_lab::{Place as _, Pod};
use cni_runner::{Exec, Output};
use common::{assert_only_shared_changed, config, ours};
use serde_json::{Value, json};

const PODS: usize = 16;

fn conf() -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    config("1.0.0", &json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}))
}

/// Makes all calls at the same time; each must succeed.
fn together(ctx: &TestContext, calls: &[Exec]) -> Vec<Output> {
    let outputs = at_once(&ctx.node, calls);
    for output in &outputs {
        assert!(output.success(), "{}{}", output.stdout_text(), output.stderr_text());
    }
    outputs
}

fn rules(ctx: &TestContext) -> usize {
    ctx.node
        .sh("nft list ruleset")
        .unwrap()
        .lines()
        .filter(|line| line.contains("masquerade comment"))
        .count()
}

#[test]
fn sixteen_pods_add_and_del_concurrently() {
    let ctx = ours();
    let conf = conf();
    let pods: Vec<Pod> = (0..PODS).map(|n| ctx.pod(&format!("pod{n}"))).collect();
    let call = |verb: &str, pod: &Pod| ctx.exec(verb, &pod.attachment("eth0"), &conf);
    // The first ADD leaves the masquerading table for good, so it must exist before the snapshot.
    ctx.add(
        &ctx.pod("warm").attachment("eth0"),
        &overlay(
            &conf,
            &json!({"bridge": "br9", "name": "warm",
        "ipam": host_local(&["10.9.0.0/24"])}),
        ),
    );
    let before = ctx.snapshot();

    let all_add: Vec<Exec> = pods.iter().map(|pod| call("ADD", pod)).collect();
    let added = together(&ctx, &all_add);
    let results: Vec<Value> = added.iter().map(|output| output.document().unwrap()).collect();
    let distinct: BTreeSet<String> = pods.iter().flat_map(|pod| addresses(pod, "eth0")).collect();
    assert_eq!(distinct.len(), 2 * PODS, "IPAM assigned an address twice");
    assert_eq!((ports(&ctx.node, "br0").len(), rules(&ctx)), (PODS, 2 * PODS + 1));
    assert_eq!(addresses(&ctx.node, "br0"), ["10.1.0.1/24", "fd00:1::1/64"]);
    // All results have the same bridge, which kept its MAC address while ports were added.
    let bridge = mac(&ctx.node, "br0");
    for (pod, result) in pods.iter().zip(&results) {
        assert_eq!(result["interfaces"][0]["mac"], bridge);
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf, result));
        pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -c 1 -W 2 fd00:1::1").unwrap();
    }

    for _ in 0..2 {
        let (leaving, staying) = pods.split_at(PODS / 2);
        let away: Vec<Exec> = leaving.iter().map(|pod| call("DEL", pod)).collect();
        together(&ctx, &away);
        // Half of the pods are added while the other half is deleted.
        let coming = leaving.iter().map(|pod| call("ADD", pod));
        let mixed: Vec<Exec> =
            coming.zip(staying.iter().map(|pod| call("DEL", pod))).flat_map(|(a, b)| [a, b]).collect();
        together(&ctx, &mixed);
        assert_eq!((ports(&ctx.node, "br0").len(), rules(&ctx)), (PODS / 2, PODS + 1));
        assert_eq!(ctx.reservations("net").len(), PODS);
        let back: Vec<Exec> = staying.iter().map(|pod| call("ADD", pod)).collect();
        together(&ctx, &back);
        let distinct: BTreeSet<String> = pods.iter().flat_map(|pod| addresses(pod, "eth0")).collect();
        assert_eq!(distinct.len(), 2 * PODS, "IPAM assigned an address twice");
    }

    let all_del: Vec<Exec> = pods.iter().map(|pod| call("DEL", pod)).collect();
    together(&ctx, &all_del);
    assert!(ctx.reservations("net").is_empty() && ports(&ctx.node, "br0").is_empty());
    assert_only_shared_changed(&ctx, &before, "sixteen pods");
}

/// The first ADDs race to make the bridge and the table.
#[test]
fn concurrent_first_adds() {
    for _ in 0..5 {
        let ctx = ours();
        let pods: Vec<Pod> = (0..8).map(|n| ctx.pod(&format!("pod{n}"))).collect();
        let calls: Vec<Exec> =
            pods.iter().map(|pod| ctx.exec("ADD", &pod.attachment("eth0"), &conf())).collect();
        let outputs = together(&ctx, &calls);
        assert_eq!((ports(&ctx.node, "br0").len(), rules(&ctx)), (8, 16));
        let bridge = mac(&ctx.node, "br0");
        for (pod, output) in pods.iter().zip(&outputs) {
            assert_eq!(output.document().unwrap()["interfaces"][0]["mac"], bridge);
            pod.sh("ping -6 -c 1 -W 2 fd00:1::1").unwrap();
        }
        assert!(flags(&ctx.node, "br0").contains(&"UP".to_owned()));
    }
}

/// The bridge exists without addresses, so all ADDs race to add the gateway addresses.
#[test]
fn concurrent_adds_of_the_gateway_addresses() {
    let ctx = ours();
    let pods: Vec<Pod> = (0..PODS).map(|n| ctx.pod(&format!("pod{n}"))).collect();
    let calls = |verb: &str| -> Vec<Exec> {
        pods.iter().map(|pod| ctx.exec(verb, &pod.attachment("eth0"), &conf())).collect()
    };
    ctx.node.sh("ip link add br0 type bridge && ip link set br0 up").unwrap();
    for _ in 0..5 {
        ctx.node.sh("ip address flush dev br0 scope global").unwrap();
        together(&ctx, &calls("ADD"));
        assert_eq!(addresses(&ctx.node, "br0"), ["10.1.0.1/24", "fd00:1::1/64"]);
        together(&ctx, &calls("DEL"));
    }
}

/// A runtime that restarts may repeat a DEL.
#[test]
fn concurrent_dels_of_one_attachment() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    ctx.add(&ctx.pod("other").attachment("eth0"), &conf());
    let before = ctx.snapshot();
    for _ in 0..5 {
        ctx.add(&pod.attachment("eth0"), &conf());
        let calls: Vec<Exec> = (0..6).map(|_| ctx.exec("DEL", &pod.attachment("eth0"), &conf())).collect();
        together(&ctx, &calls);
        assert_only_shared_changed(&ctx, &before, "several DELs");
    }
}

/// containerd adds lo and a pod's networks concurrently in one namespace; this test adds eth0, eth1 and lo.
#[test]
fn concurrent_interfaces_of_one_pod() {
    let ctx = ours();
    let second = overlay(
        &conf(),
        &json!({"name": "second", "bridge": "br1", "isDefaultGateway": false, "isGateway": true,
            "ipam": host_local(&["10.2.0.0/24", "fd00:2::/64"])}),
    );
    let loopback = json!({"cniVersion": "1.0.0", "name": "cni-loopback", "type": "loopback"});
    for round in 0..10 {
        let pod = ctx.pod(&format!("pod{round}"));
        let calls = |verb: &str| {
            let mut lo = ctx.exec(verb, &pod.attachment("lo"), &loopback);
            lo.binary = ctx.plugins.path().join("loopback");
            [
                lo,
                ctx.exec(verb, &pod.attachment("eth0"), &conf()),
                ctx.exec(verb, &pod.attachment("eth1"), &second),
            ]
        };
        let outputs = together(&ctx, &calls("ADD"));
        assert!(flags(&pod, "lo").contains(&"UP".to_owned()));
        pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -c 1 -W 2 10.2.0.1 && ping -6 -c 1 -W 2 fd00:2::1").unwrap();
        let first = outputs[1].document().unwrap();
        ctx.check(&pod.attachment("eth0"), &with_prev(&conf(), &first));
        together(&ctx, &calls("DEL"));
        assert!(ports(&ctx.node, "br0").is_empty() && ports(&ctx.node, "br1").is_empty());
    }
    assert!(ctx.reservations("net").is_empty() && rules(&ctx) == 0);
}
