//! Network namespaces for tests, and the programs that look at them.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use tempfile::TempDir;

/// Runs the work on a thread of its own in a new network namespace. Processes that it starts are there as well.
pub(crate) fn isolated<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let outcome = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; these tests need root");
            work()
        });
        thread.join()
    });
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The namespace that a thread is in, for another thread to enter.
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

/// What the program prints.
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

/// A folder with programs of the names that might be started, which leave a file `started` there if they are.
pub(crate) fn watched_programs() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("#!/bin/sh\n: > {}/started\n", folder.path().display());
    for name in ["nft", "iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy", "iptables-nft"] {
        let path = folder.path().join(name);
        fs::write(&path, &script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}
