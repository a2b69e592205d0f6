//! Network namespaces for the masquerading tests, and helpers that run programs in them.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use nix::sched::{CloneFlags, setns};
use tempfile::TempDir;

/// A thread's network namespace, which another thread can enter.
pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn current() -> Self {
        Namespace(File::open("/proc/thread-self/ns/net").unwrap())
    }

    pub(crate) fn enter(&self) {
        setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
    }
}

fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs the program, which must succeed, and returns its stdout.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = output(program, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {errors}", args.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Whether the program succeeds.
pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    output(program, args).status.success()
}

/// A directory of scripts named like the programs that the plugin may start. Each creates a file `started`
/// there.
pub(crate) fn watched_programs() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let script = format!("#!/bin/sh\n: > {}/started\n", directory.path().display());
    for name in ["nft", "iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy", "iptables-nft"] {
        let path = directory.path().join(name);
        fs::write(&path, &script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    directory
}
