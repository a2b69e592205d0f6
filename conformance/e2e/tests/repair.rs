//! `ferrule repair` on nodes with running pods: traffic after a flush of the ruleset, its guards, and a DEL at any point of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;
use std::time::Instant;

use cni_lab::testing::{Random, ask, serve, silent};
use cni_lab::{
    Background, Client, KillPoint, Node, NodeRuntime, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually,
};
use cni_runner::{Attachment, Exec, Network};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde_json::json;

/// The container's port.
const PORT: u16 = 80;
/// How many points of a repair a run plays. All of them take four minutes.
const POINTS: usize = 12;

/// A node with a first process, and a network whose shared objects exist.
struct World {
    init: Background,
    node: Node,
    outside: Client,
    network: Network,
}

/// A running pod.
struct Running {
    pod: Pod,
    attachment: Attachment,
    port: u16,
    process: Option<Background>,
}

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("infinity");
    command
}

impl World {
    fn new() -> World {
        let node = Node::new().unwrap();
        let network = json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"}]});
        let world = World {
            init: node.spawn(sleep()).unwrap(),
            outside: node.outside_client("192.0.2.0/24").unwrap(),
            network: Network::from_value(&network).unwrap(),
            node,
        };
        world.end(&mut world.add("repair-first", 9000));
        world
    }

    fn runtime(&self) -> NodeRuntime<'_> {
        self.node.runtime([bin_dir().unwrap()])
    }

    /// A pod without a process. Container IDs are unique on the machine: other tests run on it.
    fn add(&self, name: &str, port: u16) -> Running {
        let pod = self.node.pod(name).unwrap();
        let mapping = json!([{"hostPort": port, "containerPort": PORT, "protocol": "tcp"}]);
        let attachment = pod.attachment("eth0").with_capability("portMappings", mapping);
        let attachment =
            attachment.with_args(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}"));
        self.runtime().add(&self.network, &attachment).unwrap();
        Running { pod, attachment, port, process: None }
    }

    fn start(&self, name: &str, port: u16) -> Running {
        let mut running = self.add(name, port);
        running.process = Some(running.pod.spawn(sleep()).unwrap());
        serve(&running.pod, name, PORT);
        running
    }

    /// As a runtime ends a pod.
    fn end(&self, running: &mut Running) {
        running.process = None;
        self.runtime().del(&self.network, &running.attachment).unwrap();
        running.pod.delete().unwrap();
    }

    fn check(&self, running: &Running) -> Result<(), String> {
        self.runtime().check(&self.network, &running.attachment).map_err(|error| error.to_string())
    }

    fn words(&self, words: &str) -> Vec<String> {
        let bin_dir = bin_dir().unwrap().display().to_string();
        let options = ["--bin-dir".to_owned(), bin_dir, "--init".to_owned(), self.init.id().to_string()];
        words.split(' ').map(str::to_owned).chain(options).collect()
    }

    /// What `ferrule` has said, and whether it succeeded. `$@` in the script is the command.
    fn ferrule_in(&self, script: &str, words: &str) -> (bool, String) {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(bin_dir().unwrap().join("ferrule")).args(self.words(words));
        let output = self.node.exec(&mut command).unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    #[track_caller]
    fn ferrule(&self, words: &str) -> String {
        let (succeeded, said) = self.ferrule_in("\"$@\"", words);
        assert!(succeeded, "{words}: {said}");
        said
    }

    fn flush(&self) {
        self.node.tool("nft", &["flush", "ruleset"]).unwrap();
    }

    fn is_silent(&self, running: &Running) -> bool {
        silent(&self.outside, "tcp", (self.outside.node_address(), running.port).into())
    }

    /// From outside through the host port, and from the pod to the outside, masqueraded.
    #[track_caller]
    fn assert_traffic(&self, running: &Running) {
        let (node, client) = (self.outside.node_address(), self.outside.address());
        let answer = ask(&self.outside, "tcp", (node, running.port).into()).unwrap();
        assert_eq!(answer, format!("{} {client}", running.pod.name()));
        assert_eq!(ask(&running.pod, "tcp", (client, PORT).into()).unwrap(), format!("outside {node}"));
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.node).unwrap().ignoring(&["last_reserved_ip"])
    }

    /// Fails if the node has something that it did not have before. A flush may have removed what the pods share.
    #[track_caller]
    fn assert_no_leftovers(&self, before: &Snapshot, when: &str) {
        let left = || {
            let diff = before.diff(&self.snapshot());
            diff.lines().filter(|line| !line.starts_with('-')).map(str::to_owned).collect::<Vec<_>>()
        };
        // The kernel removes some objects after the call that asked for it.
        eventually(TIMEOUT, || left().is_empty());
        assert_eq!(left(), [""; 0], "{when}");
    }
}

