//! Helpers for tests in a network namespace.
#![allow(dead_code)] // not every test program uses all helpers

use std::process::Command;

use ferrule_kernel::netlink::Socket;

/// Runs `work` in a new network namespace, with a netfilter socket.
pub(crate) fn isolated(work: impl FnOnce(&mut Socket) + Send) {
    cni_lab::testing::isolated(|| work(&mut Socket::netfilter().unwrap()));
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
