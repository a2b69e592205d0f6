//! The cost of a call: number of processes and of netlink answers. The tests need root, `nft` and `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::Trace;
use cni_lab::testing::iptables::variant;
use cni_runner::Attachment;
use common::{World, both, fill, mapping, more, pods};
use serde_json::{Value, json};

/// Traces one call, which looks for programs only in these folders: the programs that it starts, its netlink
/// requests and the kernel's answers.
fn trace(world: &World, path: &str, verb: &str, attachment: &Attachment, config: &Value) -> Trace {
    let exec = world.exec(verb, attachment, config).env("PATH", path);
    Trace::of(&world.node, &exec, "execve,execveat,recvfrom,sendto")
}

#[test]
fn no_process_with_nf_tables_and_at_most_two_with_iptables() {
    for (backend, most) in [("nftables", 0), ("iptables", 2)] {
        let world = World::new();
        // The first pod of a node also creates the shared objects.
        for first in [true, false] {
            let name = if first { "one" } else { "two" };
            let added = world.add(name, &pods(json!({"backend": backend})), &json!([]));
            let mut config = added.config();
            let calls = |config: &Value| {
                ["STATUS", "ADD", "CHECK", "ADD", "GC", "DEL", "DEL"].map(|verb| {
                    let none = Attachment::default();
                    let attachment = if matches!(verb, "STATUS" | "GC") { &none } else { &added.attachment };
                    (verb, trace(&world, "/usr/sbin", verb, attachment, config).programs())
                })
            };
            assert_eq!(calls(&config).map(|(_, count)| count), [0; 7], "{backend}, no mappings");
            config["runtimeConfig"]["portMappings"] = both(8080, 80);
            for (verb, count) in calls(&config) {
                assert!(count <= most, "{backend} {verb} started {count}");
            }
            if backend == "iptables" {
                // One process for each family: the log does contain processes.
                assert_eq!(trace(&world, "/usr/sbin", "ADD", &added.attachment, &config).programs(), 2);
                assert_eq!(trace(&world, "/usr/sbin", "DEL", &added.attachment, &config).programs(), 0);
            }
        }
    }
}

/// Only programs can read legacy tables: one process lists a family, another one changes it.
#[test]
fn number_of_processes_with_iptables_legacy() {
    let world = World::new();
    let programs = variant("legacy");
    let path = programs.path().to_str().unwrap();
    let added = world.add("one", &pods(json!({"backend": "iptables"})), &json!([]));
    let mut config = added.config();
    let call = |verb: &str, config: &Value| trace(&world, path, verb, &added.attachment, config).programs();
    let verbs = ["ADD", "CHECK", "DEL"];
    config["runtimeConfig"]["portMappings"] = both(8080, 80);
    // The first calls on a node create the shared chains.
    for verb in verbs {
        call(verb, &config);
    }
    assert_eq!(verbs.map(|verb| call(verb, &config)), [2, 2, 4]);
    config["runtimeConfig"]["portMappings"] = json!([]);
    assert_eq!(verbs.map(|verb| call(verb, &config)), [0; 3]);
}

#[test]
fn number_of_netlink_answers_does_not_depend_on_other_mappings() {
    let answers = |others: bool| {
        let world = World::new();
        world.add("first", &pods(json!({})), &both(9000, 80));
        if others {
            fill(&world);
        }
        let added = world.add("one", &pods(json!({})), &json!([]));
        let mut config = added.config();
        config["runtimeConfig"]["portMappings"] =
            json!([mapping("tcp", "", 8080, 80), mapping("tcp", "", 8081, 80)]);
        ["ADD", "CHECK", "DEL"].map(|verb| {
            let calls = trace(&world, "/usr/sbin", verb, &added.attachment, &config);
            (verb, calls.count(&["recvfrom"]))
        })
    };
    // A pod without mappings only asks whether a dead one has left host ports at its addresses.
    let world = World::new();
    world.add("first", &pods(json!({})), &both(9000, 80));
    let bare = world.add("bare", &pods(json!({})), &json!([]));
    let calls = trace(&world, "/usr/sbin", "ADD", &bare.attachment, &bare.config());
    assert_eq!((calls.count(&["sendto"]), calls.count(&["recvfrom"])), (1, 2));
    let few = answers(false);
    assert!(few.iter().all(|(_, count)| *count > 0), "{few:?}");
    assert_eq!(answers(true), few);
}

#[test]
fn the_first_pod_of_a_subnet_costs_no_more_requests_than_the_next() {
    let world = World::new();
    world.add("other", &pods(json!({})), &both(9000, 80));
    let requests = ["one", "two"].map(|name| {
        let added = world.add(name, &more(json!({})), &json!([]));
        let mut config = added.config();
        config["runtimeConfig"]["portMappings"] = both(if name == "one" { 8080 } else { 8081 }, 80);
        trace(&world, "/usr/sbin", "ADD", &added.attachment, &config).count(&["sendto"])
    });
    assert!(requests[0] > 0);
    assert_eq!(requests[0], requests[1]);
}
