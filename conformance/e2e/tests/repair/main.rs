//! `ferrule repair` on nodes with running pods: traffic after a flush of the ruleset, its guards, and a DEL at any point of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Instant;

use cni_lab::testing::{Random, serve};
use cni_lab::{KillPoint, Place as _, bin_dir};
use cni_runner::{Exec, Network};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde_json::json;

/// The container's port.
const PORT: u16 = 80;
/// How many points of a repair a run plays. All of them take four minutes.
const POINTS: usize = 12;

mod load;
mod world;

use world::{Running, World, sleep};

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
