//! A runtime that has lost patience kills the plugin with SIGKILL, at any moment. The DEL after that removes everything.
//! They need root, `nft` and both variants of `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::programs::{saved, variant};
use common::{Added, World, both, pods};
use conformance::fixture::{Place as _, eventually};
use conformance::runner::{Attachment, Exec};
use serde_json::{Value, json};

/// A container of which only portmap knows, on a node where another one has host ports.
struct Lab<'w> {
    base: Added<'w>,
    config: Value,
    path: String,
}

impl<'w> Lab<'w> {
    fn new(world: &'w World, keys: Value, path: &str) -> Lab<'w> {
        let base = world.add("base", &pods(keys), &json!([]));
        let mut config = base.config();
        config["runtimeConfig"]["portMappings"] = both(8080, 80);
        Lab { base, config, path: path.to_owned() }
    }

    fn exec(&self, verb: &str, container: &str) -> Exec {
        let attachment = Attachment::new(container, self.base.attachment.netns.clone(), "eth0");
        Exec::new(self.base.world.bins.path().join("portmap"), verb)
            .attachment(&attachment)
            .env("PATH", &self.path)
            .stdin(self.config.to_string())
    }

    /// A call that has to do; the time it took.
    fn call(&self, verb: &str, container: &str) -> Duration {
        let output = self.base.world.node.call(&self.exec(verb, container)).unwrap();
        assert!(output.success(), "{verb} of {container}: {}", output.stdout_text());
        output.wall
    }

    /// Starts a call and kills the plugin after the time. Whether it was still running then.
    fn kill(&self, verb: &str, container: &str, time: Duration) -> bool {
        let exec = self.exec(verb, container);
        let mut command = Command::new(&exec.binary);
        command
            .env("CNI_COMMAND", &exec.command)
            .env("CNI_CONTAINERID", &exec.container_id)
            .env("CNI_NETNS", &exec.netns)
            .env("CNI_IFNAME", &exec.ifname)
            .env("CNI_PATH", &exec.path)
            .env("PATH", &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // A group of its own, by which whatever it starts is found: an iptables-restore lives on, for less time than a
        // runtime takes to its next call.
        command.process_group(0);
        let (killed, group) = self
            .base
            .world
            .node
            .run(|| {
                let mut child = command.spawn().unwrap();
                let start = Instant::now();
                let _ = child.stdin.take().unwrap().write_all(&exec.stdin);
                thread::sleep(time.saturating_sub(start.elapsed()));
                let is_running = child.try_wait().unwrap().is_none();
                child.kill().unwrap();
                child.wait().unwrap();
                (is_running, child.id())
            })
            .unwrap();
        assert!(eventually(Duration::from_secs(5), || !is_anybody_in(group)));
        killed
    }

    /// What all tables hold.
    fn state(&self) -> String {
        self.base.world.listing() + &saved(self.base.world, "legacy")
    }
}

/// Whether a process of the group lives. proc_pid_stat(5): behind the name in parentheses are state, parent and group.
fn is_anybody_in(group: u32) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next().is_some_and(|state| state != "Z") && fields.nth(1) == Some(&group.to_string())
    })
}

/// A node of that backend, on which another container's host ports are: they have to stay, and nothing else.
fn killed_on(keys: &Value, path: &str, rounds: u32) {
    let world = World::new();
    let mut lab = Lab::new(&world, keys.clone(), path);
    lab.call("ADD", "other");
    lab.config["runtimeConfig"]["portMappings"] = both(8081, 80);
    lab.call("ADD", "warm");
    let times = [("ADD", lab.call("ADD", "warm")), ("DEL", lab.call("DEL", "warm"))];
    let before = lab.state();
    for (verb, wall) in times {
        let mut killed = 0_u32;
        for round in 0..rounds {
            let container = format!("{verb}-{round}");
            if verb == "DEL" {
                lab.call("ADD", &container);
            }
            // To a little more than a call takes.
            let time = wall * 12 / 10 * round / rounds;
            killed += u32::from(lab.kill(verb, &container, time));
            if round % 2 == 0 {
                lab.call("DEL", &container);
                assert_eq!(lab.state(), before, "{verb} killed after {time:?}");
            }
            // Whatever is left, the next container gets the port, or this one at a second try.
            lab.call("ADD", &container);
            lab.call("CHECK", &container);
            lab.call("DEL", &container);
            assert_eq!(lab.state(), before, "{verb} killed after {time:?}");
        }
        assert!(killed >= rounds / 4, "only {killed} of {rounds} {verb}s were still running");
    }
}

#[test]
fn at_any_moment_by_nf_tables() {
    killed_on(&json!({}), "/usr/sbin:/usr/bin:/sbin:/bin", 40);
}

#[test]
fn at_any_moment_by_iptables() {
    for name in common::programs::VARIANTS {
        let programs = variant(name);
        killed_on(&json!({"backend": "iptables"}), &programs.path().display().to_string(), 16);
    }
}

/// The first ADD of all, which makes the table.
#[test]
fn the_first_add_of_a_node() {
    for round in 0..20 {
        let world = World::new();
        let lab = Lab::new(&world, json!({}), "/usr/sbin:/usr/bin");
        let container = "first";
        lab.kill("ADD", container, Duration::from_micros(100) * round);
        lab.call("DEL", container);
        assert_eq!(world.count(), 0);
        lab.call("ADD", container);
        lab.call("CHECK", container);
    }
}
