//! Several installations at once, and a runtime that starts plugins meanwhile.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use cni_lab::go_bin_dir;

use crate::fixture::{ALL, Fixture, in_a_folder, snapshot};

#[test]
fn two_at_once_exclude_each_other() {
    in_a_folder(|f| {
        fs::create_dir(&f.bin).unwrap();
        let lock = File::open(&f.bin).unwrap();
        lock.lock().unwrap();
        for command in ["install --from v1 --plugins bridge --wait 0", "uninstall --wait 1"] {
            f.ends(1, command).says("another installation is still at work");
        }
        assert_eq!(fs::read_dir(&f.bin).unwrap().count(), 0);
        f.ends(4, "status").says("at work on this folder");
        drop(lock);
        f.succeeds("install --from v1 --plugins bridge");
    });
}

#[test]
fn many_at_once() {
    in_a_folder(|f| {
        f.fake("bin", "old", &["bridge"]);
        let was = snapshot(&f.bin);
        let install = |from: &str| {
            let command = format!("install --from {from} --plugins bridge,host-local,loopback --wait 600");
            f.command(&command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let running: Vec<_> = ["v1", "v2", "v1", "v2", "v1", "v2"].into_iter().map(install).collect();
        for mut child in running {
            assert!(child.wait().unwrap().success());
        }
        let is_v1 = fs::read(f.bin.join("bridge")).unwrap() == fs::read(f.path("v1/bridge")).unwrap();
        f.has(if is_v1 { "v1" } else { "v2" }, &ALL);
        f.has_no_leftovers();
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);
    });
}

/// Two versions of a real program, because only those can be "text file busy".
fn make_programs(f: &Fixture) {
    let program = fs::read(go_bin_dir().unwrap().join("loopback")).unwrap();
    f.script("p1/loopback", "");
    f.script("p2/loopback", "");
    fs::write(f.path("p1/loopback"), &program).unwrap();
    fs::write(f.path("p2/loopback"), [&program[..], b"more"].concat()).unwrap();
}

/// Starts the installed plugin as a runtime does. `None` if it answers.
fn failure(f: &Fixture) -> Option<String> {
    let mut command = Command::new(f.bin.join("loopback"));
    command.env("CNI_COMMAND", "VERSION").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let answer = command.spawn().and_then(|mut child| {
        let _ = child.stdin.take().unwrap().write_all(b"{\"cniVersion\":\"1.0.0\"}");
        child.wait_with_output()
    });
    match answer {
        Err(error) => Some(error.to_string()),
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("supportedVersions") => None,
        Ok(output) => Some(format!("{output:?}")),
    }
}

/// Ends the observers, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_runtime_never_meets_a_gap() {
    in_a_folder(|f| {
        make_programs(f);
        f.succeeds("install --from p1 --plugins loopback");
        let (runs, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let observe = || {
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(failure) = failure(f) {
                        return Some(failure);
                    }
                    runs.fetch_add(1, Ordering::Relaxed);
                }
                None
            };
            let observers = [scope.spawn(observe), scope.spawn(observe)];
            let stop = Stop(&is_over);
            let mut rounds = 0;
            while rounds < 25 || runs.load(Ordering::Relaxed) < 200 {
                f.succeeds("install --from p2 --plugins loopback");
                f.same("p2/loopback", "loopback");
                f.succeeds("rollback");
                f.same("p1/loopback", "loopback");
                rounds += 1;
                if observers.iter().any(|observer| observer.is_finished()) {
                    break;
                }
            }
            drop(stop);
            for observer in observers {
                assert_eq!(observer.join().unwrap(), None, "after {rounds} rounds");
            }
        });
    });
}

/// The same observer sees the gaps of a plain copy. Otherwise the test above would prove nothing.
#[test]
fn the_observer_sees_the_gap_of_a_plain_copy() {
    in_a_folder(|f| {
        make_programs(f);
        f.sh("mkdir bin; cp p1/loopback bin");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let observer = scope.spawn(|| {
                let _stop = Stop(&is_over);
                std::iter::repeat_with(|| failure(f)).take(20_000).flatten().next()
            });
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                // cp -f: writes into the file, or deletes it first if it is busy.
                let _ = fs::remove_file(f.bin.join("loopback"));
                fs::copy(f.path(&format!("p{}/loopback", round % 2 + 1)), f.bin.join("loopback")).unwrap();
            }
            assert!(observer.join().unwrap().is_some(), "no failure in {round} copies");
        });
    });
}
