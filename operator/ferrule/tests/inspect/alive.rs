//! Containers that come to life while gc works.

use std::fs::File;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};

use crate::fixture::{Fixture, network};

/// Leaves seven leaks of a container, and calls `change` while gc waits for the store's lock at the first one. Returns what gc says.
fn changed_meanwhile(f: &Fixture, name: &str, port: u16, change: impl FnOnce()) -> String {
    f.add(Origin::Ours, name, port).pod.delete().unwrap();
    assert!(eventually(TIMEOUT, || f.leaks().len() == 7), "{:#?}", f.leaks());
    let lock = f.node.run(|| File::open("/var/lib/cni/networks/ours/lock").unwrap()).unwrap();
    lock.lock().unwrap();
    let gc = f.node.run(|| f.command("gc --yes").stdout(Stdio::piped()).spawn().unwrap()).unwrap();
    let waits = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("->") && line.contains(&format!(" {} ", gc.id())))
    };
    assert!(eventually(TIMEOUT, waits));
    change();
    drop(lock);
    let output = gc.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// Until the lock is released, the container lives again.
#[test]
fn gc_asks_again_under_the_lock() {
    let f = Fixture::new();
    let name = "inspect-again";
    let (mut before, mut pod) = (None, None);
    let said = changed_meanwhile(&f, name, 18101, || {
        before = Some(Snapshot::take(&f.node).unwrap());
        pod = Some(f.node.pod(name).unwrap());
    });
    assert!(said.contains("0 of 7 leaks removed"), "{said}");
    assert!(said.contains(&format!("namespace /run/netns/{name} exists")), "{said}");
    assert_eq!(before.unwrap().diff(&Snapshot::take(&f.node).unwrap()), "", "{said}");
}

/// A namespace that gc has read already gets the address.
#[test]
fn gc_reads_known_namespaces_again() {
    let f = Fixture::new();
    let known = f.node.pod("inspect-known").unwrap();
    let said = changed_meanwhile(&f, "inspect-changed", 18102, || {
        known.sh("ip address add 10.212.0.2/32 dev lo").unwrap();
    });
    assert!(said.contains("namespace /run/netns/inspect-known has"), "{said}");
    assert!(said.contains("0 of 7 leaks removed"), "{said}");
}

/// The owner of host ports may be gone when gc comes to it.
#[test]
fn gc_says_what_another_process_has_removed() {
    let f = Fixture::new();
    let said = changed_meanwhile(&f, "inspect-gone", 18103, || {
        f.node.sh("nft delete table inet cni_portmap").unwrap();
    });
    assert!(
        said.contains("already gone: host port 18103/tcp") && said.contains("6 of 7 leaks removed"),
        "{said}"
    );
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
