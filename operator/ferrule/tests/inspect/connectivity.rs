//! `ferrule test`: passes on a sound node, names what is broken, and leaves nothing, also after a kill.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Output;
use std::thread;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use serde_json::{Value, json};

use crate::fixture::{Fixture, PROGRAM};
use crate::schema;

/// A plugin that runs the commands in /run/break-b when it attaches the pod b, and passes the result on.
const BREAKER: &str = r#"#!/bin/sh
input=$(cat)
case $CNI_COMMAND in
ADD)
    script=/run/break-${CNI_CONTAINERID#ferrule-test-}
    [ ! -e "$script" ] || sh "$script" "$PPID" >&2 || exit 1
    echo "$input" | jq -c .prevResult ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
"#;

/// What the plugins keep for the next pod.
const KEPT: [&str; 1] = ["last_reserved_ip"];

fn node(main: &str, ranges: Value, more: &[&str]) -> Fixture {
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let routes = if main == "ptp" { routes } else { json!([]) };
    let f = Fixture::new();
    symlink(PROGRAM, f.bin_dir(Origin::Ours).join("ptp")).unwrap();
    let breaker = f.bin_dir(Origin::Ours).join("breaker");
    fs::write(&breaker, BREAKER).unwrap();
    fs::set_permissions(&breaker, fs::Permissions::from_mode(0o755)).unwrap();
    let mut plugins = vec![
        json!({"type": main, "bridge": "br-test", "isDefaultGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": routes}}),
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}),
    ];
    plugins.extend(more.iter().map(|plugin| json!({"type": plugin})));
    plugins.push(json!({"type": "breaker"}));
    let conflist = json!({"name": "pods", "cniVersion": "1.0.0", "plugins": plugins});
    f.node.write_conflist("10-pods.conflist", &conflist).unwrap();
    breaks(&f, "true");
    f
}

fn v4() -> Value {
    json!([[{"subnet": "10.212.0.0/16"}]])
}

fn breaks(f: &Fixture, script: &str) {
    f.node.write_file("/run/break-b", script).unwrap();
}

fn test(f: &Fixture, words: &str) -> (Output, String) {
    let folder = f.bin_dir(Origin::Ours);
    let words = format!("test --conf-dir /run/cni/net.d --bin-dir {} {words}", folder.display());
    let output = f.run(words.trim_end());
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    (output, said)
}

fn state(f: &Fixture) -> Snapshot {
    let left = f.node.sh("ls /run/netns; ls -d /run/ferrule-test 2>/dev/null || :").unwrap();
    assert_eq!(left.trim(), "", "namespaces or records are left");
    Snapshot::take(&f.node).unwrap().ignoring(&KEPT)
}

#[test]
fn a_sound_node_passes_and_keeps_nothing() {
    for main in ["bridge", "ptp"] {
        passes(main);
    }
}

fn passes(main: &str) {
    let f = node(main, json!([[{"subnet": "10.212.0.0/16"}], [{"subnet": "fd00:212::/64"}]]), &["firewall"]);
    let (output, said) = test(&f, "");
    assert!(output.status.success(), "{said}");
    let mut tests = vec!["attach", "CHECK"];
    let of_family =
        ["pod to pod", "node to pod", "pod to outside", "masquerade", "MTU pod to pod", "MTU pod to outside"];
    let named = ["IPv4", "IPv6"]
        .iter()
        .flat_map(|family| of_family.iter().map(move |test| format!("{test} ({family})")));
    let named: Vec<String> = named.collect();
    tests.extend(named.iter().map(String::as_str));
    tests.extend(["host port", "limit", "detach"]);
    for test in &tests {
        assert!(said.contains(&format!("ok: {test}: ")), "{test}: {said}");
    }
    assert!(said.contains("skipped: policy: not used: the network has no plugin policy"), "{said}");
    assert!(said.contains(&format!("{} ok, 0 failed, 3 skipped", tests.len())), "{said}");
    // The first pod of a node makes the bridge and the tables.
    let before = state(&f);
    let (output, said) = test(&f, "--json");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(schema::deviation_of(&document), None, "{said}");
    assert_eq!(document["tests"].as_array().unwrap().len(), tests.len() + 3, "{said}");
    assert_eq!(before.diff(&state(&f)), "");
}

