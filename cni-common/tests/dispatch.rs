//! Tests of dispatch with plugins that fail. This program starts itself as a plugin with the behaviour that
//! the variable `ROLE` names, and checks its output.
//!
//! CNI_NETNS is the program's own namespace or does not exist; the plugins never change a namespace.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};

use cni_common::netns::ContainerNetns;
use cni_common::plugin::{self, AddRequest, DelRequest, Delegate, Plugin, Verb};
use cni_common::spec::{AddResult, CniError, Interface, SpecVersion};
use serde_json::{Value, json};

const OWN: &str = "/proc/self/ns/net";

type Test = fn(&Path);

fn main() -> ExitCode {
    match std::env::var("ROLE").as_deref() {
        Ok("old") => return plugin::run(&OLD),
        Ok(_) => return plugin::run(&ROLE),
        Err(_) => {}
    }
    let tests: [(&str, Test); 9] = [
        ("a_request_without_end_is_refused", a_request_without_end_is_refused),
        ("a_panic_is_an_error_object", a_panic_is_an_error_object),
        ("a_result_without_a_layout_is_followed_by_del", a_result_without_a_layout_is_followed_by_del),
        (
            "a_result_that_cannot_be_written_is_followed_by_del",
            a_result_that_cannot_be_written_is_followed_by_del,
        ),
        ("del_in_its_own_namespace_runs_without_it", del_in_its_own_namespace_runs_without_it),
        ("add_and_check_refuse_the_plugins_own_namespace", add_and_check_refuse_the_plugins_own_namespace),
        ("a_plugin_that_supports_few_versions", a_plugin_that_supports_few_versions),
        ("a_delegates_error_is_returned_unchanged", a_delegates_error_is_returned_unchanged),
        ("a_delegates_stderr_is_forwarded", a_delegates_stderr_is_forwarded),
    ];
    let only: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, test) in tests {
        if only.is_empty() || only.iter().any(|part| name.contains(part.as_str())) {
            let dir = tempfile::tempdir().unwrap();
            test(dir.path()); // a panic ends the program with a failure status
            println!("test {name} ... ok");
        }
    }
    ExitCode::SUCCESS
}

/// Appends a line to the file in the variable `CALLS`.
fn record(text: &str) {
    let path = std::env::var("CALLS").unwrap();
    let mut file = fs::File::options().create(true).append(true).open(path).unwrap();
    writeln!(file, "{text}").unwrap();
}

fn role() -> String {
    std::env::var("ROLE").unwrap()
}

const ROLE: Plugin = Plugin {
    version: "1.2.3",
    check: |_| {
        record("CHECK");
        Ok(())
    },
    ..Plugin::new("role", add, del)
};

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    record("ADD");
    match role().as_str() {
        "panic" => panic!("a \"quoted\"\nmessage"),
        "delegate" => Delegate::ipam(call.env, call.config)?.unwrap().add(call.version),
        _ => {
            let eth0 = Interface { name: "eth0".into(), ..Interface::default() };
            Ok(AddResult { interfaces: vec![eth0], ..AddResult::default() })
        }
    }
}

fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    record(match call.netns {
        ContainerNetns::Open(_) => "DEL in a namespace",
        ContainerNetns::Gone => "DEL",
        ContainerNetns::Unknown(_) => "DEL without knowing",
    });
    match role().as_str() {
        "panic" => panic!("in DEL"),
        "delegate" => Delegate::ipam(call.env, call.config)?.unwrap().call(Verb::Del),
        "fails" => Err(CniError::internal("could not clean up")),
        _ => Ok(()),
    }
}

const OLD: Plugin = Plugin {
    version: "0.0.1",
    spec_versions: &[SpecVersion::V0_3_0, SpecVersion::V0_3_1],
    ..Plugin::new("old", |_| Ok(AddResult::default()), |_| Ok(()))
};

fn run(dir: &Path, role: &str, verb: &str, version: &str, env: &[(&str, &str)]) -> Output {
    run_into(Stdio::piped(), dir, role, verb, version, env)
}

