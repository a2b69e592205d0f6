//! Invalid calls: one error object with the right code, exit status 1, and no change.
//!
//! Covers requirements ENV, CID, IFN, CFG, NET, VER, ERR and OUT.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{
    Expect as _, VERSIONS, fail, is_up, run_command, stdin_file, succeed, succeed_silently,
};
use cni_runner::Exec;
use common::{LOOPBACK, call, call_with, command, config, node_and_pod};
use serde_json::{Value, json};

#[test]
fn all_missing_variables_are_named() {
    let (node, pod) = node_and_pod();
    let attachment = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
    for (verb, required) in [
        ("ADD", &attachment[..]),
        ("CHECK", &attachment[..]),
        ("DEL", &["CNI_CONTAINERID", "CNI_IFNAME"][..]),
        ("GC", &["CNI_PATH"][..]),
    ] {
        for name in required {
            // An unset variable and an empty one are equivalent.
            for exec in [call(verb, &pod).without(*name), call(verb, &pod).env(*name, "")] {
                let error = fail(&node, &exec, 4);
                assert_eq!(error.msg, format!("required env variables [{name}] missing"), "{verb}");
            }
        }
        let mut exec = call(verb, &pod);
        exec.absent = required.iter().map(|&name| name.to_owned()).collect();
        let want = format!("required env variables [{}] missing", required.join(","));
        assert_eq!(fail(&node, &exec, 4).msg, want);
    }
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn malformed_variables() {
    let (node, pod) = node_and_pod();
    let table: [(&str, &[&str], &str); 4] = [
        (
            "CNI_CONTAINERID",
            &["-a", "_a", ".a", "a b", "a/b", "a:b", "é", "a\n"],
            "invalid characters in containerID",
        ),
        ("CNI_IFNAME", &["0123456789abcdef", "éééééééé"], "interface name is too long"),
        ("CNI_IFNAME", &[".", ".."], "interface name is . or .."),
        (
            "CNI_IFNAME",
            &["a/b", "a:b", "a b", "a\tb", "a\n", "a\u{a0}b", "a\u{2003}b"],
            "interface name contains / or : or whitespace characters",
        ),
    ];
    for (name, values, msg) in table {
        for value in values {
            for verb in ["ADD", "CHECK", "DEL"] {
                let error = fail(&node, &call(verb, &pod).env(name, *value), 4);
                assert_eq!(error.msg, msg, "{verb} {value:?}");
                let details = error.details.as_str();
                assert!(details.contains(name) && details.contains(value), "{details}");
            }
        }
    }
    assert!(fail(&node, &call("ADD", &pod).env("CNI_IFNAME", "a%d"), 4).details == "CNI_IFNAME=a%d");
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn valid_names_at_the_limits() {
    let (node, pod) = node_and_pod();
    let long = "f".repeat(300);
    for id in ["a", "A0", "a-b_c.d", &long] {
        succeed(&node, &call("ADD", &pod).env("CNI_CONTAINERID", id));
    }
    for ifname in ["e", "0123456789abcde", "ééééééé", "-x"] {
        succeed(&node, &call("ADD", &pod).env("CNI_IFNAME", ifname));
    }
}

#[test]
fn unknown_verbs() {
    let (node, pod) = node_and_pod();
    for verb in ["FOO", "add", "Add", "ADD ", "version"] {
        assert_eq!(fail(&node, &call(verb, &pod), 4).msg, format!("unknown CNI_COMMAND: {verb}"));
        // An unknown verb requires no variables.
        let alone = Exec::new(LOOPBACK, verb).stdin(config("1.0.0").to_string());
        fail(&node, &alone, 4);
    }
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn undecodable_configurations() {
    let (node, pod) = node_and_pod();
    let bom = "\u{feff}".to_owned() + &config("1.0.0").to_string();
    let trailing = config("1.0.0").to_string() + "x";
    let twice = config("1.0.0").to_string().repeat(2);
    for stdin in ["", " ", "{", "[]", "5", "\"\"", "true", "{]", "{\"name\":\"n\",}", &bom, &trailing, &twice]
    {
        for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS", "FOO"] {
            let error = fail(&node, &call(verb, &pod).stdin(stdin), 6);
            assert!(error.msg.starts_with("error unmarshall network config: "), "{error}");
        }
    }
    for wrong in [json!({ "cniVersion": 5, "name": "n" }), json!({ "cniVersion": "1.0.0", "name": 5 })] {
        fail(&node, &call_with("ADD", &pod, &wrong), 6);
        fail(&node, &call_with("DEL", &pod, &wrong), 6);
    }
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn network_names() {
    let (node, pod) = node_and_pod();
    for version in VERSIONS {
        for verb in ["ADD", "CHECK", "DEL", "GC", "STATUS", "FOO"] {
            for missing in [json!({}), json!({ "name": "" }), json!({ "name": null }), Value::Null] {
                let mut config = missing;
                if config.is_object() {
                    config["cniVersion"] = json!(version);
                }
                let error = fail(&node, &call_with(verb, &pod, &config), 7);
                assert_eq!(error.msg, "missing network name");
            }
            let config = json!({ "cniVersion": version, "name": "n/x" });
            let error = fail(&node, &call_with(verb, &pod, &config), 7);
            assert_eq!(error.msg, "invalid characters found in network name");
            assert_eq!(error.details, "n/x");
        }
    }
    for name in ["-n", "_n", ".n", "n x", "ñ", "n\n"] {
        fail(&node, &call_with("ADD", &pod, &json!({ "cniVersion": "1.0.0", "name": name })), 7);
    }
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn unsupported_versions() {
    let (node, pod) = node_and_pod();
    let supported = r#"["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#;
    for version in ["1.2.0", "2.0.0", "0.5.0", "9.9.9", "1.0", "0.4", "v1.0.0", " 1.0.0", "foo"] {
        for verb in ["ADD", "DEL"] {
            let error = fail(&node, &call_with(verb, &pod, &config(version)), 1);
            assert_eq!(error.msg, "incompatible CNI versions");
            assert_eq!(error.details, format!("config is {version:?}, plugin supports {supported}"));
        }
        // CHECK, GC and STATUS compare versions, so one that is not numeric is a decoding error.
        let code = if version.split('.').all(|part| part.parse::<u32>().is_ok()) { 1 } else { 6 };
        for verb in ["CHECK", "GC", "STATUS"] {
            fail(&node, &call_with(verb, &pod, &config(version)), code);
        }
    }
    fail(&node, &call_with("STATUS", &pod, &config("1.0.0.0")), 6);
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn verbs_need_their_version() {
    let (node, pod) = node_and_pod();
    for version in VERSIONS {
        for (verb, since) in [("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")] {
            if version < since {
                let error = fail(&node, &call_with(verb, &pod, &config(version)), 1);
                assert_eq!(error.msg, format!("config version does not allow {verb}"));
                assert_eq!(error.version, version);
            }
        }
    }
    let unnamed = json!({ "name": "n" });
    fail(&node, &call_with("CHECK", &pod, &unnamed), 1);
}

#[test]
fn error_has_the_configurations_version() {
    let (node, pod) = node_and_pod();
    for version in VERSIONS {
        let exec = call_with("ADD", &pod, &config(version)).env("CNI_NETNS", "/nowhere");
        assert_eq!(fail(&node, &exec, 4).version, version);
    }
    assert_eq!(fail(&node, &call_with("ADD", &pod, &config("9.9.9")), 1).version, "1.1.0");
    let unnamed = call_with("ADD", &pod, &json!({ "name": "n" })).env("CNI_NETNS", "/nowhere");
    assert_eq!(fail(&node, &unnamed, 4).version, "0.1.0");
}

/// If a call has two errors, the first in this order is reported: the variables one by one (an invalid one
/// ends the check, missing ones are collected), standard input, JSON, network name, verb, version,
/// prevResult, namespace.
#[test]
fn order_of_checks() {
    let (node, pod) = node_and_pod();
    let good = call("ADD", &pod);
    let wrong_prev = json!({ "cniVersion": "1.0.0", "name": "n", "prevResult": { "cniVersion": "0.4.0" } });
    let table = [
        (
            good.clone().env("CNI_CONTAINERID", "a/b").without("CNI_IFNAME"),
            4,
            "invalid characters in containerID",
        ),
        (good.clone().without("CNI_CONTAINERID").env("CNI_IFNAME", "."), 4, "interface name is . or .."),
        (
            good.clone().without("CNI_CONTAINERID").stdin("{"),
            4,
            "required env variables [CNI_CONTAINERID] missing",
        ),
        (call("FOO", &pod).stdin("{"), 6, "error unmarshall"),
        (call("FOO", &pod).stdin("{}"), 7, "missing network name"),
        (call("FOO", &pod).stdin(config("9.9.9").to_string()), 4, "unknown CNI_COMMAND: FOO"),
        (good.clone().stdin(r#"{"cniVersion":"9.9.9"}"#), 7, "missing network name"),
        (
            good.clone().stdin(config("9.9.9").to_string()).env("CNI_NETNS", "/x"),
            1,
            "incompatible CNI versions",
        ),
        (good.clone().stdin(wrong_prev.to_string()).env("CNI_NETNS", "/x"), 7, "could not parse prevResult"),
    ];
    for (exec, code, msg) in table {
        let error = fail(&node, &exec, code);
        assert!(error.msg.starts_with(msg), "{error} instead of {msg}");
    }
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn prev_result_of_another_layout() {
    let (node, pod) = node_and_pod();
    let mut config = config("0.4.0");
    config["prevResult"] = json!({ "cniVersion": "1.0.0", "ips": [] });
    for verb in ["ADD", "CHECK"] {
        let error = fail(&node, &call_with(verb, &pod, &config), 7);
        assert_eq!(
            error.msg,
            "could not parse prevResult: result type supports [0.3.0 0.3.1 0.4.0] but unmarshalled CNIVersion is \"1.0.0\""
        );
    }
    assert!(!is_up(&pod, "lo"));
    // DEL must clean up all the same.
    succeed_silently(&node, &call_with("DEL", &pod, &config));
}

#[test]
fn variables_that_are_not_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;
    let (node, pod) = node_and_pod();
    let junk = std::ffi::OsStr::from_bytes(b"e\xff");
    for (name, code) in [("CNI_CONTAINERID", 4), ("CNI_IFNAME", 4), ("CNI_NETNS", 4), ("CNI_COMMAND", 4)] {
        let exec = call("ADD", &pod);
        let mut command = command(&exec);
        let output = run_command(&node, command.env(name, junk).stdin(stdin_file(&exec)));
        output.error().with_code(code);
        assert!(!is_up(&pod, "lo"), "{name}");
    }
}
