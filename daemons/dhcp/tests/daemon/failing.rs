//! Each system call of the daemon's work on one lease fails once, with each error that the kernel may return there: during ADD, a
//! renewal, CHECK and DEL. The daemon answers with the lease or with an error, ADD leaves a lease or nothing, a lease that the
//! container has goes on, and DEL removes it. Needs strace.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cni_lab::testing::{Expect as _, is_up, with_prev};
use cni_lab::{Place as _, Pod, TIMEOUT, eventually, failing_daemon};
use cni_runner::{Attachment, Output};
use dhcproto::v4::MessageType;
use serde_json::{Value, json};

use crate::lab::{Daemon, Lab, config};
use crate::server::{Reaction, Server};
use crate::server6;

/// System calls and how they may fail. Memory for the process itself is left out: without it the process ends, and its leases
/// stay in their files.
const FAILURES: [(&str, &[&str]); 7] = [
    ("openat,write,rename,unlink,newfstatat,statx,fstatfs", &["EIO", "ENOSPC", "ENOMEM", "EINTR"]),
    ("read,close", &["EIO", "EINTR"]),
    ("setns,socket,bind,setsockopt,getsockname,ioctl", &["ENOMEM", "ENOBUFS"]),
    ("sendto,sendmsg,recvfrom,recvmsg,accept4", &["EIO", "ENOMEM", "EINTR", "ENOBUFS"]),
    ("clone3", &["EAGAIN", "ENOMEM"]),
    ("epoll_ctl", &["ENOSPC", "ENOMEM"]),
    ("epoll_wait,poll,getrandom", &["EINTR"]),
];
/// What never fails, as `strace -y` names it: tokio wakes itself by it.
const INFALLIBLE: &str = "<anon_inode:[eventfd]>";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Add,
    Renewal,
    Check,
    Expiry,
    Del,
}

/// A container, and a daemon that works under strace.
struct Bench {
    lab: Lab,
    server: Server,
    server6: server6::Server,
    daemon: Daemon,
    pod: Pod,
    attachment: Attachment,
    conf: Value,
    /// The result of the last ADD, while the container has the lease.
    lease: Option<Value>,
}

impl Bench {
    fn new(families: &Value) -> Bench {
        let lab = Lab::new();
        let server = Server::start(&lab, 3600);
        let server6 = server6::Server::start(&lab, 3600);
        let daemon = lab.daemon(&["-resendtimeout", "20s"]);
        let pod = lab.pod("one");
        pod.sh("ip addr add 10.9.0.10/24 dev eth0").unwrap();
        let (attachment, conf) = (pod.attachment("eth0"), config(&json!({"families": families})));
        let bench = Bench { lab, server, server6, daemon, pod, attachment, conf, lease: None };
        bench.serve();
        bench
    }

    /// Lets the server answer. It keeps the address for the client, so that the container can have it all the time. After a
    /// renewal that fails at T1 there is another one at T2.
    fn serve(&self) {
        self.server
            .rule(|kind, _| if kind == MessageType::Release { Reaction::Lose } else { Reaction::Answer });
        self.server.times([3600, 1, 2]);
        self.server6.rule(|_| server6::Reaction::Answer);
        // ADD takes two seconds, and strace must be attached before T1.
        self.server6.times([4, 8, 3600]);
    }

    fn call(&self, verb: &str) -> Output {
        let conf = self.lease.as_ref().map_or(self.conf.clone(), |lease| with_prev(&self.conf, lease));
        self.lab.ctx.call(verb, &self.attachment, &conf)
    }

