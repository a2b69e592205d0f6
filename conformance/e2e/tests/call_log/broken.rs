//! A log that cannot be written changes neither the outcome of a call nor its output.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;

use cni_lab::Place as _;
use cni_lab::testing::{TestContext, in_place_of_the_plugin, network_config, run_command, stdin_file};
use cni_runner::{Attachment, Output};
use nix::fcntl::OFlag;
use serde_json::{Value, json};

use crate::fixture::{node, with_log};

const NOTE: &str = "the call is not logged";

fn config(version: &str) -> Value {
    network_config("loopback", version, &json!({}))
}

/// Exit status and standard output.
fn outcome(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), output.stdout_text())
}

/// An ADD that succeeds and one that fails.
fn outputs(ctx: &TestContext, attachment: &Attachment) -> [Output; 2] {
    ["1.0.0", "9.9.9"].map(|version| ctx.call("ADD", attachment, &config(version)))
}

#[test]
fn places_that_cannot_be_written() {
    let ctx = node("loopback");
    let attachment = ctx.pod("call-log-broken").attachment("lo");
    let expected = outputs(&ctx, &attachment).map(|output| outcome(&output));
    assert_eq!((expected[0].0, expected[1].0), (Some(0), Some(1)));
    ctx.node
        .sh("cd /run && mkdir small read-only && mkfifo fifo full-fifo && ln -s elsewhere link
            mount -t tmpfs -o size=4k tmpfs small && head -c 4096 /dev/zero >small/file
            mount -t tmpfs -o ro tmpfs read-only")
        .unwrap();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut reader = ctx.node.run(|| options.open("/run/full-fifo")).unwrap().unwrap();
    while reader.write(&[0]).is_ok() {}

    for value in [
        "/run/missing/log",
        "/run/read-only/log",
        "/run/small/log",
        "/run/fifo",
        "/run/full-fifo",
        "/run/link",
        "/run",
        "/dev/full",
        "/dev/stdout",
        "/proc/self/fd/1",
        "journald",
        "nonsense",
        "/run/log much",
    ] {
        for (output, expected) in outputs(&with_log(&ctx, value), &attachment).iter().zip(&expected) {
            assert_eq!(&outcome(output), expected, "{value}");
            assert!(output.stderr_text().contains(NOTE), "{value}: {}", output.stderr_text());
        }
    }
    assert!(!ctx.node.list_dir("/run").unwrap().contains(&"elsewhere".to_owned()));
}

#[test]
fn configuration_files_that_cannot_be_read() {
    let ctx = node("loopback");
    let attachment = ctx.pod("call-log-config").attachment("lo");
    let expected = outputs(&ctx, &attachment).map(|output| outcome(&output));
    for (script, has_note) in [
        ("mkdir $FILE", true),
        ("mkfifo $FILE", false),
        ("echo 'log = x' >$FILE", true),
        ("head -c 9999 /dev/urandom >$FILE", false),
    ] {
        ctx.node.sh(&format!("FILE=/etc/cni/ferrule.conf; rm -rf $FILE; {script}")).unwrap();
        for (output, expected) in outputs(&ctx, &attachment).iter().zip(&expected) {
            assert_eq!(&outcome(output), expected, "{script}");
            assert_eq!(output.stderr_text().contains(NOTE), has_note, "{script}: {}", output.stderr_text());
        }
    }
}

/// Even if the note cannot be written either.
#[test]
fn standard_error_is_full() {
    let ctx = with_log(&node("loopback"), "/run/missing/log");
    let attachment = ctx.pod("call-log-stderr").attachment("lo");
    let exec = ctx.exec("ADD", &attachment, &config("1.0.0"));
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = run_command(&ctx.node, exec.to_command().stdin(stdin_file(&exec)).stderr(full));
    assert_eq!(outcome(&output), outcome(&ctx.call("ADD", &attachment, &config("1.0.0"))));
}

/// The kernel would end a process that exceeds its limit of file sizes.
#[test]
fn the_limit_of_file_sizes() {
    let ctx = with_log(&node("loopback"), "/run/calls");
    let attachment = ctx.pod("call-log-limit").attachment("lo");
    let exec = ctx.exec("ADD", &attachment, &config("1.0.0"));
    let limited = ["-c", "ulimit -f 0; exec \"$0\"", exec.binary.to_str().unwrap()];
    let mut command = in_place_of_the_plugin("sh", &limited, &exec);
    let output = run_command(&ctx.node, command.stdin(stdin_file(&exec)));
    assert_eq!(outcome(&output), outcome(&ctx.call("ADD", &attachment, &config("1.0.0"))));
    assert!(output.stderr_text().contains(NOTE), "{}", output.stderr_text());
}
