//! Each system call of the daemon's life with one device fails once, with each error that the kernel may return there: start,
//! registration, an allocation, the device's way into a pod, the end of the pod, a new device, and a restart of the kubelet. The
//! daemon goes on, or ends with an error and the service manager starts it again. In both cases the kubelet has the true list.
//! Needs strace.

use std::fs;
use std::time::Duration;

use cni_lab::{Place as _, eventually, failing_daemon};
use ferrule_fake_kubelet::{Knobs, Kubelet};

use crate::lab::{Daemon, Lab, NIC, list};

/// System calls and how they may fail. Memory for the process itself is left out: without it the process ends.
const FAILURES: [(&str, &[&str]); 6] = [
    (
        "openat,write,rename,unlink,mkdir,newfstatat,statx,getdents64,readlink",
        &["EIO", "ENOSPC", "ENOMEM", "EINTR"],
    ),
    ("read", &["EIO", "EINTR"]),
    (
        "socket,bind,listen,setsockopt,getsockname,connect,inotify_init1,inotify_add_watch",
        &["ENOMEM", "ENOBUFS"],
    ),
    ("sendto,sendmsg,recvfrom,recvmsg,accept4,writev", &["EIO", "ENOMEM", "EINTR", "ENOBUFS"]),
    ("epoll_ctl", &["ENOSPC", "ENOMEM"]),
    ("epoll_wait,getrandom", &["EINTR"]),
];
/// What never fails, as `strace -y` shows it: tokio wakes itself, and tells itself of a signal.
const INFALLIBLE: [&str; 3] = ["<anon_inode:[eventfd]>", "\"\\1\", 1, MSG_NOSIGNAL", " 128, 0, NULL, NULL"];
/// How long the daemon may take to be right again: it registers again after pauses of up to 30 s.
const RECOVERY: Duration = Duration::from_secs(90);

/// The kubelet's list.
const BOTH: &str = "eth1 eth2";

struct Bench {
    lab: Lab,
    kubelet: Kubelet,
    pods: usize,
}

impl Bench {
    fn new() -> Bench {
        let lab = Lab::new();
        let kubelet = lab.kubelet(Knobs::new());
        Bench { lab, kubelet, pods: 0 }
    }

    /// Waits until the kubelet has [`BOTH`] and may allocate the first one. Starts the daemon again if it has ended with an error.
    fn lists(&self, daemon: &mut Daemon) {
        let mut is_right = || {
            if !daemon.is_running() {
                let status = daemon.end("TERM");
                let is_clean = status.is_some_and(|status| status != 0);
                assert!(is_clean || self.is_excused(), "{status:?}: {}", self.lab.log());
                *daemon = self.lab.daemon("");
            }
            list(&self.kubelet) == BOTH && self.kubelet.allocate(NIC, &["eth1"]).is_ok()
        };
        let is_right = eventually(RECOVERY, &mut is_right);
        assert!(is_right, "{}, not {BOTH}: {}", list(&self.kubelet), self.lab.log());
    }

    /// One life of the daemon, with these options of strace. Returns strace's log.
    fn live(&mut self, options: &str) -> String {
        let lab = &self.lab;
        let log = lab.path("trace");
        let _ = fs::remove_file(lab.path("log"));
        let mut daemon = lab.node_daemon(&format!("strace -D -f -y -qq -o {} {options}", log.display()));
        self.pods += 1;
        let name = format!("pod{}", self.pods);
        self.lists(&mut daemon);
        let lab = &self.lab;
        let pod = lab.node.pod(&name).unwrap();
        lab.sh(&format!("ip link set eth1 netns {name}"));
        let is_known = eventually(RECOVERY, || lab.has_recorded_a_move() || !daemon.is_running());
        assert!(is_known, "no record: {}", lab.log());
        // The kernel tells only once where a link goes. If the daemon ends before it has recorded that, its successor does not know it.
        if lab.has_recorded_a_move() {
            self.lists(&mut daemon);
        }
        pod.delete().unwrap();
        lab.until("the peer is gone", || lab.node.sh("ip link show peer1").is_err());
        lab.sh("ip link add eth1 type veth peer name peer1");
        self.kubelet.restart();
        self.lists(&mut daemon);
        let has_ended = eventually(RECOVERY, || {
            daemon.signal("TERM");
            !daemon.is_running()
        });
        let is_clean = daemon.end("TERM").is_some() && !self.lab.log().contains("panicked");
        assert!(has_ended && (is_clean || self.is_excused()), "{}", self.lab.log());
        fs::read_to_string(log).unwrap()
    }

    /// Whether the calls came in another order than before, so that the chosen call cannot fail.
    fn is_excused(&self) -> bool {
        let log = fs::read_to_string(self.lab.path("trace")).unwrap();
        log.lines().any(|line| line.contains("(INJECTED)") && is_infallible(line))
    }
}

fn is_infallible(call: &str) -> bool {
    INFALLIBLE.iter().any(|text| call.contains(text))
}

/// Lets system calls fail: each one for `None`, or as many of all kinds as the time allows.
fn fail_system_calls(time: Option<Duration>) {
    let mut bench = Bench::new();
    let mut faults = Vec::new();
    let log = bench.live(&format!("-e {}", failing_daemon::trace(&FAILURES)));
    for (name, nth) in failing_daemon::calls(&log, is_infallible) {
        let errors = failing_daemon::errors_of(&FAILURES, &name).unwrap();
        faults.extend(errors.iter().map(|error| (name.clone(), nth, *error)));
    }
    assert!(faults.len() > 200, "strace saw only {} calls", faults.len());
    failing_daemon::try_faults(&faults, time, |(name, nth, error)| {
        eprintln!("{name} {nth} fails with {error}");
        Ok(bench.live(&failing_daemon::options(name, *nth, error).join(" ")))
    });
}

#[test]
fn a_sample_of_system_calls_fails() {
    fail_system_calls(Some(Duration::from_secs(20)));
}

#[test]
#[ignore = "each system call of the daemon's life: takes an hour"]
fn each_system_call_fails() {
    fail_system_calls(None);
}
