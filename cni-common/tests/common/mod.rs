//! A network namespace for a test.
#![allow(dead_code)] // each test program uses some of it

use std::process::Command;
use std::thread;

use cni_common::netlink::Socket;
use nix::sched::{CloneFlags, unshare};

/// Runs the work on a thread of its own in a new network namespace.
pub(crate) fn isolated(work: impl FnOnce(&mut Socket) + Send) {
    let outcome = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; these tests need root");
            work(&mut Socket::netfilter().unwrap());
        });
        thread.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// What `nft` lists.
pub(crate) fn ruleset() -> String {
    let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// A shell script in the namespace.
pub(crate) fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}
