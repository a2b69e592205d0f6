//! The cost of 3,000 nodes. Needs time, and a machine with nothing else to do.

use std::thread::sleep;
use std::time::Duration;

use crate::lab::{Cluster, node_object, node_path};

const NODES: usize = 3000;
const TIME: Duration = Duration::from_secs(10);

/// User and system time of a process, in milliseconds.
fn cpu(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
}

/// A daemon with so many nodes more, at rest.
fn started(program: &str, cidr: impl Fn(usize) -> String) -> Cluster {
    let mut cluster = Cluster::of(program.into());
    for number in 0..NODES {
        let mut object = node_object(&["192.0.2.50"], &[&cidr(number)]);
        // As long as a real one.
        object["status"]["images"] = serde_json::json!("x".repeat(20_000));
        cluster.store.put(&node_path(&format!("n{number}")), object);
    }
    cluster.a.start("--service-cidr 10.96.0.0/12");
    cluster.a.until("a conflist", || cluster.a.conflist().is_some());
    sleep(Duration::from_secs(3));
    cluster
}

fn report(what: &str, cluster: &Cluster, work: impl FnOnce()) {
    let before = cpu(cluster.a.pid());
    work();
    println!("{what}: {} ms of CPU in {TIME:?}", cpu(cluster.a.pid()) - before);
}

/// Set FERRULE_NODES to several programs, separated by commas, to compare them.
#[test]
#[ignore = "measures: give --nocapture"]
fn the_cost_of_3000_nodes() {
    let programs = std::env::var("FERRULE_NODES").unwrap_or(env!("CARGO_BIN_EXE_ferrule-node").to_owned());
    for program in programs.split(',') {
        println!("{program}");
        let cluster = started(program, |number| format!("10.{}.{}.0/24", 128 + number / 250, number % 250));
        println!("memory at most: {} kB", cluster.a.status("VmHWM"));
        report("10 foreign route changes a second", &cluster, || {
            cluster.a.sh("for i in $(seq 50); do ip route add 172.31.0.0/16 dev eth0; sleep 0.1
                ip route del 172.31.0.0/16; sleep 0.1; done");
        });
        let cluster = started(program, |number| format!("10.{}.{}.0/24", 96 + number / 250, number % 250));
        report("refused nodes, at rest", &cluster, || sleep(TIME));
        report("refused nodes, one other changes ten times", &cluster, || {
            for round in 0..10 {
                let address = format!("192.0.2.{}", 60 + round);
                cluster.store.put(&node_path("b"), node_object(&[&address], &["10.244.2.0/24"]));
                sleep(TIME / 10);
            }
        });
    }
}
