//! Connections of pods behind firewalls that drop forwarded packets. The tests need root, `nft` and both variants of
//! `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;

use cni_lab::Place as _;
use cni_lab::testing::iptables::variant;
use cni_lab::testing::{marking_container, serve};
use common::{World, expect, expect_pod, host_port, more, pods, saved};
use serde_json::json;

/// What drops forwarded packets on a node.
const DROPPERS: [&str; 4] = ["nobody", "nft", "legacy", "both"];

/// Makes the policy of FORWARD "drop" in these variants of iptables.
fn drop_forwarded(world: &World, dropper: &str) {
    for name in ["nft", "legacy"] {
        if dropper == name || dropper == "both" {
            world
                .node
                .sh(&format!("iptables-{name} -P FORWARD DROP; ip6tables-{name} -P FORWARD DROP"))
                .unwrap();
        }
    }
}

/// Two pods of one network, one of another network, an outside client, and a host port.
fn connect(backend: &str, dropper: &str, tools: &str, bridge_nf: bool) {
    let what = format!("{backend} behind {dropper}, iptables is {tools}, bridge-nf {bridge_nf}");
    let world = World::new();
    world.set_bridge_nf(bridge_nf);
    drop_forwarded(&world, dropper);
    // `iptables` is one variant, and the programs of both are there.
    let programs = variant(tools);
    let mut ctx = world.ctx.clone();
    ctx.env.push(("PATH".to_owned(), format!("{}:/usr/sbin", programs.path().display())));
    let add = |name, network, ports| world.add_by(&ctx, name, &network, &ports);
    let keys = json!({"backend": backend});
    let server = add("server", pods(keys.clone()), host_port());
    let neighbour = add("neighbour", pods(keys.clone()), json!([]));
    let stranger = add("stranger", more(keys), json!([]));
    for added in [&server, &neighbour, &stranger] {
        added.serve(80);
        ctx.runtime()
            .check(&added.network, &added.attachment)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    for (from, to) in
        [(&neighbour, &server), (&server, &neighbour), (&stranger, &server), (&neighbour, &stranger)]
    {
        expect_pod(from, to, true, &what);
    }
    for (v6, outside) in [false, true].into_iter().zip(&world.outside) {
        serve(outside, "outside", 80);
        expect(&neighbour.pod, SocketAddr::new(outside.address(), 80), true, &format!("{what}: outbound"));
        let host = SocketAddr::new(outside.node_address(), 8080);
        expect(outside, host, true, &format!("{what}: host port"));
        expect(&stranger.pod, host, true, &format!("{what}: host port from another network"));
        let direct = SocketAddr::new(neighbour.address(v6), 80);
        expect(outside, direct, dropper == "nobody", &format!("{what}: inbound"));
    }
    for added in [&server, &neighbour, &stranger] {
        ctx.runtime().del(&added.network, &added.attachment).unwrap();
    }
    let left = ["pods4", "pods6", "others4", "others6"].map(|set| world.set(set));
    assert_eq!(left, [const { String::new() }; 4], "{what}");
    for name in ["nft", "legacy"] {
        assert!(!saved(&world, name).contains("10.1."), "{what}: {}", saved(&world, name));
    }
}

#[test]
fn nftables_behind_every_dropper() {
    for dropper in DROPPERS {
        connect("nftables", dropper, "nft", true);
    }
    connect("nftables", "both", "legacy", false);
}

#[test]
fn iptables_behind_a_dropper_of_its_variant() {
    connect("iptables", "nft", "nft", true);
    connect("iptables", "legacy", "legacy", false);
    connect("iptables", "nobody", "nft", false);
}

#[test]
fn the_automatic_choice_behind_every_dropper() {
    for dropper in DROPPERS {
        connect("", dropper, "nft", true);
    }
    connect("", "nft", "legacy", false);
    connect("", "legacy", "legacy", false);
}

/// A macvlan on a virtual link of the node keeps the marks of the container's packets.
#[test]
fn the_mark_of_a_container_opens_nothing() {
    let world = World::new();
    drop_forwarded(&world, "nft");
    // As on most nodes, so that answers pass.
    world.node.sh("iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT").unwrap();
    let outside = &world.outside[0];
    serve(outside, "outside", 80);
    let to = SocketAddr::new(outside.address(), 80);
    let marking = marking_container(&world.ctx, &[20]);
    for backend in ["nftables", "iptables"] {
        let sound = world.add(backend, &pods(json!({"backend": backend})));
        expect(&sound.pod, to, true, backend);
        expect(&marking, to, false, backend);
    }
    world.nft("flush chain inet cni_firewall forward");
    expect(&marking, to, true, "without the rule that clears the mark");
}