#[test]
fn traffic_after_a_flush_and_the_guards() {
    let world = World::new();
    let before = world.snapshot();
    serve(&world.outside, "outside", PORT);
    let [mut one, mut two] =
        [("repair-one", 8081), ("repair-two", 8082)].map(|(name, port)| world.start(name, port));
    let mut starting = world.add("repair-starting", 8083);
    let mut called = world.start("repair-called", 8084);
    let mut plugin = sleep();
    plugin.env("CNI_CONTAINERID", "repair-called");
    let plugin = world.node.spawn(plugin).unwrap();
    world.assert_traffic(&one);
    assert_eq!(world.ferrule("repair --yes"), "0 repaired, 0 failed, 0 skipped, 4 sound\n");

    world.flush();
    assert!(world.is_silent(&one) && world.is_silent(&two));
    let flushed = world.snapshot();
    let said = world.ferrule("repair --dry-run");
    for line in [
        "would repair portmap of container repair-one (interface eth0 on network pods): ",
        "skipped container repair-starting (interface eth0 on network pods): no process is in its namespace",
        &format!(
            "skipped container repair-called (interface eth0 on network pods): process {} ",
            plugin.id()
        ),
        "2 to repair with --yes, 0 failed, 2 skipped, 0 sound",
    ] {
        assert!(said.lines().any(|said| said.starts_with(line)), "{line}\n{said}");
    }
    let hidden = "unshare --mount sh -c 'mount -t tmpfs none /run/netns; exec \"$@\"' sh \"$@\"";
    for (script, words, why) in [
        (hidden, "repair --yes", "nothing is repaired: this process does not see the node"),
        ("unshare --net \"$@\"", "repair --yes", "another network namespace"),
        ("\"$@\"", "repair --yes --container shop/web", "no cached result is that of"),
    ] {
        let (succeeded, said) = world.ferrule_in(script, words);
        assert!(!succeeded && said.contains(why) && said.lines().count() == 1, "{said}");
    }
    assert_eq!(flushed.diff(&world.snapshot()), "");

    let said = world.ferrule("repair --yes --container shop/repair-one");
    assert!(said.ends_with("\n1 repaired, 0 failed, 0 skipped, 0 sound\n"), "{said}");
    world.assert_traffic(&one);
    assert!(world.is_silent(&two));
    let said = world.ferrule("repair --yes");
    assert!(said.ends_with("\n1 repaired, 0 failed, 2 skipped, 1 sound\n"), "{said}");
    for running in [&one, &two] {
        world.assert_traffic(running);
        world.check(running).unwrap();
    }
    assert!(world.check(&starting).is_err() && world.check(&called).is_err());
    let repaired = world.snapshot();
    assert!(world.ferrule("repair --yes").ends_with("\n0 repaired, 0 failed, 2 skipped, 2 sound\n"));
    assert_eq!(repaired.diff(&world.snapshot()), "");
    let metrics = world.node.read_file("/run/ferrule-totals").unwrap();
    assert!(metrics.contains("\nferrule_repair_repaired_attachments_total 2\n"), "{metrics}");
    drop(plugin);
    assert!(world.ferrule("repair --yes").ends_with("\n1 repaired, 0 failed, 1 skipped, 2 sound\n"));

    for running in [&mut one, &mut two, &mut starting, &mut called] {
        world.end(running);
    }
    world.assert_no_leftovers(&before, "after DEL");
}

/// The pod ends between two steps of a repair, or goes on without its network: nothing of the repair stays.
#[test]
fn a_del_in_between() {
    let world = World::new();
    let before = world.snapshot();
    let ferrule = |words: &str| {
        let mut exec = Exec::new(bin_dir().unwrap().join("ferrule"), "repair").without("CNI_COMMAND");
        exec.arguments = world.words(words);
        exec
    };
    let repair = ferrule("repair --yes");
    let mut running = world.start("repair-recorded", 8090);
    world.flush();
    let points = KillPoint::requests(&world.node, &repair).unwrap();
    world.check(&running).unwrap();
    world.end(&mut running);
    world.assert_no_leftovers(&before, "after DEL");
    let mut random = Random::seeded();
    for at in 0..POINTS {
        let point = &points[random.below(points.len())];
        let mut running = world.start(&format!("repair-ends-{at}"), 8091);
        world.flush();
        // As `podman network disconnect` does.
        let goes_on = at % 2 == 1;
        let end = |running: &mut Running| match goes_on {
            true => world.runtime().del(&world.network, &running.attachment).unwrap(),
            false => world.end(running),
        };
        let status = point.pause(&world.node, &repair, || end(&mut running)).unwrap();
        assert!(status.success(), "{point}: {status}");
        if goes_on {
            running.process = None;
            running.pod.delete().unwrap();
        }
        world.assert_no_leftovers(&before, &format!("paused {point}"));
    }
}

