//! How much processor time large clusters take, and how much memory: `cargo bench -p ferrule-node-policy`.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../../tests/rules/interpreter.rs"]
mod interpreter;
#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../../tests/rules/kit.rs"]
mod kit;

use std::process::Command;
use std::time::Duration;

use ferrule_node_policy::model::*;
use ferrule_node_policy::{Change, Compiler};
use nix::time::{ClockId, clock_gettime};

use kit::*;

/// How often each kind of change is measured.
const ROUNDS: u32 = 1000;

/// The memory of this process that is in use, in kB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

const SHAPES: [Shape; 4] = [
    Shape { pods: 1280, local: 1280, policies: 640, spaces: 40 },
    Shape { pods: 10_000, local: 250, policies: 1000, spaces: 50 },
    Shape { pods: 10_000, local: 250, policies: 1000, spaces: 1 },
    Shape { pods: 1000, local: 1000, policies: 100, spaces: 10 },
];

struct Shape {
    pods: u32,
    local: u32,
    policies: u32,
    spaces: u32,
}

impl Shape {
    fn apps(&self) -> u32 {
        (self.policies / self.spaces).max(1)
    }

    /// Of the pod and the namespace with these numbers.
    fn pod(&self, number: u32) -> Pod {
        let space = number % self.spaces;
        let app = number / self.spaces % self.apps();
        let name = format!("app-{app}-6bdf8c6c5d-{number:05}");
        let mut pod = pod(&format!("space-{space}"), &name, "", 0);
        pod.labels = labels(&format!(
            "app=app-{app} tier=tier-{} pod-template-hash=6bdf8c6c5d-{space}-{app} team=team-{space}",
            app % 3
        ));
        pod.addresses.v4 = Some((0x0a00_0000 + number + 1).into());
        pod.addresses.v6 = Some((0xfd00_u128 << 112 | u128::from(number + 1)).into());
        pod.local = number < self.local;
        named(pod, "http", Protocol::Tcp, 8080)
    }

    fn namespace(&self, number: u32, team: &str) -> Namespace {
        Namespace {
            name: format!("space-{number}"),
            labels: labels(&format!("team={team}-{number}")),
            mode: None,
        }
    }

    fn policy(&self, number: u32, port_number: i32) -> NetworkPolicy {
        let (space, app) = (number % self.spaces, number / self.spaces);
        let other = Peer {
            pods: Some(select(&format!("app=app-{}", (app + 1) % self.apps()))),
            namespaces: Some(select(&format!("team=space-{}", (space + 1) % self.spaces))),
            ..Peer::default()
        };
        let ingress = rule(
            &[pods(&format!("tier=tier-{}", app % 3)), other.clone()],
            &[port("TCP", port_number), port_named("TCP", "http")],
        );
        let egress = rule(
            &[other, block("192.0.2.0/24", &["192.0.2.128/25"])],
            &[port("UDP", 53), ports("TCP", 8000, 8100)],
        );
        let selected = format!("app=app-{app}");
        policy(&format!("space-{space}"), &format!("policy-{app}"), &selected, &[ingress], &[egress])
    }
}

/// How long this process has been running on a processor. The compiler never waits, so on a machine without other work it is the time
/// that passes.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

fn timed(compiler: &mut Compiler, act: impl FnOnce(&mut Compiler)) -> (Duration, Change) {
    let start = processor_time();
    act(compiler);
    let change = compiler.update();
    (processor_time() - start, change)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// The cluster from nothing, with the memory that it takes.
fn compile(shape: &Shape) -> Compiler {
    let before = resident();
    let mut compiler = Compiler::default();
    let Shape { pods, local, policies, spaces } = shape;
    println!("{pods} pods, {local} of them local, {policies} policies in {spaces} namespaces");
    let (time, change) = timed(&mut compiler, |compiler| {
        (0..*spaces).for_each(|number| compiler.set_namespace(&shape.namespace(number, "space")));
        (0..*pods).for_each(|number| compiler.set_pod(&shape.pod(number)));
        (0..*policies).for_each(|number| compiler.set_policy(shape.policy(number, 80)));
    });
    let memory = resident().saturating_sub(before) as f64 / 1e3;
    println!("  from nothing: {}, {memory:.0} MB with the change itself", milliseconds(time));
    println!(
        "  chains {}, sets {}, maps {}",
        change.new_chains.len(),
        change.new_sets.len(),
        change.maps.len()
    );
    compiler
}

/// Makes one change and its opposite in turns, each of another object.
fn repeat(what: &str, compiler: &mut Compiler, act: impl Fn(&mut Compiler, u32, bool)) {
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|round| {
            let (time, change) = timed(compiler, |compiler| act(compiler, round / 2, round % 2 == 0));
            assert!(!change.is_empty(), "{what}, round {round}");
            time
        })
        .collect();
    times.sort_unstable();
    let at = |percent: usize| times.get((times.len() - 1) * percent / 100).copied().unwrap_or_default();
    let [median, p99, longest] = [50, 99, 100].map(|percent| milliseconds(at(percent)));
    println!("  {what}: median {median}, p99 {p99}, longest {longest}");
}

