//! A store that another process has locked, and one on a read-only file system.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::{self, File};
use std::process::Command;
use std::thread;

use common::{Net, OURS, listing, run, run_bytes};
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
        run(net.command(OURS, "CHECK", "c1", "eth0"), &check).ok();
        run(net.command(OURS, "STATUS", "", ""), &net.conf).ok();
        for busy in [add, gc] {
            let (code, msg) = busy.join().unwrap().error();
            assert_eq!(code, 11, "{msg}");
            assert!(
                msg.contains("/net/lock has been locked for 10 seconds by ") && msg.contains(&holder),
                "{msg}"
            );
        }
        let del = del.join().unwrap();
        del.ok();
        assert!(del.stderr.contains(&holder), "{del:?}");
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
fn read_only(net: &Net, verb: &str, id: &str) -> common::Outcome {
    let data = net.root().join("data");
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" && exec \"$2\"";
    let template = net.command(OURS, verb, id, "eth0");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(data).arg(OURS);
    for (name, value) in template.get_envs() {
        command.env(name, value.unwrap());
    }
    run_bytes(command, net.conf.to_string().as_bytes())
}

#[test]
fn read_only_file_system() {
    let net = Net::of("10.0.0.0/24").with(|conf| conf["cniVersion"] = "1.1.0".into());
    net.add("c1").result();
    let before = listing(net.root());
    let (code, msg) = read_only(&net, "DEL", "c1").error();
    assert_eq!(code, 5);
    assert!(msg.contains("data/net/10.0.0.2: Read-only file system"), "{msg}");
    read_only(&net, "DEL", "c2").ok();
    let (code, msg) = read_only(&net, "ADD", "c2").error();
    assert_eq!(code, 5);
    assert!(msg.contains("data/net: Read-only file system"), "{msg}");
    let (code, msg) = read_only(&net, "STATUS", "").error();
    assert_eq!(code, 50);
    assert!(msg.contains("data/net: Read-only file system"), "{msg}");
    assert_eq!(listing(net.root()), before);
    run(net.command(OURS, "STATUS", "", ""), &net.conf).ok();
    // A missing lock file cannot be created either. DEL continues without it and finds nothing to remove.
    fs::remove_file(net.store().join("lock")).unwrap();
    read_only(&net, "DEL", "c2").ok();
}
