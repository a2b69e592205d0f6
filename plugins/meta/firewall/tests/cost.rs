//! The cost of a call: processes and netlink messages. The tests need root, `nft` and `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Added, Trace};
use cni_lab::{Place as _, Snapshot};
use cni_runner::Attachment;
use common::{World, fill, pods};
use serde_json::json;

fn trace(world: &World, verb: &str, added: &Added<'_>) -> Trace {
    let exec = world.exec(verb, &added.attachment, &added.config()).env("PATH", "/usr/sbin");
    Trace::of(&world.node, &exec, "execve,execveat,recvfrom,sendto")
}

/// No process, and as many messages with 5,000 containers as with one.
#[test]
fn calls_cost_the_same_with_5000_containers() {
    let world = World::new();
    world.node.sh("iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP").unwrap();
    let keys = json!({"backend": "nftables", "ingressPolicy": "same-bridge"});
    let added = world.add("one", &pods(keys));
    let costs = || {
        ["DEL", "ADD", "CHECK"].map(|verb| {
            let calls = trace(&world, verb, &added);
            assert_eq!(calls.programs(), 0, "{verb}");
            (verb, calls.count(&["sendto"]), calls.count(&["recvfrom"]))
        })
    };
    let few = costs();
    fill(&world);
    let many = costs();
    println!("sends and answers: {few:?}");
    assert_eq!(many, few);
    // The bridge; chains, addresses, the bridge's policy, and the batch.
    assert_eq!(few[1].1, 5, "{few:?}");
}

#[test]
fn an_open_add_sends_four_messages_and_starts_no_process() {
    let world = World::new();
    let added = world.add("one", &pods(json!({"backend": "nftables"})));
    world.ctx.del(&added.attachment, &added.config());
    let calls = trace(&world, "ADD", &added);
    assert_eq!((calls.count(&["sendto"]), calls.programs()), (4, 0), "{calls:?}");
    for verb in ["STATUS", "CHECK", "DEL", "GC"] {
        assert_eq!(trace(&world, verb, &added).programs(), 0, "{verb}");
    }
}

/// Two processes for each family with iptables, none to remove.
#[test]
fn processes_with_iptables() {
    let world = World::new();
    let added = world.add("one", &pods(json!({"backend": "iptables"})));
    let verbs = ["CHECK", "DEL", "ADD", "ADD"];
    assert_eq!(verbs.map(|verb| trace(&world, verb, &added).programs()), [2, 0, 4, 2]);
}

#[test]
fn status_changes_nothing() {
    let world = World::new();
    let before = Snapshot::take(&world.node).unwrap();
    for backend in ["nftables", "iptables", "firewalld", "auto"] {
        let config = json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall", "backend": backend});
        let output = world.call("STATUS", &Attachment::default(), &config);
        assert_eq!(output.success(), backend != "firewalld", "{backend}");
        cni_lab::testing::assert_unchanged(&world.node, &before, backend);
    }
}
