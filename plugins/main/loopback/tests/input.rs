//! Standard input that is late, split, closed, unreadable, huge or unusual; and VERSION, which must not
//! depend on it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cni_lab::testing::{
    Expect as _, VERSIONS, fail, in_place_of_the_plugin, is_up, run_command, stdin_file, succeed,
    succeed_silently,
};
use cni_lab::{Node, Place as _};
use cni_runner::{Exec, Output};
use common::{LOOPBACK, call, call_with, command, config, node_and_pod, run_in_pieces, run_with_stdin};
use serde_json::{Value, json};

#[test]
fn input_in_two_writes_with_a_pause() {
    let (node, pod) = node_and_pod();
    let text = config("1.0.0").to_string();
    let (first, second) = text.as_bytes().split_at(7);
    let output =
        run_in_pieces(&node, &call("ADD", &pod), &[first, second], Duration::from_millis(200), false);
    assert_eq!(output.document().unwrap()["cniVersion"], "1.0.0", "{output:?}");
    assert!(is_up(&pod, "lo"));
}

#[test]
fn closed_or_unreadable_input() {
    let (node, pod) = node_and_pod();
    for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS"] {
        let exec = call(verb, &pod);
        let directory = run_with_stdin(&node, &exec, File::open("/").unwrap().into());
        assert!(directory.error().with_code(5).msg.starts_with("error reading from stdin: "));
        let script = format!("exec {LOOPBACK} <&-");
        let closed = run_command(&node, &mut in_place_of_the_plugin("sh", &["-c", &script], &exec));
        let error = closed.error().with_code(5);
        assert!(error.msg.starts_with("error reading from stdin: "), "{error}");
        // Open but empty input is a decoding error.
        run_with_stdin(&node, &exec, File::open("/dev/null").unwrap().into()).error().with_code(6);
    }
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn unusual_but_valid_configurations() {
    let (node, pod) = node_and_pod();
    for (stdin, version) in [
        (r#"{"CNIVERSION":"1.0.0","Name":"n"}"#, "1.0.0"),
        (r#"{"cniVersion":"9.9.9","name":"","cniVersion":"0.4.0","name":"n"}"#, "0.4.0"),
        (r#"{"Name":"n/x","name":"n","NAME":"n/y","cniVersion":"1.1.0"}"#, "1.1.0"),
        (r#"{"cniVersion":null,"name":"n"}"#, "0.1.0"),
        (r#"{"cniVersion":"","name":"n"}"#, "0.1.0"),
        (r#"{"name":"n"}"#, "0.1.0"),
        (
            r#"{"cniVersion":"1.0.0","name":"n","dns":null,"ipam":null,"prevResult":null,"runtimeConfig":null,"args":null,"capabilities":null,"type":null}"#,
            "1.0.0",
        ),
        (
            r#"{"cniVersion":"1.0.0","name":"n","args":{"labels":{"a":"b"},"cni":{"zzz":1}},"cni.dev/zzz":[],"capabilities":{"x":true},"zzz":{"y":[1e300]}}"#,
            "1.0.0",
        ),
        ("\n\t {\"cniVersion\":\"1.0.0\",\"name\":\"n\"}\r\n ", "1.0.0"),
        (r#"{"cniVersion":"1.0.0","name":"n","ipam":{"type":"no-such-plugin"}}"#, "1.0.0"),
    ] {
        let result = succeed(&node, &call("ADD", &pod).stdin(stdin));
        assert_eq!(result["cniVersion"], version, "{stdin}");
    }
    // This plugin does not use CNI_ARGS.
    succeed(&node, &call("ADD", &pod).env("CNI_ARGS", "none;;=x"));
}

#[test]
fn huge_prev_result() {
    let (node, pod) = node_and_pod();
    let interface =
        |i: usize| json!({ "name": format!("eth{i}"), "mac": "02:00:00:00:00:01", "zzz": "x".repeat(50) });
    let mut config = config("1.0.0");
    config["prevResult"] =
        json!({ "cniVersion": "1.0.0", "interfaces": (0..30_000).map(interface).collect::<Vec<Value>>() });
    assert!(config.to_string().len() > 3_000_000);
    let start = Instant::now();
    let result = succeed(&node, &call_with("ADD", &pod, &config));
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 30_000);
    assert_eq!(result["interfaces"][29_999], json!({ "name": "eth29999", "mac": "02:00:00:00:00:01" }));
    assert!(start.elapsed() < Duration::from_secs(10));
}

fn version_call() -> Exec {
    Exec::new(LOOPBACK, "VERSION").timeout(Duration::from_secs(20))
}

fn assert_version(output: &Output, want: &str) {
    assert!(output.success(), "{output:?}");
    assert_eq!(output.document().unwrap(), json!({ "cniVersion": want, "supportedVersions": VERSIONS }));
}

#[test]
fn version_answers_in_the_requested_version() {
    let node = Node::new().unwrap();
    for version in VERSIONS {
        let exec = version_call().stdin(json!({ "cniVersion": version }).to_string());
        assert_version(&node.call(&exec).unwrap(), version);
    }
    let unreadable =
        [r#"{"cniVersion":"9.9.9"}"#, r#"{"cniVersion":5}"#, "{}", "", "{", "garbage", "[]", "null", "\0"];
    for stdin in unreadable {
        assert_version(&node.call(&version_call().stdin(stdin)).unwrap(), "1.1.0");
    }
}

#[test]
fn version_ignores_other_variables() {
    let node = Node::new().unwrap();
    // The values that libcni sends, then invalid ones.
    let mut exec = version_call().stdin(r#"{"cniVersion":"1.0.0"}"#);
    (exec.netns, exec.ifname, exec.path) = ("dummy".into(), "dummy".into(), "dummy".into());
    assert_version(&node.call(&exec).unwrap(), "1.0.0");
    exec.container_id = "a/b".into();
    exec.ifname = "a/b".into();
    assert_version(&node.call(&exec).unwrap(), "1.0.0");
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"] {
        exec = exec.without(name);
    }
    assert_version(&node.call(&exec).unwrap(), "1.0.0");
}

#[test]
fn version_does_not_wait_for_its_input() {
    let node = Node::new().unwrap();
    let exec = version_call();
    let ms = Duration::from_millis;
    let whole = br#"{"cniVersion":"0.4.0"}"#;
    let silent = run_in_pieces(&node, &exec, &[], ms(0), true);
    assert_version(&silent, "1.1.0");
    assert!(silent.wall < Duration::from_secs(10), "{:?}", silent.wall);
    // On a busy machine this thread may write later than the plugin waits, so one success of ten calls
    // suffices.
    let in_time = |pieces: &[&[u8]], pause| {
        (0..10)
            .map(|_| run_in_pieces(&node, &exec, pieces, pause, true))
            .find(|output| output.document().unwrap()["cniVersion"] == "0.4.0")
    };
    assert_version(&in_time(&[whole], ms(0)).unwrap(), "0.4.0");
    assert_version(&in_time(&[&whole[..9], &whole[9..]], ms(20)).unwrap(), "0.4.0");
    assert_version(&run_in_pieces(&node, &exec, &[&whole[..9]], ms(0), true), "1.1.0");
    for endless in ["/dev/zero", "/dev/urandom"] {
        let output = run_with_stdin(&node, &exec, File::open(endless).unwrap().into());
        assert_version(&output, "1.1.0");
        assert!(output.wall < Duration::from_secs(10), "{endless} {:?}", output.wall);
    }
    assert_version(&run_with_stdin(&node, &exec, File::open("/").unwrap().into()), "1.1.0");
    assert_version(&run_with_stdin(&node, &exec, Stdio::null()), "1.1.0");
}

#[test]
fn version_needs_no_privileges() {
    let node = Node::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let copy = common::public_copy(dir.path());
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]).arg(copy);
    let output = node.exec(command.env_clear().env("CNI_COMMAND", "VERSION")).unwrap();
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["supportedVersions"], json!(VERSIONS));
}

#[test]
fn without_a_verb_it_prints_name_and_versions() {
    let (node, pod) = node_and_pod();
    for exec in [call("", &pod), call("", &pod).without("CNI_COMMAND"), Exec::new(LOOPBACK, "").stdin("{")] {
        let output = node.call(&exec).unwrap();
        assert!(output.success());
        assert_eq!(output.stdout_text(), "");
        let stderr = output.stderr_text();
        let mut lines = stderr.lines();
        let number = lines.next().unwrap().strip_prefix("CNI loopback plugin v").unwrap().to_owned();
        let parts: Vec<&str> = number.split('.').collect();
        assert!(parts.len() == 3 && parts.iter().all(|part| part.parse::<u32>().is_ok()), "{number}");
        let versions = VERSIONS.join(", ");
        assert_eq!(lines.next().unwrap(), format!("CNI protocol versions supported: {versions}"));
        assert_eq!(lines.next(), None);
    }
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn unwritable_result_undoes_add() {
    let (node, pod) = node_and_pod();
    let exec = call("ADD", &pod);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = run_command(&node, command(&exec).stdin(stdin_file(&exec)).stdout(full));
    assert_eq!(output.status.code(), Some(1));
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn rest_of_the_environment_is_ignored() {
    let (node, pod) = node_and_pod();
    let mut exec = call("ADD", &pod).without("CNI_ARGS").without("CNI_PATH");
    exec.inherit = false;
    let output = run_command(&node, exec.to_command().current_dir("/").stdin(stdin_file(&exec)));
    assert!(output.success());
    assert!(is_up(&pod, "lo"));
    // The specification requires CNI_PATH for GC, but not for DEL and STATUS.
    for verb in ["DEL", "STATUS"] {
        succeed_silently(&node, &call(verb, &pod).without("CNI_PATH"));
    }
    fail(&node, &call("GC", &pod).without("CNI_PATH"), 4);
    // CNI_VERSION existed in specification 0.1.0. Newer runtimes may add variables.
    succeed(&node, &call("ADD", &pod).env("CNI_VERSION", "junk").env("TRACEPARENT", "00-junk"));
}

/// A remark that nobody can read is no reason to fail.
#[test]
fn a_full_disk_behind_standard_error_does_not_stop_del() {
    let (node, pod) = node_and_pod();
    succeed(&node, &call("ADD", &pod));
    let mut broken = config("1.1.0");
    broken["prevResult"] = json!({"ips": 7});
    let exec = call_with("DEL", &pod, &broken);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = run_command(&node, command(&exec).stdin(stdin_file(&exec)).stderr(full));
    assert!(output.status.success(), "{output:?}");
    assert!(!is_up(&pod, "lo"));
}