    /// Does the work while strace has the daemon, and returns its log.
    fn under_strace<T>(&mut self, options: &[String], work: impl FnOnce(&Bench) -> T) -> (T, String) {
        let log = tempfile::NamedTempFile::new().unwrap();
        let pid = self.daemon.pid();
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-qq", "-p", &pid.to_string(), "-o"]).arg(log.path()).args(options);
        let mut strace = self.lab.ctx.node.spawn(command).unwrap();
        let is_traced = |task: fs::DirEntry| {
            // A thread may end meanwhile.
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.is_empty()
                || status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        };
        let all_traced =
            || fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| task.is_ok_and(is_traced));
        assert!(eventually(TIMEOUT, all_traced), "strace does not start");
        // strace counts the calls of each thread, and an attempt has threads of its own: the first failure is the last.
        let strace_pid = strace.id().to_string();
        let (has_ended, read) = (AtomicBool::new(false), || fs::read_to_string(log.path()).unwrap());
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                eventually(2 * TIMEOUT, || {
                    has_ended.load(Ordering::Relaxed) || read().contains("(INJECTED)")
                });
                Command::new("kill").args(["-TERM", &strace_pid]).status().unwrap();
            });
            let outcome = work(self);
            has_ended.store(true, Ordering::Relaxed);
            outcome
        });
        strace.child().wait().unwrap();
        (outcome, read())
    }

    /// Does the step, with the options of strace. Returns strace's log.
    fn step(&mut self, step: Step, options: &[String]) -> String {
        if step == Step::Expiry {
            self.call("DEL").ok();
            self.lease = None;
            self.server.option(51, &2_u32.to_be_bytes());
            self.server6.times([0, 0, 6]);
        }
        if step != Step::Add && self.lease.is_none() {
            self.lease = Some(self.call("ADD").result());
        }
        if step == Step::Expiry {
            self.server.rule(|_, _| Reaction::Lose);
            self.server6.rule(|_| server6::Reaction::Lose);
        }
        let (output, log) = self.under_strace(options, |this| match step {
            Step::Add => Some(this.call("ADD")),
            Step::Check => Some(this.call("CHECK")),
            Step::Del => Some(this.call("DEL")),
            Step::Renewal => {
                // Those before strace was attached do not count.
                let renewals = this.renewals();
                let is_renewed = || this.renewals() > renewals;
                assert!(eventually(TIMEOUT, is_renewed), "no renewal: {}", this.lab.log());
                None
            }
            Step::Expiry => {
                // Not by the log: writing its line may fail.
                let is_down = || !is_up(&this.pod, "eth0");
                assert!(eventually(TIMEOUT, is_down), "{}", this.lab.log());
                None
            }
        });
        // In another order than before, the calls have met one that cannot fail.
        if log.lines().any(|line| line.contains("(INJECTED)") && line.contains(INFALLIBLE)) {
            *self = Bench::new(&self.conf["ipam"]["families"]);
        } else {
            self.judge(step, output);
        }
        log
    }

    /// How often the daemon has renewed leases.
    fn renewals(&self) -> usize {
        self.lab.log().matches("lease renewed").count()
    }

    /// What holds after a step, after each failure.
    fn judge(&mut self, step: Step, output: Option<Output>) {
        assert!(!self.lab.log().contains("panicked"), "{}", self.lab.log());
        assert!(self.lab.answers(), "the daemon does not answer: {}", self.lab.log());
        match (step, output) {
            (Step::Expiry, _) => {
                assert!(!is_up(&self.pod, "eth0"), "the lease has expired: {}", self.lab.log());
                self.call("DEL").ok();
                assert!(self.lab.files().is_empty(), "DEL leaves {:?}", self.lab.files());
                self.lease = None;
                self.serve();
            }
            (Step::Add, Some(output)) if output.success() => self.lease = Some(output.result()),
            (Step::Add, Some(output)) => {
                let error = output.error();
                assert!(error.msg.starts_with("error "), "{error:?}");
                // With a broken connection the daemon has a lease that only DEL ends, as if the plugin had been killed.
                assert!(error.code == 5 || self.lab.files().is_empty(), "{error:?}");
            }
            (Step::Check, Some(output)) if !output.success() => {
                output.error();
            }
            (Step::Del, Some(output)) => {
                if !output.success() {
                    output.error();
                    self.call("DEL").ok();
                }
                assert!(self.lab.files().is_empty(), "DEL leaves {:?}", self.lab.files());
                self.call("CHECK").error().expect(999, "no lease for one/net/eth0");
                self.lease = None;
            }
            _ => {}
        }
        if self.lease.is_some() {
            self.call("CHECK").ok();
            assert_eq!(self.lab.files().len(), 1);
        }
        if step == Step::Add {
            self.call("DEL").ok();
            assert!(self.lab.files().is_empty(), "DEL leaves {:?}", self.lab.files());
            self.lease = None;
        }
        self.server.log();
    }
}

/// Lets system calls fail: each one for `None`, or as many of all kinds as the time allows.
fn fail_system_calls(families: &Value, time: Option<Duration>) {
    let mut bench = Bench::new(families);
    let mut faults = Vec::new();
    for step in [Step::Add, Step::Renewal, Step::Check, Step::Expiry, Step::Del] {
        let log = bench.step(step, &["-e".to_owned(), failing_daemon::trace(&FAILURES)]);
        let calls = failing_daemon::calls(&log, |arguments| arguments.contains(INFALLIBLE));
        assert!(calls.len() > 5, "strace saw nothing of {step:?}: {calls:?}");
        for (name, nth) in calls {
            // Half of a call that another thread's has interrupted has another name.
            let Some(errors) = failing_daemon::errors_of(&FAILURES, &name) else { continue };
            faults.extend(errors.iter().map(|error| (step, name.clone(), nth, *error)));
        }
    }
    failing_daemon::try_faults(&faults, time, |(step, name, nth, error)| {
        let options = failing_daemon::options(name, *nth, error);
        catch_unwind(AssertUnwindSafe(|| bench.step(*step, &options))).map_err(|_| {
            bench = Bench::new(families);
            format!("{step:?}: {name} {nth} fails with {error}")
        })
    });
}

#[test]
fn a_sample_of_system_calls_fails() {
    fail_system_calls(&json!(["ipv4"]), Some(Duration::from_secs(20)));
}

#[test]
fn a_sample_of_system_calls_fails_with_ipv6() {
    fail_system_calls(&json!(["ipv6"]), Some(Duration::from_secs(20)));
}

#[test]
#[ignore = "takes an hour"]
fn each_system_call_fails() {
    fail_system_calls(&json!(["ipv4"]), None);
    fail_system_calls(&json!(["ipv6"]), None);
}
