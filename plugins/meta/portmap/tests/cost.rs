//! The cost of a call: number of processes and of netlink answers. The tests need root, `nft` and `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use cni_lab::Place as _;
use cni_runner::{Attachment, Exec};
use common::programs::variant;
use common::{World, both, fill, mapping, pods};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A plugin under `strace`, which logs all started programs and all answers of the kernel.
struct Watched {
    dir: TempDir,
    path: String,
}

impl Watched {
    /// The plugin's `PATH` is this one, followed by the directory of `strace`.
    fn new(world: &World, path: &str) -> Watched {
        let dir = tempfile::tempdir().unwrap();
        let (file, plugin) = (dir.path().join("portmap"), world.bins.path().join("portmap"));
        let log = dir.path().join("log");
        let script = format!(
            "#!/bin/sh\nexec strace -f -qq -e trace=execve,execveat,recvfrom,sendto -e signal=none -o {} {}\n",
            log.display(),
            plugin.display()
        );
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        Watched { dir, path: format!("{path}:/usr/bin") }
    }

    /// Runs a call and returns the log.
    fn log(&self, world: &World, verb: &str, attachment: &Attachment, config: &Value) -> String {
        let exec = Exec::new(self.dir.path().join("portmap"), verb)
            .attachment(attachment)
            .env("PATH", &self.path)
            .stdin(config.to_string());
        let output = world.node.call(&exec).unwrap();
        assert!(output.success(), "{verb}: {}", String::from_utf8_lossy(&output.stdout));
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Runs a call and returns the number of processes that it starts.
    fn call(&self, world: &World, verb: &str, attachment: &Attachment, config: &Value) -> usize {
        let log = self.log(world, verb, attachment, config);
        // The first process is the plugin itself.
        let started = log.lines().filter(|line| line.contains("execve") && line.contains("= 0")).count();
        started.checked_sub(1).expect("strace wrote nothing")
    }
}

#[test]
fn no_process_with_nf_tables_and_at_most_two_with_iptables() {
    for (backend, most) in [("nftables", 0), ("iptables", 2)] {
        let world = World::new();
        let watched = Watched::new(&world, "/usr/sbin");
        // The first pod of a node also creates the shared objects.
        for first in [true, false] {
            let name = if first { "one" } else { "two" };
            let added = world.add(name, &pods(json!({"backend": backend})), &json!([]));
            let mut config = added.config();
            let calls = |config: &Value| {
                ["STATUS", "ADD", "CHECK", "ADD", "GC", "DEL", "DEL"].map(|verb| {
                    let none = Attachment::default();
                    let attachment = if matches!(verb, "STATUS" | "GC") { &none } else { &added.attachment };
                    (verb, watched.call(&world, verb, attachment, config))
                })
            };
            assert_eq!(calls(&config).map(|(_, count)| count), [0; 7], "{backend}, no mappings");
            config["runtimeConfig"]["portMappings"] = both(8080, 80);
            for (verb, count) in calls(&config) {
                assert!(count <= most, "{backend} {verb} started {count}");
            }
            if backend == "iptables" {
                // One process for each family: the log does contain processes.
                assert_eq!(watched.call(&world, "ADD", &added.attachment, &config), 2);
                assert_eq!(watched.call(&world, "DEL", &added.attachment, &config), 0);
            }
        }
    }
}

/// Only programs can read legacy tables: one process lists a family, another one changes it.
#[test]
fn number_of_processes_with_iptables_legacy() {
    let world = World::new();
    let programs = variant("legacy");
    let watched = Watched::new(&world, &programs.path().display().to_string());
    let added = world.add("one", &pods(json!({"backend": "iptables"})), &json!([]));
    let mut config = added.config();
    let call = |verb: &str, config: &Value| watched.call(&world, verb, &added.attachment, config);
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

/// Our chains, the batch, the chains of the reference and of iptables, and route and link for `route_localnet`.
/// Finding out that kube-proxy does not run in IPVS mode costs no request.
#[test]
fn an_add_sends_six_requests() {
    let world = World::new();
    let watched = Watched::new(&world, "/usr/sbin");
    world.add("first", &pods(json!({})), &both(9000, 80));
    let added = world.add("one", &pods(json!({})), &json!([]));
    let mut config = added.config();
    config["runtimeConfig"]["portMappings"] = json!([mapping("tcp", "", 8080, 80)]);
    let log = watched.log(&world, "ADD", &added.attachment, &config);
    assert_eq!(log.matches("sendto(").count(), 6, "{log}");
}

#[test]
fn number_of_netlink_answers_does_not_depend_on_other_mappings() {
    let answers = |others: bool| {
        let world = World::new();
        let watched = Watched::new(&world, "/usr/sbin");
        world.add("first", &pods(json!({})), &both(9000, 80));
        if others {
            fill(&world);
        }
        let added = world.add("one", &pods(json!({})), &json!([]));
        let mut config = added.config();
        config["runtimeConfig"]["portMappings"] =
            json!([mapping("tcp", "", 8080, 80), mapping("tcp", "", 8081, 80)]);
        ["ADD", "CHECK", "DEL"].map(|verb| {
            let log = watched.log(&world, verb, &added.attachment, &config);
            (verb, log.matches("recvfrom(").count())
        })
    };
    let few = answers(false);
    assert!(few.iter().all(|(_, count)| *count > 0), "{few:?}");
    assert_eq!(answers(true), few);
}
