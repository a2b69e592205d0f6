//! A runtime that has lost patience kills the plugin with SIGKILL, at any moment. The DEL after that removes everything.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use common::{Lab, Stub, after, config, host_local, ports, try_link, unchanged};
use conformance::fixture::{Place as _, Pod, Snapshot, eventually};
use serde_json::{Value, json};

const ROUNDS: u32 = 60;

fn conf() -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    config("1.0.0", &json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}))
}

/// Runs the plugin and kills it after the time. Whether it was still running then.
fn kill(lab: &Lab, verb: &str, pod: &Pod, conf: &Value, time: Duration) -> bool {
    let mut exec = lab.exec(verb, &pod.attachment("eth0"), conf);
    exec.timeout = None;
    let killed = lab
        .node
        .run(|| {
            let mut command = std::process::Command::new(&exec.binary);
            command
                .env("CNI_COMMAND", &exec.command)
                .env("CNI_CONTAINERID", &exec.container_id)
                .env("CNI_NETNS", &exec.netns)
                .env("CNI_IFNAME", &exec.ifname)
                .env("CNI_PATH", &exec.path)
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null());
            let mut child = command.spawn().unwrap();
            let start = Instant::now();
            // Not `take`: the plugin reads to the end of its input, so that has to come.
            let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), &exec.stdin);
            thread::sleep(time.saturating_sub(start.elapsed()));
            let is_running = child.try_wait().unwrap().is_none();
            child.kill().unwrap();
            child.wait().unwrap();
            is_running
        })
        .unwrap();
    // The IPAM plugin lives on, and a DEL must not overtake it: what that would release comes only afterwards. A runtime
    // takes longer than this for its next call.
    let mark = format!("CNI_CONTAINERID={}\0", exec.container_id);
    assert!(
        eventually(Duration::from_secs(5), || !is_anybody_called_with(&mark)),
        "{verb} has left a process"
    );
    killed
}

fn is_anybody_called_with(mark: &str) -> bool {
    fs::read_dir("/proc").unwrap().any(|entry| {
        let environment = entry.map(|entry| fs::read(entry.path().join("environ")).unwrap_or_default());
        environment.unwrap().windows(mark.len()).any(|window| window == mark.as_bytes())
    })
}

/// A node where everything shared is there already, so that nothing at all may be different afterwards.
fn lab() -> (Lab, Snapshot) {
    let lab = Lab::new();
    lab.add(&lab.pod("first").attachment("eth0"), &conf());
    let before = lab.snapshot();
    (lab, before)
}

/// Times from 0 to a little more than a call takes here, so that the kills fall all over it on a slow machine as well.
fn times(lab: &Lab, verb: &str) -> Vec<Duration> {
    let pod = lab.pod("measured");
    let mut wall = Duration::ZERO;
    for call in ["ADD", "DEL"] {
        let output = lab.call(call, &pod.attachment("eth0"), &conf());
        assert!(output.success());
        if call == verb {
            wall = output.wall;
        }
    }
    (0..ROUNDS).map(|round| wall * 12 / 10 * round / ROUNDS).collect()
}

fn name(verb: &str, round: usize) -> String {
    // Tests run side by side, and a process is told by the container ID.
    format!("killed-{}-{verb}-{round}", std::process::id())
}

#[test]
fn add_killed_at_any_moment() {
    let (lab, before) = lab();
    let mut killed = 0;
    for (round, time) in times(&lab, "ADD").into_iter().enumerate() {
        let pod = lab.pod(&name("ADD", round));
        killed += usize::from(kill(&lab, "ADD", &pod, &conf(), time));
        let attachment = pod.attachment("eth0");
        if round % 3 == 0 {
            // The namespace goes with its pod, and what was in it.
            pod.delete().unwrap();
        }
        lab.del(&attachment, &conf());
        if round % 3 != 0 {
            assert!(try_link(&pod, "eth0").is_none(), "killed after {time:?}");
            pod.delete().unwrap();
        }
        assert!(eventually(Duration::from_secs(5), || ports(&lab.node, "br0").len() == 1), "{time:?}");
        assert_eq!(lab.reservations().len(), 2, "killed after {time:?}");
        let rules = lab.node.sh("nft list ruleset").unwrap();
        assert!(!rules.contains("killed-"), "killed after {time:?}\n{rules}");
    }
    assert!(killed > 10, "only {killed} of {ROUNDS} were still running");
    after(&lab, &before, "killed ADDs");
}

#[test]
fn a_killed_add_can_be_tried_again_after_del() {
    let (lab, _) = lab();
    let pod = lab.pod(&name("again", 0));
    for time in times(&lab, "ADD").into_iter().step_by(6) {
        kill(&lab, "ADD", &pod, &conf(), time);
        lab.del(&pod.attachment("eth0"), &conf());
        lab.add(&pod.attachment("eth0"), &conf());
        pod.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
        lab.del(&pod.attachment("eth0"), &conf());
    }
}

/// The first ADD of all, when the bridge is being made: whatever state it is left in, the next ADD goes on from there.
#[test]
fn the_first_add_killed_at_any_moment() {
    for round in 0..20 {
        let lab = Lab::new();
        let pod = lab.pod(&name("first", round));
        kill(&lab, "ADD", &pod, &conf(), Duration::from_micros(300) * u32::try_from(round).unwrap());
        lab.del(&pod.attachment("eth0"), &conf());
        let result = lab.add(&pod.attachment("eth0"), &conf());
        pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -6 -c 1 -W 2 fd00:1::1").unwrap();
        lab.check(&pod.attachment("eth0"), &common::with_prev(&conf(), &result));
    }
}

#[test]
fn del_killed_at_any_moment() {
    let (lab, before) = lab();
    let mut killed = 0;
    for (round, time) in times(&lab, "DEL").into_iter().enumerate().step_by(2) {
        let pod = lab.pod(&name("DEL", round));
        lab.add(&pod.attachment("eth0"), &conf());
        killed += usize::from(kill(&lab, "DEL", &pod, &conf(), time));
        lab.del(&pod.attachment("eth0"), &conf());
        assert!(try_link(&pod, "eth0").is_none(), "killed after {time:?}");
        assert_eq!(
            (ports(&lab.node, "br0").len(), lab.reservations().len()),
            (1, 2),
            "killed after {time:?}"
        );
        pod.delete().unwrap();
    }
    assert!(killed > 5, "only {killed} were still running");
    after(&lab, &before, "killed DELs");
}

/// Killed while IPAM takes its time: the order of the steps is such that the DEL finds what there is.
#[test]
fn killed_while_ipam_works() {
    let stub = Stub::assigning("1.0.0", &["10.1.0.2/24"]);
    let lab = Lab::with_stub(&stub);
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    lab.add(&lab.pod("first").attachment("eth0"), &conf);
    let before = lab.snapshot();
    stub.answer(
        "ADD",
        "sleep 0.3; echo '{\"cniVersion\": \"1.0.0\", \"ips\": [{\"address\": \"10.1.0.3/24\"}]}'",
    );
    let pod = lab.pod(&name("slow", 0));
    stub.calls();
    assert!(kill(&lab, "ADD", &pod, &conf, Duration::from_millis(100)));
    lab.del(&pod.attachment("eth0"), &conf);
    assert_eq!(stub.calls(), ["ADD", "DEL"]);
    unchanged(&lab.node, &before, "killed while IPAM worked");
}
