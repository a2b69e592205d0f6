//! System calls of a plugin that fail once: a full disk, a broken one, memory that ends, a signal, an answer of the kernel that
//! is lost. `strace` makes them fail.

use std::collections::HashMap;
use std::fmt;

use cni_runner::{Exec, Output};

use super::place::{Place, TIMEOUT};
use super::strace;

/// Calls that cannot fail, or that only prepare the process. Linux closes a file also if it returns an error, but a call that
/// strace lets fail is not made.
const NEVER: [&str; 15] = [
    "close",
    "execve",
    "exit",
    "exit_group",
    "arch_prctl",
    "set_tid_address",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sigaltstack",
    "getpid",
    "gettid",
    "getuid",
    "geteuid",
    "munmap",
];

/// Calls that get memory. A program without memory may abort.
const MEMORY: [&str; 4] = ["brk", "mmap", "mremap", "mprotect"];

/// The errors that a system call can return on a node in trouble.
fn errors(name: &str) -> &'static [&'static str] {
    match name {
        _ if NEVER.contains(&name) => &[],
        _ if MEMORY.contains(&name) => &["ENOMEM"],
        "open" | "openat" | "mkdir" | "mkdirat" | "link" | "linkat" | "symlink" | "symlinkat" | "rename"
        | "renameat" | "renameat2" => &["EIO", "ENOSPC", "ENOMEM", "EINTR"],
        "write" | "writev" | "pwrite64" | "ftruncate" | "fsync" | "fdatasync" | "copy_file_range"
        | "sendfile" => &["EIO", "ENOSPC", "EINTR"],
        "read" | "readv" | "pread64" | "ioctl" => &["EIO", "EINTR"],
        "socket" | "bind" | "setsockopt" | "getsockopt" | "getsockname" => &["ENOMEM", "ENOBUFS"],
        "connect" | "accept4" | "sendto" | "sendmsg" | "sendmmsg" => {
            &["EIO", "ENOMEM", "ENOBUFS", "EINTR", "EAGAIN"]
        }
        "recvfrom" | "recvmsg" | "recvmmsg" => &["EIO", "ENOBUFS", "ENOMEM", "EINTR", "EAGAIN"],
        "fork" | "vfork" | "clone" | "clone3" | "unshare" | "setns" | "pipe2" => &["ENOMEM", "EAGAIN"],
        "flock" | "poll" | "ppoll" => &["ENOMEM", "EINTR"],
        "wait4" | "waitid" | "nanosleep" | "clock_nanosleep" => &["EINTR"],
        _ => &["EIO", "ENOMEM"],
    }
}

/// The nth system call of this name, counted from 1, fails with this error.
#[derive(Debug, Clone)]
pub struct FailingCall {
    /// The system call.
    pub name: String,
    /// Which call of this name.
    pub nth: usize,
    /// The error, as C names it.
    pub error: &'static str,
}

impl fmt::Display for FailingCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} fails with {}", self.name, self.nth, self.error)
    }
}

impl FailingCall {
    /// Makes the call, which must succeed, and returns each of its system calls with each error that it can return.
    pub fn all(place: &impl Place, exec: &Exec) -> anyhow::Result<Vec<FailingCall>> {
        let log = strace::record(place, exec, &["-e", "trace=all"])?;
        let mut counts = HashMap::new();
        let mut calls = Vec::new();
        for (name, _) in log.lines().filter_map(|line| line.split_once('(')) {
            let nth = *counts.entry(name).and_modify(|count| *count += 1).or_insert(1);
            calls.extend(errors(name).iter().map(|error| FailingCall { name: name.to_owned(), nth, error }));
        }
        Ok(calls)
    }

    /// Makes the call, in which this system call fails. Processes that the plugin starts are not concerned.
    pub fn make(&self, place: &impl Place, exec: &Exec) -> anyhow::Result<Output> {
        let inject = format!("inject={}:error={}:when={}", self.name, self.error, self.nth);
        let trace = format!("trace={}", self.name);
        place.call(&strace::under(exec, &["-e", &trace, "-e", &inject, "-o", "/dev/null"]).timeout(TIMEOUT))
    }

    /// Whether the program may abort.
    pub fn is_memory(&self) -> bool {
        MEMORY.contains(&self.name.as_str())
    }
}