fn changes(shape: &Shape, compiler: &mut Compiler) {
    repeat("a local pod goes or comes", compiler, |compiler, number, goes| {
        let pod = shape.pod(number % shape.local);
        if goes { compiler.remove_pod(&pod.namespace, &pod.name) } else { compiler.set_pod(&pod) }
    });
    repeat("the labels of a pod", compiler, |compiler, number, is_changed| {
        let mut pod = shape.pod(number % shape.pods);
        if is_changed {
            pod.labels.insert("app".into(), format!("app-{}", (number / shape.spaces + 1) % shape.apps()));
            pod.labels.insert("tier".into(), "tier-x".into());
        }
        compiler.set_pod(&pod);
    });
    repeat("the labels of a namespace", compiler, |compiler, number, is_changed| {
        let team = if is_changed { "none" } else { "space" };
        compiler.set_namespace(&shape.namespace(number % shape.spaces, team));
    });
    repeat("a policy goes or comes", compiler, |compiler, number, goes| {
        let policy = shape.policy(number % shape.policies, 80);
        if goes {
            compiler.remove_policy(&policy.namespace, &policy.name);
        } else {
            compiler.set_policy(policy);
        }
    });
    repeat("a port of a policy", compiler, |compiler, number, is_changed| {
        compiler.set_policy(shape.policy(number % shape.policies, if is_changed { 81 } else { 80 }));
    });
    let admin = |number: u32, peers: &str| ClusterNetworkPolicy {
        name: format!("admin-{number}"),
        tier: "Admin".into(),
        subject: ClusterSubject::default(),
        ingress: vec![ClusterRule {
            action: "Deny".into(),
            peers: vec![ClusterPeer::Pods(NamespacedPods {
                namespaces: select(&format!("team=space-{}", number % shape.spaces)),
                pods: select(peers),
            })],
            ..ClusterRule::default()
        }],
        ..ClusterNetworkPolicy::default()
    };
    repeat("a ClusterNetworkPolicy for all pods", compiler, |compiler, number, comes| {
        if comes {
            compiler.set_cluster_policy(admin(number, ""));
        } else {
            compiler.remove_cluster_policy(&format!("admin-{number}"));
        }
    });
    repeat("a policy for each pod of a namespace, from all pods", compiler, |compiler, number, comes| {
        let space = format!("space-{}", number % shape.spaces);
        if comes {
            let everybody = policy(&space, "everybody", "", &[rule(&[spaces("")], &[])], &[]);
            compiler.set_policy(only(everybody, "Ingress"));
        } else {
            compiler.remove_policy(&space, "everybody");
        }
    });
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if !words.iter().any(|word| word == "--bench") {
        // `cargo test --all-targets` runs benchmarks too.
        println!("nothing measured: use cargo bench");
        return;
    }
    let Some(number) = words.iter().find_map(|word| word.parse::<usize>().ok()) else {
        // A process for each: what one has freed would hide the next one's memory.
        for number in 0..SHAPES.len() {
            let program = std::env::current_exe().unwrap();
            let status = Command::new(program).args(["--bench", &number.to_string()]).status().unwrap();
            assert!(status.success(), "{status}");
        }
        return;
    };
    let shape = &SHAPES[number];
    let mut compiler = compile(shape);
    if shape.pods == 1000 {
        changes(shape, &mut compiler);
    }
}