fn run_into(
    stdout: Stdio,
    dir: &Path,
    role: &str,
    verb: &str,
    version: &str,
    env: &[(&str, &str)],
) -> Output {
    let mut command = command(dir, role, verb);
    command.envs(env.iter().copied()).stdin(Stdio::piped()).stdout(stdout);
    let mut child = command.spawn().unwrap();
    let config = json!({ "cniVersion": version, "name": "n", "ipam": { "type": "ipam" } });
    let _ = child.stdin.take().unwrap().write_all(config.to_string().as_bytes());
    child.wait_with_output().unwrap()
}

fn command(dir: &Path, role: &str, verb: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("ROLE", role).env("CALLS", dir.join("calls")).env("CNI_COMMAND", verb);
    command.env("CNI_CONTAINERID", "c").env("CNI_IFNAME", "eth0").env("CNI_PATH", dir);
    command.env("CNI_NETNS", "/nowhere").stderr(Stdio::piped());
    command
}

fn error(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}"))
}

/// Returns the recorded calls and clears the record.
fn calls(dir: &Path) -> Vec<String> {
    let calls = fs::read_to_string(dir.join("calls")).unwrap_or_default();
    let _ = fs::remove_file(dir.join("calls"));
    calls.lines().map(str::to_owned).collect()
}

/// Also in the log of calls.
fn a_panic_is_an_error_object(dir: &Path) {
    let log = dir.join("log");
    let variable = ("CNI_FERRULE_LOG", log.to_str().unwrap());
    for verb in ["ADD", "DEL"] {
        let object = error(&run(dir, "panic", verb, "0.4.0", &[variable]));
        assert_eq!(object["code"], 999);
        assert_eq!(object["cniVersion"], "1.1.0");
        let msg = object["msg"].as_str().unwrap();
        assert!(msg.starts_with("internal error: "), "{msg}");
        assert!(msg.contains("dispatch.rs"), "{msg} does not name the source file");
        let panic_text = if verb == "ADD" { "a \"quoted\"\nmessage" } else { "in DEL" };
        assert!(msg.contains(panic_text), "{msg}");
        let lines = fs::read_to_string(&log).unwrap();
        let last: Value = serde_json::from_str(lines.lines().next_back().unwrap()).unwrap();
        assert_eq!((&last["verb"], &last["error"]["msg"]), (&json!(verb), &object["msg"]));
    }
}

fn a_result_without_a_layout_is_followed_by_del(dir: &Path) {
    for version in ["0.1.0", "0.2.0"] {
        let object = error(&run(dir, "layer2", "ADD", version, &[]));
        let want = "cannot convert: no valid IP addresses";
        assert_eq!(object, json!({ "cniVersion": version, "code": 999, "msg": want }));
        assert_eq!(calls(dir), ["ADD", "DEL"]);
    }
    // A failed DEL does not hide the error of ADD.
    let output = run(dir, "fails", "ADD", "0.2.0", &[]);
    assert_eq!(error(&output)["msg"], "cannot convert: no valid IP addresses");
    assert!(String::from_utf8_lossy(&output.stderr).contains("could not clean up"));
    assert!(run(dir, "layer2", "ADD", "0.3.0", &[]).status.success());
}

fn a_request_without_end_is_refused(dir: &Path) {
    let endless = fs::File::open("/dev/zero").unwrap();
    let mut add = command(dir, "layer2", "ADD");
    let object = error(&add.stdin(endless).stdout(Stdio::piped()).output().unwrap());
    assert_eq!(object["code"], 5);
    assert_eq!(object["msg"], "error reading from stdin: the request has more than 4194304 bytes");
    assert!(calls(dir).is_empty());
}

