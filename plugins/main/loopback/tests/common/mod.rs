//! What only the tests of loopback need: calls with unusual standard input.
#![allow(dead_code)] // each test program uses a part

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cni_lab::testing::{in_place_of_the_plugin, is_up, network_config, run_command, run_command_with};
use cni_lab::{Node, Place, Pod};
use cni_runner::{Exec, Output};
use serde_json::{Value, json};

/// The plugin under test.
pub(crate) const LOOPBACK: &str = env!("CARGO_BIN_EXE_loopback");

/// A minimal configuration.
pub(crate) fn config(version: &str) -> Value {
    network_config("loopback", version, &json!({}))
}

/// A valid call for a pod, in a version that has every verb.
pub(crate) fn call(verb: &str, pod: &Pod) -> Exec {
    call_with(verb, pod, &config("1.1.0"))
}

/// [`call`] with another configuration.
pub(crate) fn call_with(verb: &str, pod: &Pod, config: &Value) -> Exec {
    Exec::new(LOOPBACK, verb)
        .attachment(&pod.attachment("eth0"))
        .stdin(config.to_string())
        .timeout(Duration::from_secs(20))
}

/// Makes a call with `stdin` as standard input, for input that is not a finite byte string.
pub(crate) fn run_with_stdin(place: &impl Place, exec: &Exec, stdin: Stdio) -> Output {
    run_command(place, command(exec).stdin(stdin))
}

/// Makes a call and writes its standard input in pieces, with a pause after each. Then closes it, or with
/// `keep_open` keeps it open until the plugin has exited.
pub(crate) fn run_in_pieces(
    place: &impl Place,
    exec: &Exec,
    pieces: &[&[u8]],
    pause: Duration,
    keep_open: bool,
) -> Output {
    let feed = |child: &mut Child| {
        let mut pipe = child.stdin.take().unwrap();
        for piece in pieces {
            let _ = pipe.write_all(piece);
            std::thread::sleep(pause);
        }
        if keep_open {
            let end = Instant::now() + Duration::from_secs(10);
            while child.try_wait().unwrap().is_none() {
                if Instant::now() > end {
                    child.kill().unwrap();
                    panic!("the plugin waits for the end of standard input");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    run_command_with(place, &mut command(exec), feed)
}

/// The call as a [`Command`]. `timeout` kills a plugin that hangs.
pub(crate) fn command(exec: &Exec) -> Command {
    let program = exec.binary.to_str().unwrap();
    in_place_of_the_plugin("timeout", &["--signal=KILL", "20", program], exec)
}

/// A test node with one pod, whose `lo` is down.
pub(crate) fn node_and_pod() -> (Node, Pod) {
    let node = Node::new().unwrap();
    let pod = node.pod("pod").unwrap();
    assert!(!is_up(&pod, "lo"));
    (node, pod)
}

/// A copy of the plugin that every user can execute. A build directory below root's home need not allow that.
pub(crate) fn public_copy(dir: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let copy = dir.join("loopback");
    // cp writes the copy, not this process: a child that another thread forks would inherit the open file,
    // and exec would fail with ETXTBSY.
    assert!(Command::new("cp").arg(LOOPBACK).arg(&copy).status().unwrap().success());
    copy
}
