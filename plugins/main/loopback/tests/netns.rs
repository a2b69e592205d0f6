//! CNI_NETNS in all forms, and the refusal of the plugin's own namespace. Requirements NNS, DEL-03.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{fail, is_up, succeed, succeed_silently};
use cni_lab::{Place as _, TIMEOUT, eventually};
use common::{call, call_with, config, node_and_pod};
use serde_json::json;

const OWN_NETNS: &str = "plugin's netns and netns from CNI_NETNS should not be the same";

#[test]
fn own_namespace_is_refused_before_anything_is_changed() {
    let (_node, pod) = node_and_pod();
    let alias = "/run/netns/alias";
    pod.sh(&format!("ln -s {} {alias}", pod.path().display())).unwrap();
    // The plugin runs in the pod, so the pod's namespace is the plugin's own.
    for own in ["/proc/self/ns/net", "/proc/thread-self/ns/net", pod.path().to_str().unwrap(), alias] {
        for verb in ["ADD", "CHECK", "DEL"] {
            let error = fail(&pod, &call(verb, &pod).env("CNI_NETNS", own), 8);
            assert_eq!(error.msg, OWN_NETNS);
            assert!(!is_up(&pod, "lo"), "{verb} {own}");
        }
    }
    pod.sh("ip link set lo up").unwrap();
    fail(&pod, &call("DEL", &pod), 8);
    assert!(is_up(&pod, "lo"), "DEL took lo of its own namespace down");
    // An invalid configuration is reported first.
    fail(&pod, &call("ADD", &pod).stdin("{"), 6);
}

#[test]
fn cni_netns_override_allows_the_own_namespace() {
    let (_node, pod) = node_and_pod();
    for value in ["1", "true", "TRUE"] {
        let exec = |verb: &str| call(verb, &pod).env("CNI_NETNS_OVERRIDE", value);
        succeed(&pod, &exec("ADD"));
        assert!(is_up(&pod, "lo"));
        succeed_silently(&pod, &exec("DEL"));
        assert!(!is_up(&pod, "lo"));
    }
    for value in ["", "0", "yes", "false"] {
        fail(&pod, &call("ADD", &pod).env("CNI_NETNS_OVERRIDE", value), 8);
    }
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn any_path_of_the_namespace_works_and_is_reported_unchanged() {
    let (node, pod) = node_and_pod();
    let mut server = std::process::Command::new("sleep");
    server.arg("60");
    let mut sleeper = pod.spawn(server).unwrap();
    let pid = sleeper.child().id();
    node.sh(&format!("ln -s {} /run/link; ln -s /run/netns /run/folder", pod.path().display())).unwrap();
    let of_process = format!("/proc/{pid}/ns/net");
    for path in
        [of_process.as_str(), "/run/link", "/run/folder/pod", "/run/netns//pod", "/run/../run/netns/pod"]
    {
        let result = succeed(&node, &call("ADD", &pod).env("CNI_NETNS", path));
        assert_eq!(
            result["interfaces"],
            json!([{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": path }])
        );
        assert!(is_up(&pod, "lo"), "{path}");
        succeed_silently(&node, &call("DEL", &pod).env("CNI_NETNS", path));
        assert!(!is_up(&pod, "lo"), "{path}");
    }
    drop(sleeper);
    assert!(eventually(TIMEOUT, || !std::path::Path::new(&of_process).exists()));
    fail(&node, &call("ADD", &pod).env("CNI_NETNS", of_process.as_str()), 4);
    succeed_silently(&node, &call("DEL", &pod).env("CNI_NETNS", of_process.as_str()));
}

#[test]
fn missing_namespace_fails_add_and_check_but_not_del() {
    let (node, pod) = node_and_pod();
    node.sh("echo precious > /run/file; mkdir /run/dir; mkfifo /run/fifo; ln -s /run/nothing /run/dangling")
        .unwrap();
    for (path, expected) in [
        ("/run/nothing", "no such file or directory"),
        ("/run/nothing/below", "no such file or directory"),
        ("/run/dangling", "no such file or directory"),
        ("/run/file/below", "no such file or directory"),
        ("/run/file", "unknown FS magic"),
        ("/run/dir", "unknown FS magic"),
        ("/run/fifo", "unknown FS magic"),
        ("relative", "no such file or directory"),
    ] {
        for verb in ["ADD", "CHECK"] {
            let mut config = config("1.1.0");
            config["prevResult"] = json!({ "cniVersion": "1.1.0" });
            let exec = call_with(verb, &pod, &config).env("CNI_NETNS", path);
            let error = fail(&node, &exec, 4);
            assert!(error.msg.contains(expected), "{error}");
            assert_eq!(error.details, format!("CNI_NETNS={path}"));
        }
        for _ in 0..2 {
            succeed_silently(&node, &call("DEL", &pod).env("CNI_NETNS", path));
        }
    }
    assert_eq!(node.list_dir("/run").unwrap().iter().filter(|name| *name == "nothing").count(), 0);
    assert_eq!(node.read_file("/run/file").unwrap(), "precious\n");
    assert!(!is_up(&pod, "lo"));
}

#[test]
fn other_kinds_of_namespaces_are_an_error() {
    let (node, pod) = node_and_pod();
    for path in ["/proc/self/ns/mnt", "/proc/self/status"] {
        for verb in ["ADD", "DEL"] {
            let error = fail(&node, &call(verb, &pod).env("CNI_NETNS", path), 999);
            assert!(error.msg.contains("network namespace"), "{error}");
        }
    }
}
