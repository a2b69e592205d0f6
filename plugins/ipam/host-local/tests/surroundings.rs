//! A store that another process has locked, and one on a read-only file system.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::{self, File};
use std::thread;

use cni_lab::Machine;
use cni_lab::testing::{Expect as _, in_place_of_the_plugin, require_root, run_command, stdin_file};
use cni_runner::Output;
use common::{Net, OURS, listing, run};
use serde_json::json;

/// ADD and GC fail with code 11 and name the lock's holder. DEL succeeds without the lock. CHECK and STATUS
/// need no lock.
#[test]
fn lock_that_is_never_released() {
    let net = Net::of("10.0.0.0/24").with(|conf| conf["cniVersion"] = "1.1.0".into());
    let ips = net.add("c1").ips();
    net.add("c2").result();
    let lock = File::open(net.store().join("lock")).unwrap();
    lock.lock().unwrap();
    let holder = format!("process {} (", std::process::id());
    thread::scope(|scope| {
        let add = scope.spawn(|| net.add("c3"));
        let gc = scope.spawn(|| net.gc(json!([])));
        let del = scope.spawn(|| net.del("c2"));
        let mut check = net.conf.clone();
        check["prevResult"] = json!({ "ips": [{ "address": format!("{}/24", ips[0]) }] });
        run(net.exec(OURS, "CHECK", "c1", "eth0"), &check).ok();
        net.exec(OURS, "STATUS", "", "").run().unwrap().ok();
        for busy in [add, gc] {
            let (code, msg) = busy.join().unwrap().error().pair();
            assert_eq!(code, 11, "{msg}");
            assert!(
                msg.contains("/net/lock has been locked for 10 seconds by ") && msg.contains(&holder),
                "{msg}"
            );
        }
        let del = del.join().unwrap();
        del.ok();
        assert!(del.stderr_text().contains(&holder), "{del:?}");
    });
    drop(lock);
    assert_eq!(net.reservations().into_keys().collect::<Vec<_>>(), ips);
    net.add("c2").result();
}

/// A waiting command gets the lock as soon as it is released.
#[test]
fn lock_that_is_released_in_time() {
    let net = Net::of("10.0.0.0/24");
    net.add("c1").result();
    let lock = File::open(net.store().join("lock")).unwrap();
    lock.lock().unwrap();
    thread::scope(|scope| {
        let add = scope.spawn(|| net.add("c2"));
        while !fs::read_to_string("/proc/locks").unwrap().contains("-> FLOCK") {
            thread::yield_now();
        }
        assert!(!net.files().contains_key("10.0.0.3"));
        lock.unlock().unwrap();
        assert_eq!(add.join().unwrap().ips(), ["10.0.0.3"]);
    });
}

/// Calls a verb with the network's data mounted read-only, in its own mount namespace. Needs root.
fn read_only(net: &Net, verb: &str, id: &str) -> Output {
    require_root();
    let data = net.root().join("data");
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" && exec \"$2\"";
    let exec = net.exec(OURS, verb, id, "eth0");
    let args = ["-m", "sh", "-c", script, "sh", data.to_str().unwrap(), OURS];
    run_command(&Machine, in_place_of_the_plugin("unshare", &args, &exec).stdin(stdin_file(&exec)))
}

#[test]
fn read_only_file_system() {
    let net = Net::of("10.0.0.0/24").with(|conf| conf["cniVersion"] = "1.1.0".into());
    net.add("c1").result();
    let before = listing(net.root());
    let (code, msg) = read_only(&net, "DEL", "c1").error().pair();
    assert_eq!(code, 5);
    assert!(msg.contains("data/net/10.0.0.2: Read-only file system"), "{msg}");
    read_only(&net, "DEL", "c2").ok();
    let (code, msg) = read_only(&net, "ADD", "c2").error().pair();
    assert_eq!(code, 5);
    assert!(msg.contains("data/net: Read-only file system"), "{msg}");
    let (code, msg) = read_only(&net, "STATUS", "").error().pair();
    assert_eq!(code, 50);
    assert!(msg.contains("data/net: Read-only file system"), "{msg}");
    assert_eq!(listing(net.root()), before);
    net.exec(OURS, "STATUS", "", "").run().unwrap().ok();
    // A missing lock file cannot be created either. DEL continues without it and finds nothing to remove.
    fs::remove_file(net.store().join("lock")).unwrap();
    read_only(&net, "DEL", "c2").ok();
}