/// What is broken behind the plugins' back, the test that fails, and words of its reason and its remedy.
const DAMAGES: [(&str, &str, &str); 6] = [
    (
        "for end in /sys/class/net/br-test/brif/*; do bridge link set dev ${end##*/} isolated on; done",
        "pod to pod (IPv4)",
        "are isolated ports of a bridge",
    ),
    ("nft delete table inet cni_portmap", "host port", "CHECK of portmap"),
    (
        "nft delete table inet cni_plugins_masquerade",
        "masquerade (IPv4)",
        "the other side sees the pod's address 10.212.",
    ),
    (
        "iptables -P FORWARD DROP",
        "pod to outside (IPv4)",
        "the chain ip filter FORWARD drops forwarded packets",
    ),
    ("ip link set br-test mtu 1000", "MTU pod to outside (IPv4)", "the MTU of br-test is 1000"),
    (
        "for end in /sys/class/net/br-test/brif/*; do tc qdisc del dev ${end##*/} root || :; done",
        "limit",
        "CHECK of bandwidth",
    ),
];

#[test]
fn each_damage_fails_its_test_with_its_reason() {
    let said = |damage: &str| {
        let f = node("bridge", v4(), &[]);
        breaks(&f, damage);
        let (output, said) = test(&f, "");
        assert_eq!(output.status.code(), Some(1), "{damage}: {said}");
        state(&f);
        said
    };
    thread::scope(|scope| {
        let run = |(damage, test, reason): (&'static str, &'static str, &'static str)| {
            (damage, test, reason, scope.spawn(move || said(damage)))
        };
        for (damage, test, reason, thread) in DAMAGES.map(run) {
            let said = thread.join().unwrap();
            let mut lines = said.lines().skip_while(|line| !line.starts_with(&format!("failed: {test}: ")));
            let line = lines.next().unwrap_or_else(|| panic!("{damage}: {said}"));
            let remedy = lines.next().unwrap_or_default();
            assert!(line.contains(reason) && remedy.starts_with("    remedy: "), "{damage}: {said}");
            assert!(said.contains("ok: detach: "), "{damage}: {said}");
        }
    });
}

/// The node's file of namespaces with policies, what is broken while the isolated pod is attached, and both lines.
const ISOLATED: [(&str, &str, [&str; 2]); 5] = [
    (
        "ferrule-policy 1\nopen ingress\nshop both\nend\n",
        "true",
        [
            "ok: policy: nothing passes a new pod of namespace shop (both directions)",
            "ok: policy, released: packets pass in both directions",
        ],
    ),
    (
        "damaged",
        "true",
        [
            "ok: policy: nothing passes a new pod of namespace ferrule-test (both directions)",
            "ok: policy, released: ",
        ],
    ),
    (
        "ferrule-policy 1\nend\n",
        "true",
        ["skipped: policy: /var/lib/ferrule/policy/isolated names no namespace", ""],
    ),
    (
        "ferrule-policy 1\ntools ingress\nend\n",
        "nft flush chain inet ferrule_pods forward",
        [
            "failed: policy: 10.212.0.2 reaches 10.212.0.4, though namespace tools is isolated (ingress)",
            "ok: policy, released: ",
        ],
    ),
    (
        "ferrule-policy 1\nshop both\nend\n",
        "nft add table inet wall; nft add chain inet wall f '{ type filter hook forward priority 0; }';
        nft add rule inet wall f ip daddr 10.212.0.4 drop",
        [
            "ok: policy: ",
            "failed: policy, released: no longer isolated, but not: 10.212.0.2 reaches 10.212.0.4, 10.212.0.4 reaches 10.212.0.2",
        ],
    ),
];

