//! How long a large cluster takes, and how much memory: `cargo test -p ferrule-node-policy --release --test rules -- --ignored --nocapture`.

use std::time::Instant;

use ferrule_node_policy::model::*;
use ferrule_node_policy::{Change, Compiler};

use crate::kit::*;

/// The memory of this process that is in use, in kB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

struct Shape {
    pods: u32,
    local: u32,
    policies: u32,
    spaces: u32,
}

fn a_pod(shape: &Shape, number: u32) -> Pod {
    let space = number % shape.spaces;
    let app = number / shape.spaces % (shape.policies / shape.spaces).max(1);
    let mut pod = pod(&format!("space-{space}"), &format!("app-{app}-6bdf8c6c5d-{number:05}"), "", 0);
    pod.labels = labels(&format!(
        "app=app-{app} tier=tier-{} pod-template-hash=6bdf8c6c5d-{space}-{app} team=team-{space}",
        app % 3
    ));
    pod.addresses.v4 = Some((0x0a00_0000 + number + 1).into());
    pod.addresses.v6 = Some((0xfd00_u128 << 112 | u128::from(number + 1)).into());
    pod.local = number.is_multiple_of((shape.pods / shape.local).max(1));
    named(pod, "http", Protocol::Tcp, 8080)
}

fn a_policy(shape: &Shape, number: u32) -> NetworkPolicy {
    let (space, app) = (number % shape.spaces, number / shape.spaces);
    let other = Peer {
        pods: Some(select(&format!("app=app-{}", app + 1))),
        namespaces: Some(select(&format!("team=space-{}", (space + 1) % shape.spaces))),
        ..Peer::default()
    };
    let ingress = rule(
        &[pods(&format!("tier=tier-{}", app % 3)), other.clone()],
        &[port("TCP", 80), port_named("TCP", "http")],
    );
    let egress = rule(
        &[other, block("192.0.2.0/24", &["192.0.2.128/25"])],
        &[port("UDP", 53), ports("TCP", 8000, 8100)],
    );
    policy(
        &format!("space-{space}"),
        &format!("policy-{app}"),
        &format!("app=app-{app}"),
        &[ingress],
        &[egress],
    )
}

fn timed(what: &str, compiler: &mut Compiler, act: impl FnOnce(&mut Compiler)) -> Change {
    let start = Instant::now();
    act(compiler);
    let change = compiler.update();
    let took = start.elapsed();
    let elements: usize = change.elements.values().map(|set| set.added.len() + set.removed.len()).sum();
    println!(
        "  {what}: {:.2} ms; new sets {}, chains {}, maps {}, elements {elements}",
        took.as_secs_f64() * 1e3,
        change.new_sets.len(),
        change.new_chains.len(),
        change.maps.len(),
    );
    change
}

fn measure(shape: &Shape) {
    let before = resident();
    let mut compiler = Compiler::default();
    println!("{} pods, {} of them local, {} policies", shape.pods, shape.local, shape.policies);
    timed("from nothing", &mut compiler, |compiler| {
        for space in 0..shape.spaces {
            compiler.set_namespace(&Namespace {
                name: format!("space-{space}"),
                labels: labels(&format!("team=space-{space}")),
            });
        }
        (0..shape.pods).for_each(|number| compiler.set_pod(&a_pod(shape, number)));
        (0..shape.policies).for_each(|number| compiler.set_policy(a_policy(shape, number)));
    });
    println!("  memory: {} kB more than before", resident().saturating_sub(before));
    let (number, far) =
        (shape.pods / 2 / (shape.pods / shape.local) * (shape.pods / shape.local), shape.pods - 1);
    timed("a local pod goes", &mut compiler, |compiler| {
        let pod = a_pod(shape, number);
        compiler.remove_pod(&pod.namespace, &pod.name);
    });
    timed("and comes", &mut compiler, |compiler| compiler.set_pod(&a_pod(shape, number)));
    timed("labels of a pod", &mut compiler, |compiler| {
        let mut pod = a_pod(shape, far);
        pod.labels.insert("app".into(), "app-0".into());
        compiler.set_pod(&pod);
    });
    timed("labels of a namespace", &mut compiler, |compiler| {
        compiler.set_namespace(&Namespace { name: "space-1".into(), labels: labels("team=none") });
    });
    timed("a policy goes", &mut compiler, |compiler| compiler.remove_policy("space-0", "policy-0"));
    timed("and comes", &mut compiler, |compiler| compiler.set_policy(a_policy(shape, 0)));
    timed("a policy for each pod of a namespace, from all", &mut compiler, |compiler| {
        let everybody = policy("space-0", "everybody", "", &[rule(&[spaces("")], &[])], &[]);
        compiler.set_policy(only(everybody, "Ingress"));
    });
}

#[test]
#[ignore = "a measurement, in a release build"]
fn large_clusters() {
    measure(&Shape { pods: 1280, local: 1280, policies: 640, spaces: 40 });
    measure(&Shape { pods: 10_000, local: 250, policies: 1000, spaces: 50 });
    measure(&Shape { pods: 10_000, local: 250, policies: 1000, spaces: 1 });
}