/// Standard output is full, or open for reading only. std's stdout reports no error in the second case.
fn a_result_that_cannot_be_written_is_followed_by_del(dir: &Path) {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    for stdout in [full, fs::File::open("/dev/null").unwrap()] {
        let output = run_into(stdout.into(), dir, "layer2", "ADD", "1.0.0", &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(calls(dir), ["ADD", "DEL"]);
    }
}

fn del_in_its_own_namespace_runs_without_it(dir: &Path) {
    let object = error(&run(dir, "layer2", "DEL", "1.0.0", &[("CNI_NETNS", OWN)]));
    assert_eq!(object["code"], 8);
    assert_eq!(object["msg"], "plugin's netns and netns from CNI_NETNS should not be the same");
    assert_eq!(calls(dir), ["DEL"]);

    let switched_off = [("CNI_NETNS", OWN), ("CNI_NETNS_OVERRIDE", "True")];
    assert!(run(dir, "layer2", "DEL", "1.0.0", &switched_off).status.success());
    assert_eq!(calls(dir), ["DEL in a namespace"]);

    for gone in ["", "/nowhere", "/etc/passwd"] {
        assert!(run(dir, "layer2", "DEL", "1.0.0", &[("CNI_NETNS", gone)]).status.success());
        assert_eq!(calls(dir), ["DEL"], "{gone}");
    }
    // A path that statfs(2) rejects (ENAMETOOLONG): the plugin's DEL runs, then dispatch returns the error.
    let too_long = "x".repeat(5000);
    assert_eq!(error(&run(dir, "layer2", "DEL", "1.0.0", &[("CNI_NETNS", &too_long)]))["code"], 999);
    assert_eq!(calls(dir), ["DEL without knowing"]);
}

fn add_and_check_refuse_the_plugins_own_namespace(dir: &Path) {
    for verb in ["ADD", "CHECK"] {
        assert_eq!(error(&run(dir, "layer2", verb, "1.0.0", &[("CNI_NETNS", OWN)]))["code"], 8);
        assert!(calls(dir).is_empty(), "{verb}");
        let switched_off = [("CNI_NETNS", OWN), ("CNI_NETNS_OVERRIDE", "1")];
        assert!(run(dir, "layer2", verb, "1.0.0", &switched_off).status.success());
        assert_eq!(calls(dir), [verb]);
    }
}

fn a_plugin_that_supports_few_versions(dir: &Path) {
    assert!(run(dir, "old", "ADD", "0.3.1", &[]).status.success());
    for version in ["0.2.0", "0.4.0", "1.0.0"] {
        let object = error(&run(dir, "old", "ADD", version, &[]));
        assert_eq!(object["code"], 1);
        assert_eq!(object["details"], format!(r#"config is "{version}", plugin supports ["0.3.0" "0.3.1"]"#));
    }
    for (verb, version) in [("CHECK", "0.3.1"), ("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")] {
        assert_eq!(error(&run(dir, "old", verb, version, &[]))["code"], 1, "{verb} {version}");
    }
    let answer: Value = serde_json::from_slice(&run(dir, "old", "VERSION", "0.3.1", &[]).stdout).unwrap();
    assert_eq!(answer, json!({ "cniVersion": "0.3.1", "supportedVersions": ["0.3.0", "0.3.1"] }));
}

fn stub(dir: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = dir.join("ipam");
    fs::write(&path, format!("#!/bin/sh\necho stub $CNI_COMMAND >> {}/calls\n{script}\n", dir.display()))
        .unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn a_delegates_error_is_returned_unchanged(dir: &Path) {
    stub(dir, r#"echo '{"cniVersion":"1.0.0","code":11,"msg":"busy <&>","details":"pid 7"}'; exit 3"#);
    let want = json!({ "cniVersion": "0.4.0", "code": 11, "msg": "busy <&>", "details": "pid 7" });
    assert_eq!(error(&run(dir, "delegate", "ADD", "0.4.0", &[])), want);
    assert_eq!(calls(dir), ["ADD", "stub ADD", "stub DEL"]);
    assert_eq!(error(&run(dir, "delegate", "DEL", "0.4.0", &[])), want);
    let nothing = [("CNI_PATH", "")];
    let object = error(&run(dir, "delegate", "ADD", "0.4.0", &nothing));
    assert_eq!((&object["code"], &object["msg"]), (&json!(4), &json!("no paths provided")));
}

fn a_delegates_stderr_is_forwarded(dir: &Path) {
    let big = "head -c 1000000 /dev/zero | tr '\\0' w >&2";
    for (end, success) in [("echo null", true), (r#"echo '{"code":7,"msg":"no"}'; exit 1"#, false)] {
        stub(dir, &format!("echo a word in the log >&2; test $CNI_COMMAND = ADD || exit 0; {big}; {end}"));
        let output = run(dir, "delegate", "ADD", "0.4.0", &[]);
        assert_eq!(output.status.success(), success);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with("a word in the log\n"), "{end}: {}", &stderr[..stderr.len().min(100)]);
        assert_eq!(stderr.matches('w').count(), 1_000_001 + usize::from(!success), "{end}");
        assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok());
    }
}