#[test]
fn a_pod_of_an_isolated_namespace_gets_nothing_until_it_is_released() {
    let said = |file: &str, damage: &str| {
        let f = node("ptp", v4(), &["policy"]);
        symlink(PROGRAM, f.bin_dir(Origin::Ours).join("policy")).unwrap();
        f.node.write_file("/var/lib/ferrule/policy/isolated", file).unwrap();
        f.node.write_file("/run/break-c", damage).unwrap();
        let said = test(&f, "").1;
        let left = f.node.sh("nft list table inet ferrule_pods | grep elements || :").unwrap();
        assert_eq!(left, "", "{said}");
        state(&f);
        said
    };
    thread::scope(|scope| {
        let runs = ISOLATED.map(|(file, damage, lines)| (lines, scope.spawn(move || said(file, damage))));
        for (lines, run) in runs {
            let said = run.join().unwrap();
            lines.iter().for_each(|line| assert!(said.contains(line), "{line}: {said}"));
            assert!(said.contains("ok: detach: "), "{said}");
        }
    });
}

#[test]
fn what_a_killed_test_has_left_is_removed() {
    let f = node("bridge", v4(), &[]);
    // gc knows nothing without the folder of a runtime.
    f.node.sh("mkdir /var/lib/cni/results").unwrap();
    assert!(test(&f, "").0.status.success());
    let before = state(&f);
    // A signal ends it in order.
    breaks(&f, "kill -TERM $1");
    let (output, said) = test(&f, "");
    assert_eq!(output.status.code(), Some(143), "{said}");
    assert!(said.contains("a signal has ended the test") && said.contains("ok: detach: "), "{said}");
    assert_eq!(before.diff(&state(&f)), "");
    for by_gc in [false, true] {
        breaks(&f, "kill -9 $1; sleep 0.2");
        assert!(!test(&f, "").0.status.success());
        let left = f.node.sh("ls /run/netns /run/ferrule-test").unwrap();
        for name in ["ferrule-test-a\n", "ferrule-test-outside", "pods-ferrule-test-b-eth0"] {
            assert!(left.contains(name), "{left}");
        }
        breaks(&f, "true");
        f.node.sh("touch /run/ferrule-test/x.pending1").unwrap();
        if by_gc {
            let said = f.says("gc --dry-run");
            assert!(said.contains("would end the namespaces that a killed ferrule test has left"), "{said}");
            // The plugin that has killed the test may still live.
            let is_gone = || {
                f.says("gc --yes");
                before.diff(&Snapshot::take(&f.node).unwrap().ignoring(&KEPT)).is_empty()
            };
            assert!(eventually(TIMEOUT, is_gone));
        } else {
            let (output, said) = test(&f, "");
            assert!(output.status.success() && said.contains("ok: former test: "), "{said}");
        }
        assert_eq!(before.diff(&state(&f)), "", "by gc: {by_gc}");
    }
}

#[test]
fn a_network_that_does_not_attach_is_told() {
    let f = node("bridge", v4(), &["missing"]);
    let (output, said) = test(&f, "");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("failed: attach: ADD of missing: no such program in "), "{said}");
    // DEL of a plugin that does not exist fails too, and the pods stay for the next test.
    assert!(said.contains("failed: detach: DEL of missing: "), "{said}");
    fs::copy(f.bin_dir(Origin::Ours).join("breaker"), f.bin_dir(Origin::Ours).join("missing")).unwrap();
    let (output, said) = test(&f, "pods");
    assert!(output.status.success() && said.contains("ok: former test: "), "{said}");
    state(&f);
    let (output, said) = test(&f, "others");
    assert!(
        output.status.code() == Some(1) && said.contains("there is no network others in /run/cni/net.d"),
        "{said}"
    );
}

#[test]
fn a_network_without_a_route_to_the_outside_is_sound() {
    let f = Fixture::new();
    let ipam = json!({"type": "host-local", "ranges": v4()});
    let plugins = json!([{"type": "bridge", "bridge": "br-test", "isGateway": true, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": true}}]);
    let conflist = json!({"name": "pods", "cniVersion": "1.0.0", "plugins": plugins});
    f.node.write_conflist("10-pods.conflist", &conflist).unwrap();
    let (output, said) = test(&f, "");
    assert!(output.status.success() && said.contains("ok: pod to pod (IPv4): "), "{said}");
    for test in ["pod to outside (IPv4)", "host port"] {
        assert!(said.contains(&format!("skipped: {test}: the network gives its pods no route")), "{said}");
    }
    state(&f);
}
