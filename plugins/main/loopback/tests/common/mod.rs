//! Calls of the real binary on a test node of its own.
#![allow(dead_code)] // each test program uses a part

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cni_lab::{Node, Place, Pod};
use cni_runner::{Exec, Output};
use serde_json::{Value, json};

/// The plugin under test.
pub(crate) const LOOPBACK: &str = env!("CARGO_BIN_EXE_loopback");

/// All released specification versions.
pub(crate) const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A minimal configuration.
pub(crate) fn config(version: &str) -> Value {
    json!({ "cniVersion": version, "name": "net", "type": "loopback" })
}

/// A valid call for a pod, in a version that has every verb.
pub(crate) fn call(verb: &str, pod: &Pod) -> Exec {
    Exec::new(LOOPBACK, verb)
        .attachment(&pod.attachment("eth0"))
        .stdin(config("1.1.0").to_string())
        .timeout(Duration::from_secs(20))
}

/// [`call`] with another configuration.
pub(crate) fn call_with(verb: &str, pod: &Pod, config: &Value) -> Exec {
    call(verb, pod).stdin(config.to_string())
}

/// Makes a call that must succeed. Returns its result.
pub(crate) fn succeed(place: &impl Place, exec: &Exec) -> Value {
    let output = place.call(exec).unwrap();
    assert!(output.success(), "{}{}", output.stdout_text(), output.stderr_text());
    output.document().unwrap()
}

/// Makes a call that must succeed with an empty stdout.
pub(crate) fn succeed_silently(place: &impl Place, exec: &Exec) {
    let output = place.call(exec).unwrap();
    assert!(output.success(), "{}{}", output.stdout_text(), output.stderr_text());
    assert_eq!(output.stdout_text(), "", "{exec:?}");
}

/// Makes a call that must fail. Returns its error object; see [`check_error`].
pub(crate) fn fail(place: &impl Place, exec: &Exec, code: u64) -> Value {
    check_error(&place.call(exec).unwrap(), code)
}

/// Checks a failed call: exit status 1, one JSON document with valid members, a message and this code.
/// Returns the document.
pub(crate) fn check_error(output: &Output, code: u64) -> Value {
    let error = output.document().unwrap_or_else(|why| panic!("{why}: {output:?}"));
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error["code"], code, "{error}");
    assert!(error["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{error}");
    assert!(VERSIONS.contains(&error["cniVersion"].as_str().unwrap_or_default()), "{error}");
    assert!(error.get("details").is_none_or(|details| details.as_str().is_some_and(|d| !d.is_empty())));
    error
}

/// Whether `lo` is up in this place.
pub(crate) fn is_up(place: &impl Place) -> bool {
    let shown = place.sh("ip -o link show lo").unwrap();
    let flags = shown.split(['<', '>']).nth(1).unwrap().to_owned();
    flags.split(',').any(|flag| flag == "UP")
}

/// Makes a call with `stdin` as standard input, for input that is not a finite byte string.
pub(crate) fn run_with_stdin(place: &impl Place, exec: &Exec, stdin: Stdio) -> Output {
    place.run(|| run(command(exec).stdin(stdin), |_| {})).unwrap()
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
    let feed = |child: &mut std::process::Child| {
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
    place.run(|| run(command(exec).stdin(Stdio::piped()), feed)).unwrap()
}

fn run(command: &mut Command, feed: impl FnOnce(&mut std::process::Child)) -> Output {
    let start = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    feed(&mut child);
    let output = child.wait_with_output().unwrap();
    Output { status: output.status, stdout: output.stdout, stderr: output.stderr, wall: start.elapsed() }
}

/// The call as a [`Command`], for cases that [`Exec`] does not support. `timeout` kills a plugin that hangs.
pub(crate) fn command(exec: &Exec) -> Command {
    command_of(&exec.binary, exec)
}

/// [`command`] with another program in place of the plugin.
pub(crate) fn command_of(program: impl AsRef<OsStr>, exec: &Exec) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "20"]).arg(program);
    command
        .env("CNI_COMMAND", &exec.command)
        .env("CNI_CONTAINERID", &exec.container_id)
        .env("CNI_NETNS", &exec.netns)
        .env("CNI_IFNAME", &exec.ifname)
        .env("CNI_ARGS", &exec.args)
        .env("CNI_PATH", &exec.path);
    command
}

/// A test node with one pod, whose `lo` is down.
pub(crate) fn node_and_pod() -> (Node, Pod) {
    let node = Node::new().unwrap();
    let pod = node.pod("pod").unwrap();
    assert!(!is_up(&pod));
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
