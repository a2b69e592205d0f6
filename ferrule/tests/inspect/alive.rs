//! Containers that come to life while gc works.

use std::fs::File;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};

use crate::fixture::{Fixture, command, network};

/// The store is locked when gc comes to the first leak. Until the lock is released, the container lives again.
#[test]
fn gc_asks_again_under_the_lock() {
    let f = Fixture::new();
    let name = "inspect-again";
    f.add(Origin::Ours, name, 18101).pod.delete().unwrap();
    assert!(eventually(TIMEOUT, || f.leaks().len() == 7), "{:#?}", f.leaks());
    let before = Snapshot::take(&f.node).unwrap();
    let lock = f.node.run(|| File::open("/var/lib/cni/networks/ours/lock").unwrap()).unwrap();
    lock.lock().unwrap();
    let gc = f.node.run(|| command("gc --yes").stdout(Stdio::piped()).spawn().unwrap()).unwrap();
    let waits = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("->") && line.contains(&format!(" {} ", gc.id())))
    };
    assert!(eventually(TIMEOUT, waits));
    let _pod = f.node.pod(name).unwrap();
    drop(lock);
    let output = gc.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("0 of 7 leaks removed"), "{said}");
    assert!(said.contains(&format!("namespace /run/netns/{name} exists")), "{said}");
    assert_eq!(before.diff(&Snapshot::take(&f.node).unwrap()), "", "{said}");
}

/// Containers come and go, some without DEL, while gc runs all the time. Each one that lives is complete.
#[test]
fn gc_and_add_at_once() {
    const ROUNDS: u16 = 4;
    let f = Fixture::new();
    let is_over = AtomicBool::new(false);
    let mut living = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                f.says("gc --yes");
            }
        });
        for round in 0..ROUNDS {
            for (number, origin) in [(0, Origin::Ours), (1, Origin::Reference)] {
                let port = 18200 + 4 * round + 2 * number;
                living.push((origin, f.add(origin, &format!("inspect-race-live-{port}"), port)));
                f.add(origin, &format!("inspect-race-dead-{port}"), port + 1).pod.delete().unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (origin, container) in &living {
        // The reference's CHECK demands rules for IPv6 that its ADD does not make.
        f.runtime(Origin::Ours).check(&network(*origin), &container.attachment).unwrap();
    }
    let is_clean = eventually(TIMEOUT, || {
        f.says("gc --yes");
        let left = f.node.sh("ls /var/lib/cni/networks/*; nft list ruleset; ip link").unwrap();
        f.leaks().is_empty() && !left.contains("race-dead")
    });
    assert!(is_clean, "{:#?}", f.leaks());
}
