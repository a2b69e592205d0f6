//! How long the views take on a node with 500 containers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::testing::Origin;
use cni_lab::{Place as _, bin_dir};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::fixture::Fixture;

const VIEWS: [&str; 9] = [
    "pods",
    "pods --json",
    "addresses",
    "ports",
    "shaping",
    "links",
    "devices",
    "leaks",
    "why inspect-speed-0",
];
const CONTAINERS: u16 = 500;
const RUNS: usize = 20;
const AT_ONCE: u16 = 4;

/// Prints the figures that operator/inspect/README.md has. Measures the static program.
#[test]
#[ignore = "benchmark: cargo test -p ferrule --test inspect speed -- --ignored --nocapture"]
fn of_the_views() {
    let program = bin_dir().unwrap().join("ferrule");
    let f = Fixture::new();
    let add = |number: u16| f.add(Origin::Ours, &format!("inspect-speed-{number}"), 20_000 + number);
    let _first = add(0);
    let _others: Vec<_> = thread::scope(|scope| {
        let share = |share: u16| (1 + share..CONTAINERS).step_by(AT_ONCE.into()).map(add).collect::<Vec<_>>();
        let threads: Vec<_> = (0..AT_ONCE).map(|number| scope.spawn(move || share(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    println!("{CONTAINERS} containers      median, shortest wall time; median processor time");
    for view in VIEWS {
        let runs = (0..RUNS).map(|_| f.node.run(|| once(&program, view)).unwrap());
        let (mut wall, mut processor): (Vec<f64>, Vec<f64>) = runs.unzip();
        wall.sort_by(f64::total_cmp);
        processor.sort_by(f64::total_cmp);
        let middle = RUNS / 2;
        println!("{view:20} {:6.1} ms {:6.1} ms {:6.1} ms", wall[middle], wall[0], processor[middle]);
    }
}

/// Wall time and processor time in milliseconds.
fn once(program: &Path, view: &str) -> (f64, f64) {
    let used = || {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Duration::from_micros(microseconds.try_into().unwrap())
    };
    let (before, start) = (used(), Instant::now());
    let status = Command::new(program).arg("inspect").args(view.split(' ')).stdout(Stdio::null()).status();
    assert!(status.unwrap().success(), "{view}");
    (start.elapsed().as_secs_f64() * 1e3, (used() - before).as_secs_f64() * 1e3)
}