/// The pod ends between two steps of a repair, and the next container gets its path: that one keeps its interface.
#[test]
fn the_next_container_at_the_same_path() {
    let world = World::new();
    let repair = {
        let mut exec = Exec::new(bin_dir().unwrap().join("ferrule"), "repair").without("CNI_COMMAND");
        exec.arguments = world.words("repair --yes");
        exec
    };
    let mut running = world.start("repair-path", 8093);
    world.flush();
    let points = KillPoint::requests(&world.node, &repair).unwrap();
    world.end(&mut running);
    let (mut random, mut played) = (Random::seeded(), 0);
    for at in 0..POINTS / 2 {
        let point = &points[random.below(points.len())];
        let mut first = world.start("repair-path", 8093);
        world.flush();
        let mut next = None;
        let status = point
            .pause(&world.node, &repair, || {
                world.end(&mut first);
                let pod = world.node.pod("repair-path").unwrap();
                let mut attachment = pod.attachment("eth0");
                attachment.container_id = format!("repair-next-{at}");
                world.runtime().add(&world.network, &attachment).unwrap();
                let process = Some(pod.spawn(sleep()).unwrap());
                next = Some(Running { pod, attachment, port: 0, process });
            })
            .unwrap();
        assert!(status.success(), "{point}: {status}");
        // A call on an idle machine may end before its point.
        let Some(mut next) = next else { continue };
        assert_eq!(world.check(&next), Ok(()), "paused {point}");
        world.end(&mut next);
        played += 1;
    }
    assert!(played > 0, "no call has reached its point");
}

/// The unit of repair has MemoryMax=256M. A plugin that needs all routes of the container leaves that one out.
#[test]
fn a_pod_with_many_routes_costs_little_and_holds_up_no_other() {
    let mut world = World::new();
    let network = json!({"name": "sources", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge", "bridge": "cni1", "isDefaultGateway": true,
            "ipam": {"type": "host-local", "subnet": "10.2.0.0/16"}},
        {"type": "sbr"}]});
    let many = world.start("repair-many", 8095);
    let pods = std::mem::replace(&mut world.network, Network::from_value(&network).unwrap());
    let sources = world.start("repair-sources", 0);
    world.network = pods;
    let other = world.start("repair-other", 8096);
    let routes = "ip link add d0 type veth; ip link set d0 up; awk 'BEGIN { for (i = 0; i < 200000; i++)
        printf \"route add 20.%d.%d.%d/32 dev DEV\\n\", i / 65536, i / 256 % 256, i % 256 }' | ip -batch -";
    many.pod.sh(&routes.replace("DEV", "eth0")).unwrap();
    sources.pod.sh(&routes.replace("DEV", "d0")).unwrap();
    world.flush();
    let (succeeded, said) = world.ferrule_in("ulimit -v 60000; exec \"$@\"", "repair --yes");
    assert!(!succeeded);
    let left_out = "cannot repair sbr of container repair-sources (interface eth0 on network sources): list the container's routes: \
        no buffer space available (the container has too much to list)";
    assert!(said.starts_with(left_out), "{said}");
    assert!(said.ends_with("\n2 repaired, 1 failed, 0 skipped, 0 sound\n"), "{said}");
    for pod in [&many, &other] {
        world.check(pod).unwrap();
    }
}

/// Prints how long 500 pods take. On a busy machine only the processor time says something.
#[test]
#[ignore = "benchmark: cargo test -p ferrule-e2e --test repair cost -- --ignored --nocapture"]
fn cost() {
    let world = World::new();
    let _pods: Vec<Running> =
        (0..500).map(|number| world.start(&format!("repair-cost-{number}"), 20_000 + number)).collect();
    let processor = || {
        let used = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        used.user_time().num_milliseconds() + used.system_time().num_milliseconds()
    };
    let timed = |words: &str, end: &str| {
        let (start, used) = (Instant::now(), processor());
        let said = world.ferrule(words);
        let wall = start.elapsed().as_millis();
        println!("{words}: {wall} ms, processor time {} ms", processor() - used);
        assert!(said.ends_with(end), "{said}");
    };
    for _ in 0..5 {
        timed("check", "500 sound, 0 failed, 0 skipped\n");
        timed("repair --yes", "0 repaired, 0 failed, 0 skipped, 500 sound\n");
        world.flush();
        println!("after nft flush ruleset:");
        timed("repair --yes", "500 repaired, 0 failed, 0 skipped, 0 sound\n");
    }
}
