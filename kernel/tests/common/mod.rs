//! Helpers for tests in a network namespace.
#![allow(dead_code)] // not every test program uses all helpers

use std::process::Command;
use std::thread;

use ferrule_kernel::netlink::Socket;
use nix::sched::{CloneFlags, unshare};

/// Runs `work` on a new thread in a new network namespace.
pub(crate) fn isolated(work: impl FnOnce(&mut Socket) + Send) {
    let outcome = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("create a network namespace (these tests need root)");
            work(&mut Socket::netfilter().unwrap());
        });
        thread.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// The output of `nft list ruleset`.
pub(crate) fn ruleset() -> String {
    let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a shell script in the namespace of the calling thread.
pub(crate) fn sh(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}
