//! What the daemon costs, with 1,000 devices in 10 resources: size, memory, CPU at rest, and the times that a pod may notice.
//!
//! Run it as root with `cargo bench -p ferrule-nic`. It measures the release program in `FERRULE_BIN_DIR`, else what
//! `./build.sh` makes. Times are only reported.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/daemon/lab.rs"]
mod lab;

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cni_lab::{Place as _, TIMEOUT, bin_dir_for};
use ferrule_fake_kubelet::{Knobs, Kubelet};

use lab::{Daemon, Lab, crowd_resource};

/// 100 changes of links in a second.
const STORM: &str = "while :; do
    for n in 1 2 3 4 5 6 7 8 9 10; do echo link set d1-$n mtu 14$((RANDOM % 90 + 10)); done | ip -batch -
    sleep 0.1
done";

fn main() {
    let program = bin_dir_for(|_| false).unwrap().join("ferrule-nic");
    println!("size: {} bytes", fs::metadata(&program).unwrap().len());
    let lab = Lab::of(program);
    lab.crowd();
    let mut kubelet = lab.kubelet(Knobs::new());
    let mut daemon = lab.daemon("");
    lab.crowded(&kubelet);
    memory("memory with 1,000 devices", &mut daemon);

    sleep(Duration::from_secs(2));
    let (ticks, wakes) = (cpu(&daemon.pid()), daemon.status("voluntary_ctxt_switches"));
    sleep(Duration::from_secs(20));
    let wakes = daemon.status("voluntary_ctxt_switches") - wakes;
    println!("20 seconds at rest: {} ms of CPU, {wakes} times awake", (cpu(&daemon.pid()) - ticks) * 10);

    let mut odd = false;
    report("new list", 30, || {
        odd = !odd;
        new_list(&lab, &kubelet, odd)
    });
    let mut command = Command::new("bash");
    command.args(["-c", STORM]);
    let storm = lab.node.spawn(command).unwrap();
    let (began, ticks) = (Instant::now(), cpu(&daemon.pid()));
    report("new list under 100 changes of links a second", 100, || {
        odd = !odd;
        sleep(Duration::from_millis(73));
        new_list(&lab, &kubelet, odd)
    });
    let used = (cpu(&daemon.pid()) - ticks) * 10;
    println!("CPU meanwhile: {used} ms in {:?}", began.elapsed());
    drop(storm);
    memory("memory after that", &mut daemon);

    let one = Lab::of(bin_dir_for(|_| false).unwrap().join("ferrule-nic"));
    let mut one_kubelet = one.kubelet(Knobs::new());
    let _daemon = one.daemon("");
    one.allocatable(&one_kubelet, 2);
    report("Register after a new kubelet.sock, one resource", 20, || register(&mut one_kubelet, lab::NIC));
    report("Register after a new kubelet.sock, all of 10 resources", 20, || {
        register(&mut kubelet, &crowd_resource(9))
    });
}

fn memory(what: &str, daemon: &mut Daemon) {
    let [all, anonymous, most] = ["VmRSS", "RssAnon", "VmHWM"].map(|key| daemon.status(key));
    println!("{what}: {all} kB, of them {anonymous} kB anonymous; {most} kB at most");
}

/// User and system time in ticks of 10 ms.
fn cpu(pid: &u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// From the start of `ip` to the list. A link with an address is not for pods.
fn new_list(lab: &Lab, kubelet: &Kubelet, add: bool) -> Duration {
    let resource = crowd_resource(7);
    let before = kubelet.lists(&resource);
    let began = Instant::now();
    lab.sh(&format!("ip address {} 10.0.0.1/24 dev d7-1", if add { "add" } else { "del" }));
    until(|| kubelet.lists(&resource) > before);
    began.elapsed()
}

/// From the new socket of the kubelet to the call. The kubelet was away before.
fn register(kubelet: &mut Kubelet, resource: &str) -> Duration {
    kubelet.kill();
    sleep(Duration::from_millis(500));
    let before = kubelet.registrations(resource);
    let began = Instant::now();
    kubelet.start();
    until(|| kubelet.registrations(resource) > before);
    began.elapsed()
}

fn until(mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < TIMEOUT, "nothing happens");
        sleep(Duration::from_micros(200));
    }
}

fn report(what: &str, count: usize, measure: impl FnMut() -> Duration) {
    let mut times: Vec<Duration> = std::iter::repeat_with(measure).take(count).collect();
    times.sort();
    println!("{what}: median {:?}, at most {:?} of {count}", times[count / 2], times[count - 1]);
}
