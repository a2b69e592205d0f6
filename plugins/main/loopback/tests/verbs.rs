//! `lo` is set up and down in every version, and the result has that version's layout.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{VERSIONS, fail, is_up, succeed, succeed_silently};
use common::{call, call_with, config, node_and_pod};
use serde_json::{Value, json};

/// The expected result of ADD for a pod with IPv6.
fn expected_result(version: &str) -> Value {
    let interfaces = json!([{ "name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "/run/netns/pod" }]);
    match version {
        "0.1.0" | "0.2.0" => {
            json!({ "cniVersion": version, "ip4": { "ip": "127.0.0.1/8" }, "ip6": { "ip": "::1/128" }, "dns": {} })
        }
        "0.3.0" | "0.3.1" | "0.4.0" => json!({
            "cniVersion": version, "interfaces": interfaces, "dns": {},
            "ips": [{ "version": "4", "address": "127.0.0.1/8", "interface": 0 },
                    { "version": "6", "address": "::1/128", "interface": 0 }] }),
        _ => json!({
            "cniVersion": version, "interfaces": interfaces,
            "ips": [{ "address": "127.0.0.1/8", "interface": 0 }, { "address": "::1/128", "interface": 0 }] }),
    }
}

fn with_prev_result(version: &str, prev: &Value) -> Value {
    let mut config = config(version);
    config["prevResult"] = prev.clone();
    config
}

#[test]
fn all_verbs_in_every_version() {
    let (node, pod) = node_and_pod();
    for version in VERSIONS {
        let result = succeed(&node, &call_with("ADD", &pod, &config(version)));
        assert_eq!(result, expected_result(version));
        assert!(is_up(&pod, "lo"), "{version}");
        pod.sh("ping -c 1 -W 2 127.0.0.1").unwrap();

        let chained = with_prev_result(version, &result);
        if version >= "0.4.0" {
            succeed_silently(&node, &call_with("CHECK", &pod, &chained));
        }
        if version >= "1.1.0" {
            succeed_silently(&node, &call_with("STATUS", &pod, &config(version)));
            for valid in [json!([]), Value::Null, json!([{ "containerID": "other", "ifname": "eth0" }])] {
                let mut config = config(version);
                config["cni.dev/valid-attachments"] = valid.clone();
                config["cni.dev/attachments"] = valid;
                succeed_silently(&node, &call_with("GC", &pod, &config));
            }
            succeed_silently(&node, &call_with("GC", &pod, &config(version)));
        }
        assert!(is_up(&pod, "lo"), "CHECK, STATUS and GC change nothing");

        // DEL with prevResult, without it, and repeated.
        for config in [&chained, &config(version), &config(version)] {
            succeed_silently(&node, &call_with("DEL", &pod, config));
            assert!(!is_up(&pod, "lo"), "{version}");
        }
    }
    let cni_version_absent = json!({ "name": "net" });
    assert_eq!(succeed(&node, &call_with("ADD", &pod, &cni_version_absent)), expected_result("0.1.0"));
}

#[test]
fn gc_decodes_valid_attachments() {
    let (node, pod) = node_and_pod();
    let mut bad = config("1.1.0");
    bad["cni.dev/valid-attachments"] = json!("all");
    fail(&node, &call_with("GC", &pod, &bad), 6);
    // The older key counts if the newer one is absent or null.
    let mut bad = config("1.1.0");
    bad["cni.dev/valid-attachments"] = Value::Null;
    bad["cni.dev/attachments"] = json!([5]);
    fail(&node, &call_with("GC", &pod, &bad), 6);
    // GC and STATUS ignore the attachment's variables.
    let mut exec = call("GC", &pod);
    (exec.container_id, exec.netns, exec.ifname) = ("a/b".into(), "/nowhere".into(), "a/b".into());
    succeed_silently(&node, &exec);
    exec.command = "STATUS".into();
    succeed_silently(&node, &exec);
}

#[test]
fn prev_result_is_passed_on() {
    let (node, pod) = node_and_pod();
    let oldest = json!({ "ip4": { "ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{ "dst": "0.0.0.0/0" }] },
                         "dns": { "nameservers": ["10.1.0.53"] } });
    let listed = json!({
        "interfaces": [{ "name": "cni0" }, { "name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/elsewhere" }],
        "ips": [{ "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1 }, { "address": "fd00::5/64", "interface": 7 }],
        "routes": [{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }, { "dst": "::/0" }],
        "dns": { "search": ["example.org"] } });
    for version in VERSIONS {
        let mut prev = if version <= "0.2.0" { oldest.clone() } else { listed.clone() };
        if ("0.3.0"..="0.4.0").contains(&version) {
            prev["ips"][0]["version"] = json!("4");
            prev["ips"][1]["version"] = json!("6");
        }
        let mut want = prev.clone();
        want["cniVersion"] = json!(version);
        prev["zzz"] = json!("unknown");
        // prevResult without its own cniVersion, and with it.
        assert_eq!(succeed(&node, &call_with("ADD", &pod, &with_prev_result(version, &prev))), want);
        prev["cniVersion"] = json!(version);
        assert_eq!(succeed(&node, &call_with("ADD", &pod, &with_prev_result(version, &prev))), want);
        assert!(is_up(&pod, "lo"));
        succeed_silently(&node, &call_with("DEL", &pod, &with_prev_result(version, &prev)));
    }
}

#[test]
fn check_detects_every_change() {
    let (node, pod) = node_and_pod();
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let error = fail(&node, &call_with("CHECK", &pod, &config(version)), 7);
        assert_eq!(error.msg, "Required prevResult missing");

        let result = succeed(&node, &call_with("ADD", &pod, &config(version)));
        let check = call_with("CHECK", &pod, &with_prev_result(version, &result));
        for _ in 0..20 {
            succeed_silently(&node, &check);
        }
        pod.sh("ip link set lo down").unwrap();
        assert_eq!(fail(&node, &check, 999).msg, "loopback interface is down");
        assert!(!is_up(&pod, "lo"), "CHECK repairs nothing");
        pod.sh("ip link set lo up").unwrap();
        succeed_silently(&node, &check);

        pod.sh("ip address del 127.0.0.1/8 dev lo").unwrap();
        let error = fail(&node, &check, 999);
        assert_eq!(error.msg, "loopback interface does not have address 127.0.0.1/8");
        pod.sh("ip address add 127.0.0.1/8 dev lo scope host").unwrap();
        succeed_silently(&node, &check);
        succeed_silently(&node, &call("DEL", &pod));
    }
}

/// The chain's result also reports other plugins' interfaces, which this CHECK must ignore.
#[test]
fn check_looks_only_at_lo() {
    let (node, pod) = node_and_pod();
    succeed(&node, &call("ADD", &pod));
    let mut result = expected_result("1.1.0");
    result["interfaces"] = json!([{ "name": "eth0", "sandbox": "/run/netns/pod" }, result["interfaces"][0]]);
    result["ips"] = json!([
        { "address": "10.1.0.5/16", "interface": 0 }, { "address": "127.0.0.1/8", "interface": 1 },
        { "address": "10.7.0.5/16" }, { "address": "10.8.0.5/16", "interface": 9 },
    ]);
    succeed_silently(&node, &call_with("CHECK", &pod, &with_prev_result("1.1.0", &result)));
    pod.sh("ip address add 10.55.0.1/32 dev lo; ip route add 10.56.0.0/16 dev lo").unwrap();
    succeed_silently(&node, &call_with("CHECK", &pod, &with_prev_result("1.1.0", &result)));
}

#[test]
fn without_ipv6() {
    let (node, pod) = node_and_pod();
    pod.sh(
        "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/lo/disable_ipv6",
    )
    .unwrap();
    for version in VERSIONS {
        let mut want = expected_result(version);
        match want.get_mut("ips").and_then(Value::as_array_mut) {
            Some(ips) => drop(ips.pop()),
            None => drop(want.as_object_mut().unwrap().remove("ip6")),
        }
        assert_eq!(succeed(&node, &call_with("ADD", &pod, &config(version))), want);
        assert!(is_up(&pod, "lo"));
        if version >= "0.4.0" {
            succeed_silently(&node, &call_with("CHECK", &pod, &with_prev_result(version, &want)));
        }
        succeed_silently(&node, &call_with("DEL", &pod, &config(version)));
    }
}

#[test]
fn other_addresses_on_lo_stay_and_are_not_reported() {
    let (node, pod) = node_and_pod();
    pod.sh("ip address add 10.99.0.1/32 dev lo; ip -6 address add fd99::1/128 dev lo; ip address add 127.0.0.53/8 dev lo")
        .unwrap();
    let addresses = || pod.sh("ip -o address show lo").unwrap();
    for version in VERSIONS {
        let result = succeed(&node, &call_with("ADD", &pod, &config(version)));
        assert!(!result.to_string().contains("99"), "{result}");
        assert!(addresses().contains("10.99.0.1/32"));
    }
    succeed_silently(&node, &call("DEL", &pod));
    assert!(addresses().contains("10.99.0.1/32"), "DEL only sets lo down");
}

#[test]
fn repeated_add_with_any_ifname() {
    let (node, pod) = node_and_pod();
    for ifname in ["lo", "eth0", "eth0"] {
        assert_eq!(succeed(&node, &call("ADD", &pod).env("CNI_IFNAME", ifname)), expected_result("1.1.0"));
    }
    assert!(is_up(&pod, "lo"));
}

#[test]
fn del_without_namespace() {
    let (node, pod) = node_and_pod();
    succeed(&node, &call("ADD", &pod));
    succeed_silently(&node, &call("DEL", &pod).env("CNI_NETNS", ""));
    succeed_silently(&node, &call("DEL", &pod).without("CNI_NETNS"));
    assert!(is_up(&pod, "lo"), "DEL without CNI_NETNS does nothing");
    let never_added = node.pod("never").unwrap();
    succeed_silently(&node, &call("DEL", &never_added));
    // After a reboot, a plain file remains of the namespace's mount. Later that file is gone too.
    pod.unmount_only().unwrap();
    succeed_silently(&node, &call("DEL", &pod));
    assert_eq!(node.list_dir("/run/netns").unwrap(), ["never", "pod"]);
    never_added.delete().unwrap();
    succeed_silently(&node, &call("DEL", &never_added));
    assert_eq!(node.list_dir("/run/netns").unwrap(), ["pod"]);
}
